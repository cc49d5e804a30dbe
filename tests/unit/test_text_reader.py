"""Texts that are put together from many rows: a character is copied once, not for each row."""

from __future__ import annotations

from typing import ClassVar

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state.models import StateUpdate, UpdateType
from redis_state.worker import TextReader

_ROWS = 400


class _Row(str):
    """A row that counts the characters which are copied to put it behind others."""

    __slots__ = ()
    copied: ClassVar[int] = 0

    def __radd__(self, before: str) -> str:
        _Row.copied += len(before)
        return str(before) + str(self)


def _update(part: int, text: str) -> StateUpdate:
    content = {"text": text, "text_id": "answer#1", "generation": "1.1", "part": part}
    return StateUpdate(
        session_id="s",
        task_id="t",
        update_id=str(part),
        update_type=UpdateType.RESULT,
        content=content,
    )


def test_a_long_text_is_put_together_without_a_copy_for_each_row() -> None:
    reader, rows = TextReader(), [f"row {number}, " for number in range(1, _ROWS + 1)]
    _Row.copied = 0
    for part, text in enumerate(rows, start=1):
        update = _update(part, "")
        update.content["text"] = _Row(text)
        shown = reader.feed(update)
        assert shown is not None
        assert shown.rows[-1] == text
    assert _Row.copied < 2 * len("".join(rows))
    found = reader.texts["answer#1"]
    # Read between rows, and once more: it is joined where it was not.
    for number in range(2):
        assert found.text == "".join(rows) + "more" * number
        assert len(found.rows) == 1
        assert reader.feed(_update(_ROWS + number + 1, "more")) is found
    assert found.text.endswith("moremore")
