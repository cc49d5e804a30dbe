"""The client of the pool: submit, steer, decide, cancel, wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Any, Self

from redis_state import codec
from redis_state.errors import CommandRefused, CursorGap, InvalidField, InvalidTransition
from redis_state.models import (
    SteeringEvent,
    SteeringEventType,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    UpdateType,
    validate_steering_event,
)
from redis_state.models.tasks import new_id
from redis_state.primitives.watchlist import WatchList
from redis_state.store import RedisStateStore, process_name
from redis_state.stores.base import ms
from redis_state.worker import telemetry
from redis_state.worker.life import TaskLife, watch_entry
from redis_state.worker.queue import DEFAULT_QUEUE, Queue
from redis_state.worker.workers import WorkerInfo, WorkerRegistry

_DECISIONS = (SteeringEventType.APPROVE, SteeringEventType.REJECT)
_LOOK_AGAIN = timedelta(seconds=30)
_LOOK_EVERY_S = 5.0


class TaskClient:
    """Hand tasks to the pool and have a say in them, from any process."""

    def __init__(self, store: RedisStateStore, *, queue: str = DEFAULT_QUEUE) -> None:
        self.store: RedisStateStore = store
        self._life = TaskLife(store)
        self._queue = Queue(store.settings, name=queue)
        self._watch = WatchList(store.base.scripts, store.base.keys)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Disconnect this loop from the queue. The store stays open."""
        await self._queue.aclose()

    async def submit(
        self,
        handler: str,
        task_input: Any = None,
        *,
        session_id: str,
        task_id: str | None = None,
        priority: int = 0,
        task_type: TaskType = TaskType.BACKGROUND,
        description: str | None = None,
        trace_id: str | None = None,
        context: TaskContextSnapshot | None = None,
        queue: str | None = None,
    ) -> str:
        """Have a handler run once for this task; return the task's id.

        The same ``task_id`` again is the same task, and only queued again if it still waits.
        ``queue``, else the client's, is where the task waits each time it does.
        Written first on the watch list, then as a task, then queued: a crash in between leaves a
        task that is known and not lost. Errors: BackendUnavailable, also if the task is written
        but the queue is away: submit it again under its ``task_id``. InvalidField for an id that
        is not text, or that of a task which was saved by a host and not submitted.
        """
        task_id = task_id or new_id()
        if not handler:
            raise InvalidField("handler", "needs a name")
        _check_id("session_id", session_id)
        _check_id("task_id", task_id)
        state = TaskState(
            task_id=task_id,
            session_id=session_id,
            status=TaskStatus.PENDING,
            task_type=task_type,
            priority=priority,
            context_snapshot=context or TaskContextSnapshot(session_id=session_id, task_id=task_id),
            trace_id=trace_id,
            description=description,
        )
        queue = queue or self._queue.name
        with telemetry.submitting(handler, session_id, task_id, queue) as span:
            await self._look_later(session_id, task_id)
            clock = self._clock()
            new = await self._life.create(
                state, handler=handler, task_input=task_input, queue=queue, trace=span.carrier
            )
            if new:
                await self._put(state, epoch=0, clock=clock, queue=queue)
            elif await self._still_waits(session_id, task_id):
                known = await self._queue_of(session_id, task_id)
                await self._put(state, epoch=0, clock=clock, queue=known)
        return task_id

    async def get(self, session_id: str, task_id: str) -> TaskState | None:
        """Return a task as it stands, or None."""
        return await self.store.tasks.load(session_id, task_id)

    async def steer(
        self,
        session_id: str,
        task_id: str,
        event_type: SteeringEventType,
        payload: dict[str, Any] | None = None,
        *,
        source: str = "user",
        event_id: str | None = None,
    ) -> SteeringEvent:
        """Send a steering event to a task, wherever it runs or waits.

        The same ``event_id`` again is the same event: name one if you may have to repeat the call.

        APPROVE and REJECT with a ``resume_token`` resolve that pause of this task, see `resolve`;
        CANCEL also ends a task that waits, see `cancel`; PRIORITIZE moves one that is queued.
        Errors: SteeringValidationError if the payload breaks the rules of its type; those of
        `resolve`.
        """
        event = SteeringEvent(
            session_id=session_id,
            task_id=task_id,
            event_type=event_type,
            payload=payload or {},
            source=source,
            event_id=event_id or new_id(),
        )
        validate_steering_event(event)
        await self.store.save_steering(event)
        token = event.payload.get("resume_token")
        if event_type in _DECISIONS and token:
            approved = event_type is SteeringEventType.APPROVE
            value = event.payload.get("decision")
            task = (session_id, task_id)
            await self._resolve(token, approved, value, by=source, claim=event.event_id, task=task)
        elif event_type is SteeringEventType.CANCEL:
            await self._cancel_waiting(session_id, task_id, event.payload.get("reason"))
        elif event_type is SteeringEventType.PRIORITIZE:
            await self._prioritize(session_id, task_id, event.payload["priority"])
        return event

    async def cancel(
        self, session_id: str, task_id: str, *, reason: str | None = None, hard: bool = False
    ) -> bool:
        """Cancel a task: at once if it waits, at its next checkpoint if it runs.

        ``hard`` cancels the running coroutine itself. Returns False if the task is over already
        or unknown.
        """
        payload: dict[str, Any] = {"hard": hard} | ({"reason": reason} if reason else {})
        state = await self.get(session_id, task_id)
        if state is None or state.status.is_terminal:
            return False
        await self.steer(session_id, task_id, SteeringEventType.CANCEL, payload)
        state = await self.get(session_id, task_id)
        return state is not None and state.status not in (TaskStatus.COMPLETE, TaskStatus.FAILED)

    async def approve(
        self, token: str, value: Any = None, *, by: str | None = None, claim: str | None = None
    ) -> TaskState | None:
        """Resolve a pause with yes, and have the task run on. See `resolve`."""
        return await self.resolve(token, approved=True, value=value, by=by, claim=claim)

    async def reject(
        self, token: str, value: Any = None, *, by: str | None = None, claim: str | None = None
    ) -> TaskState | None:
        """Resolve a pause with no, and have the task run on. See `resolve`."""
        return await self.resolve(token, approved=False, value=value, by=by, claim=claim)

    async def resolve(
        self,
        token: str,
        *,
        approved: bool,
        value: Any = None,
        by: str | None = None,
        claim: str | None = None,
    ) -> TaskState | None:
        """Resolve a pause and set its task pending in one step, then queue it for any worker.

        The same ``claim`` repeated gets the same answer and queues again. Errors: TokenResolved
        (by whom, when, how) for whoever comes second; TokenUnknown, also once it has expired;
        InvalidTransition if the task was cancelled; BackendUnavailable, also if it is resolved
        but the queue is away: resolve it again with the same ``claim``.
        """
        return await self._resolve(token, approved, value, by=by or process_name(), claim=claim)

    async def _resolve(
        self,
        token: str,
        approved: bool,  # noqa: FBT001 - private
        value: Any,
        *,
        by: str,
        claim: str | None,
        task: tuple[str, str] | None = None,
    ) -> TaskState | None:
        with telemetry.deciding() as span:
            resumed = await self._life.resume(
                token, approved=approved, value=codec.plain(value), by=by, claim=claim, task=task
            )
            clock = self._clock()
            state = await self.get(resumed.session_id, resumed.task_id)
            if state is not None and state.status is TaskStatus.PENDING:
                await self._look_later(resumed.session_id, resumed.task_id)
                queue = await self._queue_of(resumed.session_id, resumed.task_id)
                await self._put(
                    state, epoch=resumed.epoch, clock=clock, queue=queue, trace=span.carrier
                )
            span.note(session_id=resumed.session_id, task_id=resumed.task_id)
        return state

    async def wait(
        self, session_id: str, task_id: str, *, timeout_s: float | None = None
    ) -> TaskState:
        """Wait until a task is over and return it.

        Errors: TimeoutError; InvalidField if the session has no such task.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                # The cursor first: an end that comes after the look comes after the cursor too.
                cursor = await self.store.update_cursor(session_id)
                ended = await self._look(session_id, task_id)
                # Also what no update tells of, a session that was cleared say, is seen in time.
                with suppress(CursorGap, TimeoutError):
                    async with asyncio.timeout(_LOOK_EVERY_S):
                        ended = ended or await self._watch_for_end(session_id, task_id, cursor)
                if ended is not None:
                    return ended

    async def drop_queue(self) -> None:
        """Forget everything queued, of all sessions. The tasks stay as they are."""
        await self._queue.clear()

    async def workers(self) -> list[WorkerInfo]:
        """List the worker processes that have been heard of lately. See `WorkerRegistry`."""
        return await WorkerRegistry(self.store).list()

    async def _still_waits(self, session_id: str, task_id: str) -> bool:
        record = await self.store.tasks.load_fields(session_id, task_id)
        if record is not None and "job" not in record.fields:
            raise InvalidField("task_id", "a host has saved a task of this id, with no handler")
        status = TaskStatus(record.fields["status"].decode()) if record else None
        if status is None or status.is_terminal:
            await self._watch.take_out(watch_entry(session_id, task_id))
        return status is TaskStatus.PENDING

    async def _prioritize(self, session_id: str, task_id: str, priority: int) -> None:
        """Have a task that waits be taken sooner or later. One that runs has been told."""
        waiting = await self._life.prioritize(session_id, task_id, priority)
        if waiting is not None:
            await self._queue.move(
                session_id,
                task_id,
                epoch=waiting.epoch,
                before=waiting.priority,
                after=priority,
                queue=await self._queue_of(session_id, task_id),
            )

    async def _put(
        self,
        state: TaskState,
        *,
        epoch: int,
        clock: Awaitable[Any],
        queue: str | None,
        trace: Mapping[str, str] | None = None,
    ) -> None:
        """Queue a task, and say when by the server's clock."""
        at_ms: int | None = None
        with suppress(CommandRefused):  # it is for telemetry only
            seconds, micros = await clock
            at_ms = int(seconds) * 1000 + int(micros) // 1000
        await self._queue.put(
            state.session_id,
            state.task_id,
            epoch=epoch,
            priority=state.priority,
            queue=queue,
            at_ms=at_ms,
            trace=trace,
        )

    async def _queue_of(self, session_id: str, task_id: str) -> str | None:
        """Name the queue that a task waits in; None for one that says none."""
        key = self.store.base.keys.task(session_id, task_id)
        sender = self.store.transport.sender
        name: bytes | None = await sender.send("HGET", key, "queue", repeatable=True)
        return name.decode("utf-8", "surrogatepass") if name else None

    def _clock(self) -> asyncio.Future[Any]:
        return self.store.transport.sender.send("TIME", repeatable=True)

    async def _look(self, session_id: str, task_id: str) -> TaskState | None:
        state = await self.get(session_id, task_id)
        if state is None:
            raise InvalidField("task_id", "no such task in this session")
        return state if state.status.is_terminal else None

    async def _watch_for_end(
        self, session_id: str, task_id: str, cursor: str | None
    ) -> TaskState | None:
        updates = self.store.watch_updates(session_id, after=cursor, task_id=task_id)
        async with aclosing(updates):
            async for entry in updates:
                if entry.value.update_type is UpdateType.STATUS_CHANGE:
                    ended = await self._look(session_id, task_id)
                    if ended is not None:
                        return ended
        return None

    async def _cancel_waiting(self, session_id: str, task_id: str, reason: str | None) -> None:
        """End a task that no worker runs. One that runs has been told; one that is over stays."""
        state = await self.get(session_id, task_id)
        if state is None or state.status.is_terminal:
            return
        with suppress(InvalidTransition):
            if await self._life.cancel(state, reason):
                await self._watch.take_out(watch_entry(session_id, task_id))

    async def _look_later(self, session_id: str, task_id: str) -> None:
        await self._watch.put(watch_entry(session_id, task_id), delay_ms=ms(_LOOK_AGAIN))


def _check_id(field: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidField(field, f"text is needed, not {type(value).__name__}")
