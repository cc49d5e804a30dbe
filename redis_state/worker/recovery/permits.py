"""Queue tasks again whose claims may be permits: first the right to run goes, then the permit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.worker.queue.jobs.job import Job, QueueState
from redis_state.worker.queue.jobs.placing import place_by_record
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.transitions import TaskTransitions


async def queue_again(
    store: RedisStateStore,
    transitions: TaskTransitions,
    queue: Queue,
    tasks: Sequence[TaskStatusView],
    *,
    patience_ms: int,
) -> list[QueueState]:
    """Ensure that the queue has the jobs of tasks that wait, or whose owners' leases have run out.

    The record and the queue may be on two servers. So the claim is retired in the record before its
    permit is free: who has it can neither start the task nor renew its lease then. A crash between
    the two leaves the permit taken, until the next sweep. HELD says that the task has moved on
    meanwhile. A job at the place of another priority is moved: who changed that may have died.
    Errors: BackendUnavailable.
    """
    jobs = [Job.of(task) for task in tasks]
    found = await queue.ensure_or_held(jobs, patience_ms=patience_ms)

    async def settled(
        task: TaskStatusView, job: Job, ensured: tuple[QueueState, int]
    ) -> QueueState:
        state, claimed_ms = ensured
        if state is QueueState.MISPLACED:
            await place_by_record(store, queue, task)
        if state is not QueueState.HELD:
            return state
        if not await transitions.retire(task, claimed_ms=claimed_ms):
            return state
        retired = job._replace(retired_ms=claimed_ms)
        return (await queue.ensure_queued([retired], patience_ms=patience_ms))[0]

    return list(await asyncio.gather(*map(settled, tasks, jobs, found)))
