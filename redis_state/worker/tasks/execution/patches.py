"""Patches: a handler that asks, at one point, whether its task has passed it under older code.

    if ctx.patched("receipts by mail"):
        await ctx.step("mail", ...)

The first call of a name decides, and its answer is an entry of the journal. Every later call of the
name, in this run and in later ones, gets the same. A branch has names of its own, as for steps.

A task has passed the point if earlier runs recorded something that this run has not come to yet.
The handler's own asyncio task goes by everything that is recorded, and a branch by what is recorded
in it. Another asyncio task cannot know which part of the journal is its own: it goes by everything,
and may take the older path without need. The older path is right for each task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis_state.errors import HandlerChanged
from redis_state.serialization import codec
from redis_state.worker.tasks.execution.inbox import Inbox
from redis_state.worker.tasks.started import StartedRun

PATCH = "patch:"
# The entry that has the version of the handler's code, see `versions`.
VERSION = "version"


class Patches:
    """The answers of one run's task."""

    def __init__(self, started: StartedRun, inbox: Inbox) -> None:
        self._started = started
        self._inbox = inbox
        self._answers = answers_of(started.journal)

    def answer(self, place: str, passed: Callable[[], bool]) -> bool:
        """Return whether the point is new to the task, and record it.

        The answer is recorded before the handler's next checkpoint is passed. So what the new code
        does there is never in the journal without it.
        """
        if place not in self._answers:
            new = self._answers[place] = not passed()
            self._inbox.record_soon(PATCH + place, codec.encode(new))
        return self._answers[place]

    def retire(self, place: str, passed: Callable[[], bool]) -> None:
        """Check that the point is new to the task, without recording. Errors: HandlerChanged."""
        if place not in self._answers:
            # Without the older path nothing depends on the answer.
            self._answers[place] = not passed()
        if not self._answers[place]:
            task_id = self._started.state.task_id
            raise HandlerChanged(task_id, [PATCH + place], called=f"retire_patch({place!r})")


def answers_of(journal: dict[str, Any]) -> dict[str, bool]:
    """Return the recorded answers, by name and branch."""
    return {
        entry.removeprefix(PATCH): bool(note)
        for entry, note in journal.items()
        if entry.startswith(PATCH)
    }
