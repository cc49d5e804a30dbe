"""Submit new tasks: the record first, then the queue, with what a task in turn decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from redis_state.models import TaskContextSnapshot, TaskState, TaskType
from redis_state.models.attributes import Attributes
from redis_state.primitives.listed import behind_a_write
from redis_state.store import RedisStateStore
from redis_state.worker.observe import tracing as telemetry
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.limits import flow_key
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.new_tasks import NewTasks
from redis_state.worker.tasks.submitting.turns import InTurn, OnBusy, Turns


class SubmitOptions(TypedDict, total=False):
    """What a new task is, and how it waits. See `TaskClient.submit`."""

    priority: int
    task_type: TaskType
    description: str | None
    trace_id: str | None
    context: TaskContextSnapshot | None
    queue: str | None
    delay: timedelta | None
    at: datetime | None
    limit_key: str | None
    in_turn: bool
    on_busy: OnBusy | Literal["enqueue", "reject", "interrupt", "replace"] | None
    attributes: Attributes | None
    sent: bytes | None


@dataclass(frozen=True, slots=True)
class Submitted:
    """A task that was submitted. It was there before if it is not new."""

    task_id: str
    is_new: bool


@dataclass(slots=True, kw_only=True)
class Submission:
    """What a new task runs, and how it waits.

    ``policy`` is what happens to the others of its session's line, None for a task that is in none.
    It is limited under ``limit_key`` then, or ``written_key``. It is due at ``due_ms``, which is
    ``delay_ms`` from now; with ``at`` that moment was given. After ``until_ms``, by the server's
    clock, nothing is written. ``sent`` stands in its record: by it a caller's call is compared with
    its repetition.
    """

    handler: str
    task_input: Any = field(repr=False)
    queue: str
    limit_key: str | None = None
    written_key: str | None = None
    policy: OnBusy | None = None
    attributes: Attributes | None = None
    due_ms: int | None = None
    at: bool = False
    delay_ms: int = 0
    until_ms: int | None = None
    sent: bytes | None = None

    def flow(self, session_id: str) -> str:
        """Write what it is limited under. Errors: InvalidField."""
        if self.written_key is not None:
            return self.written_key
        return flow_key(self.limit_key, in_turn=None if self.policy is None else session_id)


class NewSubmissions:
    """Submit tasks that are new. A repetition finds the task by its id."""

    def __init__(self, store: RedisStateStore, queue: Queue) -> None:
        self._store = store
        self._queue = queue
        self._new_tasks = NewTasks(store)

    async def submit(self, state: TaskState, new: Submission) -> bool:
        """Write a task and queue it; return whether it was new. Another one stays.

        A task that is written and not queued is queued by a sweeper, which also cancels what it
        interrupts. Errors: those of `NewTasks.create` and `InTurn`; OutcomeUnknown once it is
        written.
        """
        names = (state.session_id, state.task_id)
        turn = None
        if new.policy is not None:
            turn = InTurn(self._store, new.policy, state.priority, new.delay_ms)
            await turn.check(*names)
        flow = new.flow(state.session_id)
        with telemetry.submitting(new.handler, *names, new.queue) as span:
            trace = span.carrier
            is_new = await self._new_tasks.create(
                state,
                handler=new.handler,
                task_input=new.task_input,
                queue=new.queue,
                trace=trace,
                due_ms=new.due_ms,
                at=new.at,
                delay_ms=new.delay_ms,
                key=flow,
                attributes=new.attributes,
                sent=new.sent,
                until_ms=new.until_ms,
                writer=turn,
            )
            if is_new:
                job = Job(
                    *(*names, 0, state.priority, new.queue),
                    at_ms=new.due_ms,
                    trace=trace,
                    key=flow,
                )
                if turn is None:
                    await self._queue.put(job)
                else:
                    await self._put_in_turn(job, turn)
        return is_new

    async def _put_in_turn(self, job: Job, turn: InTurn) -> None:
        job = job._replace(since_ms=turn.came_ms)
        turns, address = Turns(self._store, self._queue), self._store.transport.address
        if turn.interrupted:
            # Before the task is queued.
            with behind_a_write(address):
                view = await self._store.tasks.look(job.session_id, job.task_id)
                if view is not None:
                    await turns.interrupt(view, turn.interrupted)
        await self._queue.put(job)
        if turn.passed:
            with behind_a_write(address):
                await turns.interrupt_claimed(job, turn.passed)
