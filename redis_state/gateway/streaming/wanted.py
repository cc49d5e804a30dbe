"""Which of a session's rows a client gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from redis_state.gateway.streaming.events import Frame
from redis_state.gateway.streaming.subtree import TaskSubtree
from redis_state.models import StateUpdate

Visible: TypeAlias = Callable[[StateUpdate], StateUpdate | None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client gets of a session's rows."""

    task_id: str | None = None
    types: frozenset[str] | None = None
    visible: Visible | None = None
    # Its rows are wanted too, while the task is not terminal.
    subtree: TaskSubtree | None = None

    @property
    def topic(self) -> str | None:
        """The task whose rows are all that is wanted; None for those of several."""
        return self.task_id if self.subtree is None else None

    def has(self, frame: Frame) -> bool:
        """Return whether a row is of the wanted task and types."""
        if self.subtree is not None:
            if not self.subtree.has(frame):
                return False
        elif self.task_id is not None and frame.task_id != self.task_id:
            return False
        if frame.update_type is None:
            return False
        return self.types is None or frame.update_type in self.types

    def ends(self, frame: Frame) -> bool:
        """Return whether a row says that the wanted task is terminal."""
        return frame.ends_task and self.task_id is not None and frame.task_id == self.task_id


EVERYTHING: Final = Wanted()
