"""Place a job in its queue by the priority that its task's record has."""

from __future__ import annotations

from redis_state.models import TaskStatus
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue


async def place_by_record(store: RedisStateStore, queue: Queue, task: TaskStatusView) -> None:
    """Move the job of a task that waits to the place of its record's priority.

    The record is read again behind each move. So the last of several callers leaves the job where
    the record wants it, in whatever order they come. One that dies in between leaves its job to the
    sweeper, which finds the place. Errors: BackendUnavailable.
    """
    while True:
        await queue.move(Job.of(task))
        found = await store.tasks.look(task.session_id, task.task_id)
        if found is None or found.status is not TaskStatus.PENDING:
            return
        if found.priority == task.priority and found.attempts == task.attempts:
            return
        task = found
