"""The client of the pool: submit, steer, decide, cancel, wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, Self, Unpack

from redis_state import limits
from redis_state.errors import CursorGap, InvalidField
from redis_state.models import (
    StateUpdate,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
)
from redis_state.models.attributes import Attributes, check_attributes
from redis_state.models.tasks import new_id
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms
from redis_state.stores.sessions.session_log import Entry
from redis_state.stores.sessions.task_fields import NO_CONTEXT
from redis_state.timeouts import timeout
from redis_state.transport.clock import ms_of
from redis_state.worker.client.erasing import ClientErasing
from redis_state.worker.client.gathering import ClientGathering
from redis_state.worker.client.messaging import ClientMessaging
from redis_state.worker.client.operations import check_id
from redis_state.worker.client.reading import ClientReading
from redis_state.worker.client.steering import ClientSteering
from redis_state.worker.client.submitted import check_submitted
from redis_state.worker.queue.control import Queues
from redis_state.worker.queue.limits import flow_key
from redis_state.worker.queue.rates import Rates
from redis_state.worker.schedules.client import Schedules
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.changes import TaskChanges
from redis_state.worker.tasks.children.cancelling import CancelCascade
from redis_state.worker.tasks.children.children import ChildTasks
from redis_state.worker.tasks.messaging.messages import TaskMessages
from redis_state.worker.tasks.messaging.values import Values
from redis_state.worker.tasks.recorded.snapshots import Snapshots
from redis_state.worker.tasks.submitting.submissions import (
    NewSubmissions,
    Submission,
    SubmitOptions,
    Submitted,
)
from redis_state.worker.tasks.submitting.turns import OnBusy
from redis_state.worker.tasks.views.archived import view_archived
from redis_state.worker.tasks.views.stream import (
    TaskView,
    may_end,
    missing_task,
    put_back,
    result_once_over,
    view_task,
    watch_task,
)
from redis_state.worker.tasks.waitpoints.deciding import PauseDecisions

_CHECK_EVERY_S = 5.0
_PATIENCE_S = 300.0
LONGEST_DELAY = timedelta(days=3653)


# The first one's `cancel` is what others only declare.
class TaskClient(ClientSteering, ClientGathering, ClientMessaging, ClientErasing, ClientReading):
    """Submit, steer, decide, cancel and watch tasks, from any process.

    ``queue`` is the queue of its tasks, else ``tasks``, as with workers. ``schedules`` are tasks
    that are submitted at their times.
    """

    def __init__(self, store: RedisStateStore, *, queue: str | None = None) -> None:
        super().__init__(store, queue=queue)
        self._books = TaskBookkeeping(store)
        self._changes = TaskChanges(store)
        self._submissions = NewSubmissions(store, self._queue)
        self._decisions = PauseDecisions(store)
        self._children = ChildTasks(store, self._queue)
        self._cancels = CancelCascade(store, self._children)
        self._snapshots = Snapshots(store)
        self._values = Values(store)
        self._messages = TaskMessages(store, self._queue)
        self.schedules: Schedules = Schedules(store, self._queue)

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
        delay: timedelta | None = None,
        at: datetime | None = None,
        limit_key: str | None = None,
        in_turn: bool = False,
        on_busy: OnBusy | Literal["enqueue", "reject", "interrupt", "replace"] | None = None,
        attributes: Attributes | None = None,
    ) -> str:
        """Submit a task for a handler; return the task's id.

        The same ``task_id`` is the same task, with the same handler and input. It is queued again
        only if it waits and the queue lost it. The task waits in ``queue``, else in the client's.
        It begins after a ``delay``, or ``at`` a time. Limits of its ``limit_key`` hold for it (see
        `Queues`); with ``in_turn`` the tasks of its session that have it run one at a time, if all
        are in one queue: each queue gives turns by itself. With both, both hold. ``attributes`` are
        small facts by which `find` finds it: up to 16 names with text, an int or a bool.

        ``on_busy`` implies ``in_turn``, and says what happens if another such task of the session
        is unfinished: it waits, runs or is paused. ``enqueue`` is the default: the new one waits
        for its turn. ``reject`` raises TaskInProgress. ``interrupt`` cancels what has begun, and
        the new one is next. ``replace`` cancels what has not begun, and the new one takes its
        place. One step decides: of concurrent callers each finds what the one before it left.

        The call writes the watch list first, then the task, then the queue. After a crash in
        between, a sweeper queues the task within seconds.

        Errors: BackendUnavailable; OutcomeUnknown, also if the task is written and the queue is
        unreachable. Submit it again under its ``task_id``, or leave it to a sweeper. InvalidField
        for an id that is not text, or the id of a task that a host saved. KeyReused for the id of a
        task with another handler or input; an input that cannot be read counts as the same.
        TaskInProgress. LimitReached if more than 1,000 tasks of the session are unfinished, with a
        policy other than ``enqueue``.
        """
        submitted = await self.submit_or_find(
            handler,
            task_input,
            session_id=session_id,
            task_id=task_id,
            priority=priority,
            task_type=task_type,
            description=description,
            trace_id=trace_id,
            context=context,
            queue=queue,
            delay=delay,
            at=at,
            limit_key=limit_key,
            in_turn=in_turn,
            on_busy=on_busy,
            attributes=attributes,
        )
        return submitted.task_id

    async def submit_or_find(
        self,
        handler: str,
        task_input: Any = None,
        *,
        session_id: str,
        task_id: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Submitted:
        """Submit a task like `submit`; return also whether this call has written it.

        Of concurrent calls with one ``task_id`` one has. A task that is there keeps all else that
        it was submitted with. ``sent`` stands in the record of a new one: a gateway compares
        repetitions by it.
        """
        limits.known_options(SubmitOptions, options)
        named = limits.own_id("task_id", task_id) is not None
        task_id = task_id or new_id()
        limits.name("handler", handler)
        check_id("session_id", session_id)
        check_id("task_id", task_id)
        attributes = options.get("attributes")
        if attributes is not None:
            attributes = check_attributes("attributes", attributes)
        policy = OnBusy.of(options.get("on_busy"), in_turn=options.get("in_turn", False))
        delay, at = options.get("delay"), options.get("at")
        if policy is OnBusy.INTERRUPT and (delay is not None or at is not None):
            raise InvalidField("on_busy", "interrupt cannot be given with delay or at")
        queue = limits.name_or("queue", options.get("queue"), self._queue.name)
        flow = flow_key(options.get("limit_key"), in_turn=None if policy is None else session_id)
        task = self.store, session_id, task_id
        check = partial(check_submitted, *task, handler=handler, task_input=task_input)
        if named and await self._still_there(session_id, task_id):
            await check()
            return Submitted(task_id, is_new=False)
        state = TaskState(
            task_id=task_id,
            session_id=session_id,
            status=TaskStatus.PENDING,
            task_type=options.get("task_type", TaskType.BACKGROUND),
            priority=options.get("priority", 0),
            context_snapshot=options.get("context") or NO_CONTEXT,
            trace_id=options.get("trace_id"),
            description=options.get("description"),
        )
        due_ms, delay_ms = (None, 0) if delay is None and at is None else await self._due(delay, at)
        new = Submission(
            handler=handler,
            task_input=task_input,
            queue=queue,
            written_key=flow,
            policy=policy,
            attributes=attributes,
            due_ms=due_ms,
            at=at is not None,
            delay_ms=delay_ms,
            sent=options.get("sent"),
        )
        is_new = await self._submissions.submit(state, new)
        if not is_new:
            await self._still_there(session_id, task_id)
            await check()
        return Submitted(task_id, is_new=is_new)

    @property
    def queues(self) -> Queues:
        """The queues: what waits and runs in them, their limits, pause and resume."""
        return Queues(self.store, self._queue)

    @property
    def rates(self) -> Rates:
        """The rates that were set in place of those that handlers give to `TaskContext.take`."""
        return Rates(self._queue)

    async def get(self, session_id: str, task_id: str) -> TaskState | None:
        """Return a task that Redis has, or None."""
        return await self.store.tasks.load(session_id, task_id)

    async def inspect(self, session_id: str, task_id: str) -> TaskView | None:
        """Return a task with what its workers know of it, or None.

        One that Redis does not have is read from the archive, if there is one. Errors:
        ArchiveUnavailable then.
        """
        view = await view_task(self.store, session_id, task_id)
        if view is not None:
            return view
        found = await view_archived(self.store, session_id, task_id)
        return None if found is None else found.view

    async def wait(
        self, session_id: str, task_id: str, *, timeout_s: float | None = None
    ) -> TaskState:
        """Wait until a task is terminal and return it.

        Every few seconds the task is put on the watch list again, in case the server evicted its
        entry. So a task of a dead worker is taken over.

        Errors: TimeoutError; TaskUnknown if the session has no such task.
        """
        async with timeout(limits.timeout("timeout_s", timeout_s)):
            while True:
                # Together, the cursor first: an end after the check then also comes after the
                # cursor. If their order is lost with a connection, the next check finds the end.
                cursor, ended = await asyncio.gather(
                    self.store.update_cursor(session_id), self._look(session_id, task_id)
                )
                # Changes without an update, such as a cleared session, are noticed in time.
                with suppress(CursorGap, TimeoutError):
                    async with timeout(_CHECK_EVERY_S):
                        ended = ended or await self._watch_for_end(session_id, task_id, cursor)
                if ended is not None:
                    return ended
                await put_back(self.store, session_id, task_id)

    async def result(self, session_id: str, task_id: str, *, timeout_s: float | None = None) -> Any:
        """Wait until a task is terminal and return its result.

        Errors: TaskFailed and TaskWasCancelled, with the reason; TimeoutError; TaskUnknown if the
        session has no such task.
        """
        return await result_once_over(self, session_id, task_id, timeout_s=timeout_s)

    def watch(
        self, session_id: str, task_id: str, *, after: str | None = None
    ) -> AsyncGenerator[Entry[StateUpdate], None]:
        """Yield every update of a task once, in order, live, until it is terminal; then end.

        Begin after a cursor, else with the oldest update that is kept. Each entry carries its
        cursor, to resume later or in another process. Changes of the status are among the updates,
        as STATUS_CHANGE.

        Errors: TaskUnknown if the session has no such task, or no longer; CursorGap instead of a
        silent skip.
        """
        return watch_task(self, session_id, task_id, after=after)

    async def drop_queue(self) -> None:
        """Remove all jobs from the queue, of all sessions. The tasks do not change."""
        await self._queue.clear()

    async def _due(self, delay: timedelta | None, at: datetime | None) -> tuple[int, int]:
        """Return when a task begins, and in how many ms that is, by the server's clock."""
        if delay is not None and at is not None:
            raise InvalidField("at", "cannot be given with delay")
        given: Any = at if delay is None else delay
        if delay is not None and not isinstance(given, timedelta):
            raise InvalidField("delay", "needs a timedelta")
        if at is not None and getattr(given, "tzinfo", None) is None:
            raise InvalidField("at", "needs a datetime with a time zone")
        now_ms = ms_of(await self.store.transport.commands.time())
        due_ms: int = now_ms + ms(given) if at is None else round(at.timestamp() * 1000)
        # A time that has passed is now; a negative delay is a mistake.
        if due_ms - now_ms > ms(LONGEST_DELAY) or (delay is not None and delay < timedelta(0)):
            raise InvalidField("at" if delay is None else "delay", "is below 0 or above ten years")
        return due_ms, max(0, due_ms - now_ms)

    async def _look(self, session_id: str, task_id: str) -> TaskState | None:
        state = await self.get(session_id, task_id)
        if state is None:
            raise await missing_task(self.store, session_id, task_id)
        return state if state.status.is_terminal else None

    async def _watch_for_end(
        self, session_id: str, task_id: str, cursor: str | None
    ) -> TaskState | None:
        updates = self.store.updates.watch(
            session_id,
            after=cursor,
            task_id=task_id,
            reconnect_timeout_s=_PATIENCE_S,
            was_read=True,
        )
        async with aclosing(updates):
            async for entry in updates:
                if may_end(entry.value):
                    ended = await self._look(session_id, task_id)
                    if ended is not None:
                        return ended
        return None
