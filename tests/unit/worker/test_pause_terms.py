"""Terms of pauses that adapters are given: what no pause can have is refused at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest

from redis_state import InvalidField

ADAPTERS = ("langgraph", "pydantic_ai", "openai_agents")
BAD = {
    "no option": (
        {"timeuot": timedelta(seconds=1)},
        "'timeuot' is no option of a pause: approvals,",
    ),
    "the pause's own": ({"payload": 1}, "'payload' is the pause's own"),
    "its key": ({"key": "k"}, "'key' is the pause's own"),
    "no time": ({"timeout": 5}, "timeout: a timedelta is needed, not int"),
    "no policy": ({"on_timeout": "wait"}, "on_timeout: needs fail, reject or resume"),
    "no tags": ({"tags": "money"}, "tags: a list of texts is needed"),
    "no deciders": ({"approvals": 2}, "approvals: needs `of`"),
    "no terms": (7, "options of a pause, or a function, are needed, not int"),
}


def maker(adapter: str) -> Callable[[Any], object]:
    """Return what makes an adapter's handler, or its capability, with some terms."""
    pytest.importorskip("arq", reason="needs the worker extra")
    pytest.importorskip({"openai_agents": "agents"}.get(adapter, adapter))
    module = import_module(f"redis_state.integrations.{adapter}")
    if adapter == "langgraph":
        return lambda terms: module.graph_handler(str, pause_options=terms)
    if adapter == "pydantic_ai":
        return lambda terms: module.RedisStateDurability(pauses=terms)
    return lambda terms: module.durable(str, pauses=terms)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_terms_that_no_pause_can_have_are_refused_where_they_are_given(adapter: str) -> None:
    make = maker(adapter)
    for name, (terms, problem) in BAD.items():
        with pytest.raises(InvalidField) as refused:
            make(terms)
        assert problem in str(refused.value), name
    # Nothing here is decided before there is a task, and its settings.
    make({"timeout": timedelta(days=300), "of": ["ann", "ben"], "approvals": 2, "tags": ["a"]})
    make(None)
    make(_wrong_terms)


def _wrong_terms(*_: object) -> dict[str, Any]:
    return {"timeuot": 1}
