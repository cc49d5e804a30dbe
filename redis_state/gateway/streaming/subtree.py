"""A task and those below it, as the rows of their session name them. No I/O."""

from __future__ import annotations

from typing import Final

from redis_state.gateway.streaming.events import Frame

DEEPEST: Final = 8
MOST_TASKS: Final = 1_000


class TaskSubtree:
    """A task, and those that it has spawned: up to 8 levels below it, and 1,000 tasks.

    Feed it the rows of the session in order. A task is known before its first row: the row of its
    parent that names it is of the same step, and stands before it.
    """

    def __init__(self, task_id: str) -> None:
        self._levels: dict[str | None, int] = {task_id: 0}

    def has(self, frame: Frame) -> bool:
        """Return whether a row is of the subtree, and learn whom it names."""
        level = self._levels.get(frame.task_id)
        if level is None:
            return False
        if frame.spawned is not None and level < DEEPEST and len(self._levels) < MOST_TASKS:
            self._levels.setdefault(frame.spawned, level + 1)
        return True
