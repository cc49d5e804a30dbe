"""Values and trees that are too large for a page: as much of them as a person reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("jinja2", reason="needs the gateway extra")

from redis_state.gateway.console.rendering import write_json
from redis_state.gateway.console.views.trees import shortened


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def tree(name: str, *children: dict[str, Any]) -> dict[str, Any]:
    return {"task_id": name, "children": [*children]}


def test_a_value_that_is_not_long_is_written_whole() -> None:
    values: list[Any] = [{"a": [1, None, "é"]}, [], {}, 1.5, deep(50)]
    for value in values:
        assert write_json(value) == json.dumps(value, indent=2, ensure_ascii=False)
    assert write_json("text") == "text"


def test_of_a_large_value_no_more_is_read_than_is_shown() -> None:
    class Counted(list[int]):
        read = 0

        def __iter__(self) -> Any:
            for each in super().__iter__():
                Counted.read += 1
                yield each

    shown = write_json(Counted(range(1_000_000)))
    assert shown.endswith("and more")
    assert 0 < Counted.read < 10_000
    assert write_json("x" * 30_000).endswith("… 10000 more characters")
    assert write_json({"x": "x" * 30_000}).endswith("… and more")


def test_of_large_trees_the_upper_levels_are_shown() -> None:
    trees = [tree("a", tree("b", tree("c")), tree("d")), tree("e")]
    assert shortened(trees, most=5) == (trees, 0)
    kept, hidden = shortened(trees, most=4)
    assert (kept, hidden) == ([tree("a", tree("b"), tree("d")), tree("e")], 1)
    assert shortened(trees, most=1) == ([tree("a")], 4)
    wide = tree("top", *(tree(str(number)) for number in range(10_000)))
    ((top,), hidden) = shortened([wide])
    assert (len(top["children"]), hidden) == (999, 9_001)
    assert len(wide["children"]) == 10_000
