"""Read what the rows of a task and of those below it say to a chat. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis_state.gateway.chat.parts import (
    ChildNamed,
    Part,
    TextAdded,
    TextBegan,
    TextDropped,
    TextEnded,
)
from redis_state.gateway.chat.shown_task import ShownTask
from redis_state.gateway.chat.task_parts import TaskParts
from redis_state.models import StateUpdate, TaskStatus, UpdateType

_ENDS = frozenset(status.value for status in TaskStatus if status.is_terminal)


class SubtreeParts(TaskParts):
    """Read the rows of a task, and of those below it their texts and whom they name.

    Texts stand together in the order of their rows. One of another task names it as its author.
    """

    forgot: bool

    def __init__(self, task_id: str, state: Any = None, *, keeps_texts: bool = True) -> None:
        super().__init__(task_id, state, keeps_texts=keeps_texts)
        # A reader for each task below it that wrote.
        self.below: dict[str, TaskParts] = {}

    def feed(self, update: StateUpdate) -> list[Part]:
        """Read a row; return what it says."""
        task_id, known = update.task_id, len(self.shown)
        if task_id == self._task_id:
            return super().feed(update)
        parts = list(self._parts_below(task_id, update)) if _is_shown(update) else []
        if len(self.shown) < known - 1:
            # One has forgotten what has ended, of all.
            for each in (self, *self.below.values()):
                each.know_shown_only()
        return parts

    def pass_by(self) -> None:
        """Show nothing of the texts and tools that were read, as if their rows were trimmed."""
        super().pass_by()
        for child in self.below.values():
            child.know_newest()

    def forget_texts(self) -> None:
        """Keep from now on what an open stream needs: no texts, arguments and results."""
        super().forget_texts()
        for child in self.below.values():
            child.forget_texts()

    def _parts_below(self, task_id: str, update: StateUpdate) -> Iterator[Part]:
        child = self.below.get(task_id)
        if child is None:
            # It has the same texts, so what closes or drops one of them does so for both.
            child = self.below[task_id] = TaskParts(
                task_id,
                keeps_texts=self._keeps_texts,
                author=task_id,
                shown=self.shown,
                passed_texts=self._passed_texts,
            )
        for part in child.feed(update):
            match part:
                case TextBegan() | TextAdded() | TextEnded() | TextDropped():
                    yield part
                case ChildNamed(name, handler, ended):
                    yield from self._known(name, handler, ended=ended)
                case _:
                    pass
        self.forgot = self.forgot or child.forgot
        if update.update_type is UpdateType.STATUS_CHANGE and update.content["status"] in _ENDS:
            yield from self._known(task_id, ended=True)

    def _known(
        self, task_id: str, handler: str | None = None, *, ended: bool = False
    ) -> Iterator[Part]:
        for part in self._child(task_id, handler, ended=ended):
            self._keep(part)
            yield part

    def _become(self, kept: ShownTask) -> None:
        # Before: theirs are to be forgotten too.
        self.below = kept.below if isinstance(kept, SubtreeParts) else {}
        super()._become(kept)


def _is_shown(row: StateUpdate) -> bool:
    """Return whether a row of a task below may say what a chat is to have of it."""
    match row.update_type, row.content:
        case UpdateType.THINKING, _:
            return False
        case _, {"text": str(), "text_id": str()}:
            return True
        case UpdateType.RESULT, str():
            return True
        case UpdateType.STATUS_CHANGE, {"status": str()}:
            return True
        case UpdateType.NOTIFICATION, {"notice": "child"}:
            return True
        case _:
            return False
