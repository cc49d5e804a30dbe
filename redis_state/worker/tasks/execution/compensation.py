"""Compensations: what a failed handler has done is undone, in reverse, each once.

    receipt = await ctx.step("charge", charge, key)
    ctx.on_failure(refund, receipt)

A handler registers compensations as it goes. Each registration is an entry of the journal, written
before the handler's next checkpoint is passed. When the handler fails, four things happen in order:

    1  the failure is recorded: from now on the task can only fail
    2  each compensation runs, the last registered first, and its end is recorded
    3  one that fails for good is recorded as such, and the others still run
    4  the task becomes FAILED, with a report in its error

A worker that dies, stops or runs out of time in between leaves the task for another run. That run
has no functions to call, only names. So it rehearses the handler: the calls return what is
recorded, the handler registers the same functions again, and stops where the journal ends.

Nothing here happens at a pause, at a hand-off or after a lost lease: those end a run, not the task.

A fork registers the compensations of the part that it was given, too. What they undo is the
source's, and so are they: the fork has them as ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Self

from redis_state.errors import (
    BackendError,
    HandlerChanged,
    InvalidField,
    InvalidTransition,
    JournalRewound,
    LeaseLost,
    PayloadStoreUnavailable,
    PayloadUnreadable,
)
from redis_state.errors.groups import found_in
from redis_state.models import TaskStatus
from redis_state.serialization import codec
from redis_state.serialization.payloads import Payloads
from redis_state.store import RedisStateStore
from redis_state.timeouts import timeout
from redis_state.worker.tasks.execution.exits import TaskHandedBack, kind_of
from redis_state.worker.tasks.execution.inbox import UNDOING, Inbox, TaskCancelled
from redis_state.worker.tasks.execution.steps import Steps
from redis_state.worker.tasks.recorded.compensations import (
    FAILING,
    OF_SOURCE,
    ON_CANCEL,
    REGISTERED,
    UNDONE,
)
from redis_state.worker.tasks.recorded.journal import FAILED, Journals
from redis_state.worker.tasks.recorded.rehearsal import (
    IDLE_S,
    LONGEST_TEXT,
    Rehearsal,
    kind_of_error,
    state_of_error,
)
from redis_state.worker.tasks.started import StartedRun

log: logging.Logger = logging.getLogger(__name__)

RunOutcome = tuple[TaskStatus, Any, str | None]

# Not the failure of a step or of a compensation: another run continues.
_NOT_OURS = (BackendError, LeaseLost)
# Errors that say nothing of a step: the run ends by them.
_NO_FAILURES = (
    *(*_NOT_OURS, HandlerChanged, InvalidTransition, JournalRewound, TaskHandedBack),
    *(PayloadUnreadable, PayloadStoreUnavailable),
)
_CLEAN_UP_S = 5.0
_CHECK_EVERY_S = 0.01
_NAMED = 10
_MOST_ERRORS = 100
AGAIN: RunOutcome = (TaskStatus.PENDING, None, None)


@dataclass(frozen=True, slots=True)
class _Undo:
    work: Callable[..., Any]
    arguments: tuple[Any, ...] = field(repr=False)
    number: int
    on_cancel: bool


@dataclass(frozen=True, slots=True)
class _Failing:
    """The end of a task that can only fail: its status, its text, and the steps that failed."""

    status: TaskStatus
    error: str | None
    errors: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    recorded: bool = True

    @classmethod
    def of(cls, journal: Mapping[str, Any]) -> Self | None:
        note = journal.get(FAILING)
        if note is None:
            return None
        errors = {entry: (str(kind), str(text)) for entry, (kind, text) in note["errors"].items()}
        return cls(TaskStatus(note["status"]), note["error"], errors)

    def document(self, payloads: Payloads) -> bytes:
        errors = {entry: list(failed) for entry, failed in self.errors.items()}
        value = {"status": self.status.value, "error": self.error, "errors": errors}
        return payloads.document(value, "error", "errors")


class Compensations:
    """The compensations of one run's task."""

    def __init__(self, store: RedisStateStore, started: StartedRun, inbox: Inbox) -> None:
        self._payloads = store.base.payloads
        self._journals = Journals(store.base)
        self._keys = store.tasks.keys(started.state.session_id, started.state.task_id)
        self._started = started
        self._inbox = inbox
        self._steps: Steps | None = None
        self._failing = _Failing.of(started.journal)
        # The first compensation that this run has begun.
        self._first: str | None = None
        self._cancels = ON_CANCEL in started.journal
        self._registered: dict[str, _Undo] = {}
        self._ended: dict[str, str | None] = {
            entry.removeprefix(UNDONE): note["error"]
            for entry, note in started.journal.items()
            if entry.startswith(UNDONE)
        }
        self._of_source = {place for place, error in self._ended.items() if error == OF_SOURCE}
        self._known = {
            entry.removeprefix(REGISTERED): note
            for entry, note in started.journal.items()
            if entry.startswith(REGISTERED)
        }
        self._failed_steps: dict[str, tuple[str, str]] = {}
        self._watching: asyncio.Task[None] | None = None
        # Why another run has to continue, if it is a server's fault.
        self.trouble: BackendError | None = None

    def register(
        self,
        steps: Steps,
        undo: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        name: str | None,
        on_cancel: bool,
    ) -> None:
        """Register a compensation. See `TaskContext.on_failure`. Errors: InvalidField."""
        if not callable(undo):
            raise InvalidField("undo", "a callable is needed")
        name = _name_of(undo) if name is None else name
        if not name:
            raise InvalidField("name", "is needed for an undo that has none itself")
        place = steps.ask_undo(name)
        known = self._known.get(place)
        numbers = [note["number"] for note in self._known.values()]
        number = known["number"] if known else max(numbers, default=0) + 1
        self._registered[place] = _Undo(undo, arguments, number, on_cancel)
        if self._started.replay.rehearsal is not None:
            self._started.replay.rehearsal.move()
        if known is None:
            note = {"number": number, "on_cancel": on_cancel, "at": steps.reached}
            self._known[place] = note
            self._inbox.record_soon(REGISTERED + place, codec.encode(note))
            if on_cancel and not self._cancels:
                self._cancels = True
                self._inbox.record_soon(ON_CANCEL, b"true")

    def step_failed(self, entry: str, error: Exception, place: int | None, *, keyed: bool) -> None:
        """Remember a step that failed: its handler may handle that, and every later run must too.

        It is recorded once, if the handler comes to another checkpoint. One without a ``place`` is
        for a rehearsal alone.
        """
        if found_in(error, *_NO_FAILURES) is not None or FAILED + entry in self._started.journal:
            return
        failed = kind_of_error(error), codec.text_of(error)[:LONGEST_TEXT]
        if len(self._failed_steps) < _MOST_ERRORS:
            self._failed_steps[entry] = failed
        if place is not None:
            note = {"error": list(failed), "state": state_of_error(error), "place": place}
            note |= {"keyed": True} if keyed else {}
            document = self._payloads.document(note, "error", "state")
            self._inbox.record_later(FAILED + entry, document)

    def begin(self, steps: Steps, handling: asyncio.Task[Any]) -> bool:
        """Begin a run; return whether it only rehearses, because the task can only fail.

        The handler, which runs in ``handling``, is cancelled once it has registered everything.
        """
        self._steps = steps
        if self._failing is None and self._inbox.cancelled and self._own(TaskStatus.CANCELLED):
            reason = self._inbox.cancel_reason
            self._failing = _Failing(TaskStatus.CANCELLED, reason, recorded=False)
        if self._failing is None:
            return False
        rehearsal = self._started.replay.rehearsal = Rehearsal(self._failing.errors)
        rehearsal.is_complete = lambda: self._is_complete(steps)
        self._watching = asyncio.create_task(self._end_rehearsal(steps, rehearsal, handling))
        return True

    def needed(self, outcome: RunOutcome) -> bool:
        """Return whether something is to be undone before a run's outcome is written."""
        if outcome[0] is TaskStatus.PENDING:
            return False
        return self._failing is not None or bool(self._own(outcome[0]))

    async def settle(self, outcome: RunOutcome, *, stuck: bool, ends_s: float) -> RunOutcome:
        """Undo what the handler has done; return the task's end, or that it must run again.

        ``stuck`` is a handler that does not stop. ``ends_s`` is when this run must end, on the
        monotonic clock. Errors: LeaseLost.
        """
        UNDOING.set(True)
        if self._watching is not None:
            self._watching.cancel()
        rehearsed = self._started.replay.rehearsal is not None
        try:
            failing = await self._fail(outcome)
            if stuck:
                return AGAIN
            await self._stop_rest()
            self._started.replay.rehearsal = None
            left = self._left(failing.status)
            try:
                async with timeout(max(0.0, ends_s - monotonic())):
                    await self._undo_all(left, failing)
            except TimeoutError:
                # A compensation that had a whole run for itself does not get another one.
                if rehearsed and self._first is not None and self._first not in self._ended:
                    await self._end(self._first, "TimeoutError")
                return AGAIN
        except InvalidTransition:
            return outcome  # the task is gone, which its end will find
        except BackendError as error:
            log.warning("task %r is handed back: %s", self._keys.task_id, error)
            self.trouble = error
            return AGAIN
        return failing.status, None, self._report(failing)

    async def _fail(self, outcome: RunOutcome) -> _Failing:
        """Record that the task can only fail, and how."""
        if self._failing is None:
            status, _, text = outcome
            self._failing = _Failing(status, text, dict(self._failed_steps), recorded=False)
        if not self._failing.recorded:
            value, run = self._failing.document(self._payloads), self._started.replay
            await self._journals.record(self._keys, FAILING, value, run=run)
            self._failing = replace(self._failing, recorded=True)
        return self._failing

    async def _stop_rest(self) -> None:
        """End what still runs of the handler: its effects would come after their undoing."""
        self._inbox.close(TaskCancelled("the run is over"))
        rest: set[asyncio.Task[Any]] = set()
        if self._steps is not None:
            rest = self._steps.unfinished()
        for task in rest:
            task.cancel()
        if rest:
            _, stuck = await asyncio.wait(rest, timeout=_CLEAN_UP_S)
            if stuck:
                log.error("parts of the handler of task %r go on", self._keys.task_id)
        # What they have registered by then counts.
        await self._inbox.checkpoint()

    async def _undo_all(self, left: list[str], failing: _Failing) -> None:
        steps = self._steps
        if steps is None:  # the run has ended before its handler began
            return
        content: dict[str, Any] = {"status": failing.status.value, "error": failing.error}
        content["compensations"] = [
            place.removeprefix("#") for place in left if place not in self._of_source
        ]
        await steps.report("compensating", {"notice": "compensating"} | content)
        for place in left:
            if place not in self._ended:
                self._first = self._first or place
                await self._end(place, await self._undo(steps, place))
        undone, failed = self._ends(left)
        await steps.report(
            "compensated", {"notice": "compensated", "undone": undone, "failed": failed}
        )

    async def _undo(self, steps: Steps, place: str) -> str | None:
        """Run one compensation; return the class of its error if it fails for good."""
        undo = self._registered.get(place)
        if undo is None:
            log.error("%r of task %r is not registered any more", place, self._keys.task_id)
            return "not registered again"
        try:
            await steps.undo(place, undo.work, undo.arguments)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return "CancelledError"
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise
            trouble = found_in(error, *_NOT_OURS)
            if trouble is not None:
                raise trouble from None
            log.warning(
                *("%r of task %r failed", place, self._keys.task_id),
                exc_info=self._payloads.loggable(error),
            )
            return kind_of(error)
        return None

    async def _end(self, place: str, error: str | None) -> None:
        note = codec.encode({"error": error})
        run = self._started.replay
        await self._journals.record(self._keys, UNDONE + place, note, run=run)
        self._ended[place] = error

    def _left(self, status: TaskStatus) -> list[str]:
        """List what such an end undoes, the last registered first."""
        chosen = [
            (note["number"], place)
            for place, note in self._known.items()
            if status is TaskStatus.FAILED or (status is TaskStatus.CANCELLED and note["on_cancel"])
        ]
        return [place for _, place in sorted(chosen, reverse=True)]

    def _own(self, status: TaskStatus) -> list[str]:
        return [place for place in self._left(status) if place not in self._of_source]

    def _ends(self, left: list[str]) -> tuple[list[str], dict[str, str]]:
        """Return what was undone, and what was not, with the error."""
        ended = {place.removeprefix("#"): self._ended[place] for place in left}
        failed = {name: error for name, error in ended.items() if error is not None}
        return [name for name in ended if name not in failed], failed

    def _report(self, failing: _Failing) -> str:
        undone, failed = self._ends(self._left(failing.status))
        parts = [failing.error or "cancelled"]
        parts += [f"undone: {_some(undone)}"] if undone else []
        not_undone = [f"{name} ({error})" for name, error in failed.items()]
        parts += [f"not undone: {_some(not_undone)}"] if failed else []
        return "; ".join(parts)

    def _is_complete(self, steps: Steps) -> bool:
        own = self._known.keys() - self._of_source
        return own <= self._registered.keys() and not steps.unused()

    async def _end_rehearsal(
        self, steps: Steps, rehearsal: Rehearsal, handling: asyncio.Task[Any]
    ) -> None:
        """End the handler once it has registered everything, or does no more."""
        # It may hang where nothing is recorded, outside of any step.
        while not self._is_complete(steps):
            rehearsal.moved.clear()
            try:
                async with timeout(IDLE_S if rehearsal.waiting else None):
                    await rehearsal.moved.wait()
            except TimeoutError:
                break
            await asyncio.sleep(_CHECK_EVERY_S)
        handling.cancel()


def _name_of(undo: Callable[..., Any]) -> str:
    # A partial, say, has the name of what it calls.
    return getattr(undo, "__name__", "") or getattr(getattr(undo, "func", None), "__name__", "")


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
