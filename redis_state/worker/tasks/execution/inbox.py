"""The inbox: steering that reaches a task, whatever process runs it.

It is the task's part of the session's steering log, so it lives as long as the task, not the run.
Each run reads it from the beginning, except for the events of an earlier task with the same id.
CANCEL, PAUSE, RESUME and PRIORITIZE steer the run itself and act when they arrive; an event that
resolves a pause has acted before. The rest waits until the handler takes it.

What a handler takes is recorded in the journal, with the place in the handler. A later run gets it
at the same place, and gets nothing new before it has come as far as the runs before it.

A run receives each event once by its id, also after a rollback of the server: a sender who learns
of the loss sends the same event again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import NoReturn

from redis_state import limits
from redis_state.errors import (
    BackendError,
    InvalidField,
    LeaseLost,
    PayloadUnreadable,
)
from redis_state.futures import unawaited
from redis_state.models import SteeringEvent, SteeringEventType
from redis_state.primitives.signal import Row
from redis_state.store import RedisStateStore
from redis_state.timeouts import timeout
from redis_state.timers import SharedTimers
from redis_state.transport.key_text import entry_id
from redis_state.worker.tasks.execution.follower import AGAIN_S, SteeringFollower
from redis_state.worker.tasks.recorded.journal import Journals
from redis_state.worker.tasks.recorded.lanes import Lane, SteeringRow
from redis_state.worker.tasks.recorded.replay import Replay

# True in the asyncio task that runs compensations: what has ended the handler does not end it.
UNDOING: ContextVar[bool] = ContextVar("redis_state_undoing", default=False)


def refuse_in_undo(field: str) -> None:
    """Refuse what waits in a compensation. Errors: InvalidField."""
    if UNDOING.get():
        raise InvalidField(field, "an undo cannot wait: its task ends after it")


class TaskCancelled(BaseException):
    """The task was cancelled. Raised at the handler's next checkpoint. Let it pass.

    Not an Exception, so that a handler that handles every error does not handle this.
    """

    def __init__(self, reason: str | None) -> None:
        super().__init__(reason or "cancelled")
        self.reason = reason


class Inbox:
    """Steering of one task, for its running handler."""

    def __init__(
        self,
        store: RedisStateStore,
        session_id: str,
        task_id: str,
        *,
        after: str | None,
        heard_from_ms: int = 0,
        replay: Replay,
        on_hard_cancel: Callable[[], None],
        on_priority: Callable[[int], None],
        void: Iterable[str] = (),
        timers: SharedTimers | None = None,
    ) -> None:
        self._store = store
        self._replay = replay
        self._session_id = session_id
        self._task_id = task_id
        self.follower: SteeringFollower = SteeringFollower(
            *(store, session_id, task_id),
            after=after,
            heard_from_ms=heard_from_ms,
            receive=self._receive,
            timers=timers or SharedTimers(),
        )
        self._on_hard_cancel = on_hard_cancel
        self._on_priority = on_priority
        # Events of before the task was reopened, which steer it no more, count as received.
        self._received: set[str] = set(void)
        self._waiting: deque[SteeringEvent] = deque()
        # Taken by a call that was cancelled before it returned.
        self._returned: list[SteeringEvent] = []
        self._arrived = asyncio.Event()
        replay.progressed = self._arrived.set
        self._open = asyncio.Event()
        self._open.set()
        self._cancelled: TaskCancelled | None = None
        # Whether the handler, or a part of it, was stopped by the cancel.
        self.cancel_met: bool = False
        self._over: BaseException | None = None
        # Whether this process stops, and leaves the task to a later run.
        self.leaving: bool = False
        # Deliveries that are being recorded, and what records one of them again.
        self._recording: dict[asyncio.Task[None], Callable[[], Awaitable[None]]] = {}
        # What is recorded only if the handler comes to another checkpoint.
        self._later: list[tuple[str, bytes]] = []
        # Returns the lane of the caller that takes events.
        self.lane: Callable[[], Lane] = partial(replay.named, "")
        # Called at each checkpoint, with the steps and updates that are about to begin.
        # Returns what is to be awaited there, None if it is nothing.
        self.guarding: Callable[[int, int], Awaitable[None] | None] | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled."""
        return self._cancelled is not None

    @property
    def steered(self) -> bool:
        """Whether an event was received."""
        return bool(self._received)

    @property
    def cancel_reason(self) -> str | None:
        """The reason of the cancel, if one was given."""
        return None if self._cancelled is None else self._cancelled.reason

    @property
    def over(self) -> BaseException | None:
        """The end of the run, for a handler that continues in spite of it."""
        return self._over

    def close(self, reason: BaseException) -> None:
        """Make every later checkpoint of this run raise ``reason``. The first reason stands."""
        self._over = self._over or reason
        self._open.set()
        self._arrived.set()

    def take(self) -> list[SteeringEvent]:
        """Take what has arrived, in order. Does not wait.

        In a replay, what was taken here before. It is recorded before the handler's next
        checkpoint is passed.
        """
        return self._take(self.lane())

    async def wait(self, timeout_s: float | None = None) -> list[SteeringEvent]:
        """Wait until something arrives, then take it; nothing after ``timeout_s``.

        Recorded when it returns. In a replay it returns at once what it returned before. Errors:
        TaskCancelled.
        """
        self.follower.follow_now()
        lane = self.lane()
        if timeout_s is not None and not lane.is_due and lane.passes():
            return []
        if timeout_s is None and not lane.is_due:
            # Only a delivery ends such a wait, so the next one that was recorded did.
            if lane.deliveries:
                return [self._read(row) for row in lane.deliveries.popleft().rows]
            lane.go_live()
        if self._replay.rehearsal is not None and not self._has_for(lane):
            await self._replay.rehearsal.end("inbox")
        try:
            async with timeout(limits.timeout("timeout_s", timeout_s)):
                while not self._has_for(lane):
                    self.raise_if_over()
                    self._arrived.clear()
                    with suppress(TimeoutError):
                        # Withheld events become due after a while, without a message.
                        async with timeout(AGAIN_S if self._holds_for(lane) else None):
                            await self._arrived.wait()
        except TimeoutError:
            lane.go_live()
            return []
        self.raise_if_over()
        events = self._take(lane)
        try:
            await self._recorded()
        except BaseException:
            # Nobody gets them by this call. They are recorded, so the log does not give them again.
            self._returned += events
            self._arrived.set()
            raise
        return events

    def let_go(self) -> None:
        """Drop what refers back to the run, which has ended: reference counts free it then.

        Rings of objects wait for the garbage collector, which takes a worker's time to find them.
        """
        self._on_hard_cancel, self._on_priority = _nothing, _nothing
        self.lane, self.guarding = partial(self._replay.named, ""), None
        for recording in self._recording:
            # No checkpoint waits for it any more.
            unawaited(recording)
        self._recording.clear()
        for error in (self._over, self._cancelled, self._replay.rewound):
            if error is not None:
                # Its traceback has the frames that it has passed, which have the run.
                error.__traceback__ = error.__context__ = None
        self.follower.let_go()
        self._replay.let_go()

    def cancel(self, reason: str) -> None:
        """Cancel the task at its next checkpoint, unless it is cancelled already."""
        self._cancelled = self._cancelled or TaskCancelled(reason)
        self._open.set()
        self._arrived.set()

    async def checkpoint(self, *, steps: int = 0, updates: int = 0) -> None:
        """Apply steering: wait while the task is paused by a PAUSE event; then check the guards.

        ``steps`` and ``updates`` are what the task is about to do. Errors: TaskCancelled,
        TaskStopped.
        """
        waited = self.checking(steps=steps, updates=updates)
        if waited is not None:
            await waited
            if self._replay.rehearsal is not None and not UNDOING.get():
                await self._replay.rehearsal.end_if_complete("checkpoint")

    def checking(self, *, steps: int = 0, updates: int = 0) -> Awaitable[None] | None:
        """Pass a checkpoint; return what is to be awaited for that, as a rule nothing."""
        replay = self._replay
        steered = self._over or self._cancelled or self._recording or self.follower.task is None
        replayed = replay.rewound or replay.rehearsal is not None or UNDOING.get()
        if steered or self._later or replayed or not self._open.is_set():
            return self._steered(steps, updates)
        waited = None if self.guarding is None else self.guarding(steps, updates)
        return None if waited is None else self._guarded(waited)

    async def _guarded(self, guards: Awaitable[None]) -> None:
        await guards
        self.raise_if_over()

    async def _steered(self, steps: int, updates: int) -> None:
        rehearsal = self._replay.rehearsal
        if rehearsal is not None or UNDOING.get():
            # Neither is steered, and neither is anything new of the handler's.
            self.raise_if_over()
            await self._recorded()
            if rehearsal is not None:
                rehearsal.move()
            return
        self.follower.follow_now()
        self.raise_if_over()
        while self._later:
            self.record_soon(*self._later.pop(0))
        if self._recording or not self._open.is_set():
            await self._open.wait()
            await self._recorded()
            self.raise_if_over()
        guards = None if self.guarding is None else self.guarding(steps, updates)
        if guards is not None:
            await self._guarded(guards)

    async def until_over(self) -> NoReturn:
        """Wait until the run has ended, and raise the reason. Errors: TaskCancelled, LeaseLost."""
        if self._replay.rehearsal is not None:
            await self._replay.rehearsal.end("inbox")
        self.follower.follow_now()
        while True:
            self.raise_if_over()
            self._arrived.clear()
            await self._arrived.wait()

    def raise_if_over(self) -> None:
        """Errors: TaskCancelled, LeaseLost."""
        over = self._over or self._replay.rewound or self._cancelled
        if UNDOING.get() and not isinstance(over, LeaseLost):
            over = self._replay.rewound
        elif self._replay.rehearsal is not None and over is self._cancelled:
            over = None
        if over is not None:
            self.cancel_met = self.cancel_met or over is self._cancelled
            raise over

    async def catch_up(self) -> None:
        """Read what is there already, so that a handler starts with all of it."""
        await self.follower.catch_up()

    def _has_for(self, lane: Lane) -> bool:
        """Return whether `_take` would return something."""
        if self._returned or lane.is_due:
            return True
        if self._replay.rehearsal is not None:
            return False
        if not self._holds_for(lane) or lane.withholds():
            return False
        return bool(self._waiting) or lane.is_due

    def _holds_for(self, lane: Lane) -> bool:
        """Return whether there is something, which may have to wait for its place."""
        return bool(self._waiting or lane.deliveries)

    def _take(self, lane: Lane) -> list[SteeringEvent]:
        if not self._has_for(lane):
            return []
        if self._returned:
            returned, self._returned = self._returned, []
            return returned
        due = lane.due()
        if due is not None:
            return [self._read(row) for row in due.rows]
        asyncio.get_running_loop()  # raises in a thread, before anything is taken
        events = list(self._waiting)
        self._waiting.clear()
        self._arrived.clear()
        rows = [self._store.steering.write(event) for event in events]
        self.record_soon(*self._replay.delivering(lane, rows), lane)
        return events

    def record_soon(self, entry: str, value: bytes, lane: Lane | None = None) -> None:
        """Record an entry of the journal before the handler's next checkpoint is passed."""
        if self._replay.rehearsal is not None:
            return
        record = partial(self._record, entry, value, lane)
        self._recording[asyncio.get_running_loop().create_task(record())] = record

    def record_later(self, entry: str, value: bytes) -> None:
        """Record an entry once the handler comes to another checkpoint."""
        self._later.append((entry, value))

    async def _record(self, entry: str, value: bytes, lane: Lane | None) -> None:
        keys = self._store.tasks.keys(self._session_id, self._task_id)
        journals = Journals(self._store.base)
        await journals.record(keys, entry, value, run=self._replay, lane=lane)

    async def _recorded(self) -> None:
        """Wait until what was taken is recorded. Errors: LeaseLost, BackendError."""
        while self._recording:
            recording = next(iter(self._recording))
            try:
                await asyncio.shield(recording)
            except BackendError:
                # The next checkpoint waits for it: the record is made once, however often.
                record = self._recording.pop(recording, None)
                if record is not None:
                    self._recording[asyncio.ensure_future(record())] = record
                raise
            self._recording.pop(recording, None)

    def _read(self, row: SteeringRow) -> SteeringEvent:
        row_id, data = row
        return self._store.steering.read(self._session_id, Row(0, 0, row_id, self._task_id, data))

    def _receive(self, event: SteeringEvent) -> None:
        if event.event_id in self._received:
            return
        self._received.add(event.event_id)
        match event.event_type:
            case SteeringEventType.CANCEL:
                self._cancelled = TaskCancelled(_text(event.payload.get("reason")))
                self._open.set()
                if event.payload.get("hard") is True:
                    self._on_hard_cancel()
            case SteeringEventType.PAUSE:
                self._open.clear()
            case SteeringEventType.RESUME:
                self._open.set()
            case SteeringEventType.PRIORITIZE:
                priority = event.payload.get("priority")
                if isinstance(priority, int) and not isinstance(priority, bool):
                    self._on_priority(priority)
            case SteeringEventType.APPROVE | SteeringEventType.REJECT if (
                "resume_token" in event.payload
            ):
                # It has acted already: the pause that it resolved returns it.
                pass
            case _:
                if entry_id("event_id", event.event_id) not in self._replay.delivered:
                    self._give(event)
        self._arrived.set()

    def _give(self, event: SteeringEvent) -> None:
        """Keep an event for the handler; one that cannot be read here is another worker's."""
        of = f"event {event.event_id!r} of task {self._task_id!r}"
        try:
            self._store.base.payloads.need_within(event.payload, of=of, field="payload")
        except PayloadUnreadable as error:
            self.close(error)
        else:
            self._waiting.append(event)


def _nothing(*_: object) -> None:
    """Do nothing."""


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
