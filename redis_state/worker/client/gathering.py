"""What a client gathers into one task: inputs of which the last counts, and batches."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypedDict, Unpack

from redis_state import limits
from redis_state.models import TaskState, TaskStatus, TaskType
from redis_state.models.attributes import Attributes, check_attributes
from redis_state.models.tasks import new_id
from redis_state.primitives.listed import behind_a_write
from redis_state.stores.sessions.task_fields import NO_CONTEXT
from redis_state.worker.client.operations import TaskOperations, check_id
from redis_state.worker.observe import tracing as telemetry
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.limits import flow_key
from redis_state.worker.tasks.new_tasks import NewTasks
from redis_state.worker.tasks.recorded.inputs import Gathers
from redis_state.worker.tasks.submitting.gathering import Gathered, batched, debounced


class GatherOptions(TypedDict, total=False):
    """What the first item gives a task whose input is gathered. See `TaskClient.submit`.

    Limits of its ``limit_key`` hold for the task, as for `TaskClient.submit`.
    """

    queue: str | None
    priority: int
    limit_key: str | None
    in_turn: bool
    task_type: TaskType
    description: str | None
    attributes: Attributes


class ClientGathering(TaskOperations):
    """Gather inputs into one task."""

    async def debounce(
        self,
        handler: str,
        task_input: Any = None,
        *,
        session_id: str,
        wait: timedelta,
        group: str = "",
        at_most: timedelta | None = None,
        **options: Unpack[GatherOptions],
    ) -> str:
        """Submit a task that begins once no input has come for ``wait``; return the task's id.

        Calls of one session, handler and ``group`` share a task until it begins. It runs once, with
        the last input, ``at_most`` after the first: ten times ``wait`` by default. A call that
        comes when it has begun makes the next task. The first call's options hold.

        One step decides in which task an input counts. After a crash of a caller the task may begin
        as early as the call before it has set. Errors: those of `submit`; InvalidField for an input
        of more than 1 MiB.
        """
        limits.known_options(GatherOptions, options)
        check_id("session_id", session_id)
        gathered = debounced(
            self.store,
            handler,
            task_input,
            session_id=session_id,
            group=group,
            wait=wait,
            at_most=at_most,
            priority=options.get("priority", 0),
            in_turn=options.get("in_turn", False),
        )
        return await self._gather(gathered, options)

    async def batch(
        self,
        handler: str,
        item: Any,
        *,
        session_id: str,
        after: timedelta,
        most: int = 100,
        group: str = "",
        item_id: str | None = None,
        **options: Unpack[GatherOptions],
    ) -> str:
        """Add an item to a batch; return the id of the task that gets it.

        The task's input is the list of items, in the order in which they were added. It is due
        ``after`` the first one, or with the ``most``-th, 1,000 at the most. Calls of one session,
        handler and ``group`` share a batch. Items are added until the task begins; the next one
        opens the next batch. A batch of 4 MiB is full too. The first call's options hold.

        The same ``item_id`` is the same item, for `active_task_ttl`: the call returns the task that
        has it. Without one a call that is repeated adds another item. One step adds an item: it is
        in one task, or in none if the call failed. Errors: those of `submit`; KeyReused if the id
        is that of another item; InvalidField for an item of more than 1 MiB.
        """
        limits.known_options(GatherOptions, options)
        check_id("session_id", session_id)
        gathered = batched(
            self.store,
            handler,
            item,
            session_id=session_id,
            group=group,
            after=after,
            most=most,
            item_id=item_id,
            priority=options.get("priority", 0),
            in_turn=options.get("in_turn", False),
        )
        return await self._gather(gathered, options)

    async def _gather(self, gathered: Gathered, options: GatherOptions) -> str:
        limits.name_or("queue", options.get("queue"), self._queue.name)
        attributes = check_attributes("attributes", options.get("attributes", {}))
        session_id = gathered.session_id if gathered.in_turn else None
        flow = flow_key(options.get("limit_key"), in_turn=session_id)
        while gathered.task_id is None:
            if await gathered.add():
                with behind_a_write(self.store.transport.address):
                    await self._set_due(gathered)
                break
            if gathered.full:
                await self._set_due(gathered)
            await self._open(gathered, options, attributes, flow)
        return gathered.task_id or ""

    async def _open(
        self, gathered: Gathered, options: GatherOptions, attributes: Attributes, flow: str
    ) -> None:
        """Write the next task, with the first item, unless another caller does."""
        session_id, task_id = gathered.session_id, new_id()
        queue = limits.name_or("queue", options.get("queue"), self._queue.name)
        state = TaskState(
            task_id=task_id,
            session_id=session_id,
            status=TaskStatus.PENDING,
            task_type=options.get("task_type", TaskType.BACKGROUND),
            priority=gathered.priority,
            context_snapshot=NO_CONTEXT,
            description=options.get("description"),
        )
        with telemetry.submitting(gathered.handler, session_id, task_id, queue) as span:
            new = await NewTasks(self.store).create(
                state,
                handler=gathered.handler,
                task_input=None,
                queue=queue,
                trace=span.carrier,
                delay_ms=gathered.latest_ms,
                key=flow,
                attributes=attributes,
                writer=gathered,
            )
            if new:
                job = Job(
                    *(session_id, task_id, 0, gathered.priority, queue),
                    at_ms=gathered.due_ms,
                    trace=span.carrier,
                    key=flow,
                )
                await self._queue.put(job)

    async def _set_due(self, gathered: Gathered) -> None:
        """Move the job to when the task is due; queue it if the queue has lost it."""
        moves = gathered.full or gathered.kind is Gathers.DEBOUNCE
        if gathered.due_ms and not moves:
            return
        task_id = gathered.task_id or gathered.closed
        view = await self.store.tasks.look(gathered.session_id, task_id)
        if view is None or view.status is not TaskStatus.PENDING:
            return
        await self._queue.ensure_queued([Job.of(view)])
        if gathered.due_ms:
            await self._queue.defer(Job.of(view), sooner=gathered.full)
