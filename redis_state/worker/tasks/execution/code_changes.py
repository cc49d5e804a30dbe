"""Code that changes while its tasks run: patches, and checks of what the older code recorded.

    if ctx.patched("receipts by mail"):
        await ctx.step("mail", ...)

By a patch a handler asks, at one point, whether its task has passed it under older code. The first
call of a name decides, and its answer is an entry of the journal. Every later call of the name, in
this run and in later ones, gets the same. A branch has names of its own, as for steps.

A task has passed the point if earlier runs recorded something that this run has not come to yet.
The handler's own asyncio task goes by everything that is recorded, and a branch by what is recorded
in it. Another asyncio task cannot know which part of the journal is its own: it goes by everything,
and may take the older path without need. The older path is right for each task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis_state.errors import BackendError, HandlerChanged
from redis_state.models import UpdateType
from redis_state.scripts import TaskKeys
from redis_state.serialization import codec
from redis_state.worker.tasks.execution.emitter import Emitter
from redis_state.worker.tasks.execution.inbox import Inbox
from redis_state.worker.tasks.execution.names import WORKING, CallNames, running_in
from redis_state.worker.tasks.execution.policy import StepPolicy
from redis_state.worker.tasks.recorded.journal import unvisited
from redis_state.worker.tasks.started import StartedRun

log: logging.Logger = logging.getLogger(__name__)

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


class CodeChanges(CallNames):
    """What code that has changed means for a task that older code began: patches, and checks."""

    emitter: Emitter
    _inbox: Inbox
    _policy: StepPolicy
    _keys: TaskKeys
    _patches: Patches

    def patched(self, name: str) -> bool:
        """Return whether this point is new to the task. See `TaskContext.patched`."""
        return self._patches.answer(self._patch(name), self._has_passed)

    def retire_patch(self, name: str) -> None:
        """Check that no older path is needed. See `TaskContext.retire_patch`."""
        self._patches.retire(self._patch(name), self._has_passed)

    def _patch(self, name: str) -> str:
        return self._here.peek("patch", name).rpartition("#")[0]

    def _has_passed(self) -> bool:
        """Return whether an earlier run has recorded something beyond this point."""
        run, working = self._started.replay, WORKING.get() or self._root
        own = working.home is running_in()
        if own and working is self._root and self._started.order.ahead:
            return True
        branch = "" if self._scope is self._root else self._scope.path
        return run.is_behind(working.entry, own=own, branch=branch)

    async def check_call(self, entry: str) -> None:
        """Report, or fail, if a new call stands where earlier runs recorded another one.

        Call it before the work of something that is not recorded. In a run that fails by it every
        later checkpoint raises the same. Errors: HandlerChanged; LeaseLost.
        """
        missed, rehearsal = self._started.order.missed_at(entry), self._started.replay.rehearsal
        if missed is None:
            return
        if rehearsal is not None:
            rehearsal.diverged = rehearsal.diverged or (entry, missed)
            return
        changed = HandlerChanged(self._keys.task_id, [missed], called=entry)
        if self._policy.on_changed == "fail":
            self._inbox.close(changed)
            raise changed
        log.warning("%s", changed)
        content = {"notice": "handler_changed", "called": entry, "recorded": missed}
        await self.report("diverged", content)

    async def rehearsed(self, call: str) -> None:
        """Wait for ever before a call that is not recorded, in a run that only rehearses."""
        if self._started.replay.rehearsal is not None:
            await self._started.replay.rehearsal.end(call)

    def unused(self) -> list[str]:
        """List what earlier runs recorded and this one has not used."""
        return unvisited(self._started.journal.keys(), self._requested)

    async def check_changed(self) -> None:
        """Report, or fail, if earlier runs recorded an entry that this one has not used.

        Call it at the end of a complete run. Errors: HandlerChanged; LeaseLost.
        """
        if isinstance(self._inbox.over, HandlerChanged):
            # The handler handles every error.
            raise self._inbox.over
        missed = self.unused()
        # A handler that returns after a pause has caught what ends its run: another one follows.
        if not missed or self._inbox.over is not None or self._started.replay.rehearsal is not None:
            return
        changed = HandlerChanged(self._keys.task_id, missed)
        if self._policy.on_changed == "fail":
            raise changed
        log.warning("%s", changed)
        await self.report("changed", {"notice": "handler_changed", "entries": missed})

    async def report(self, lane: str, content: dict[str, Any]) -> None:
        """Publish a notification, in a lane of its own. The run does not depend on it."""
        with suppress(BackendError):
            await self.emitter.emit(
                self._started.replay.named(lane), UpdateType.NOTIFICATION, content
            )


def answers_of(journal: dict[str, Any]) -> dict[str, bool]:
    """Return the recorded answers, by name and branch."""
    return {
        entry.removeprefix(PATCH): bool(note)
        for entry, note in journal.items()
        if entry.startswith(PATCH)
    }
