"""Submit the tasks that a schedule's record says are to be submitted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from redis_state.models import TaskState, TaskStatus, TaskType
from redis_state.store import RedisStateStore
from redis_state.stores.schedules import PlannedTask
from redis_state.stores.sessions.task_fields import NO_CONTEXT
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.move_parts import SKEW_MS
from redis_state.worker.tasks.submitting.submissions import NewSubmissions, Submission
from redis_state.worker.tasks.submitting.turns import OnBusy

log: logging.Logger = logging.getLogger(__name__)

# For so long the one that has decided on tasks, or found some undone, is alone in submitting them.
HOLD_MS = 5_000


class Submitter:
    """Submit planned tasks. A repetition finds them by their ids."""

    def __init__(self, store: RedisStateStore, queue: Queue) -> None:
        self._store = store
        self._queue = queue
        self._submissions = NewSubmissions(store, queue)

    async def submit(
        self,
        tasks: Sequence[PlannedTask],
        job: Mapping[str, Any],
        *,
        held_from_ms: int | None = None,
        in_order: bool = False,
    ) -> list[bool]:
        """Submit tasks; return of each whether it was new.

        A caller that has a claim submits within `HOLD_MS` of ``held_from_ms``, by the server's
        clock. So a process that was stopped does not submit again what ended and expired since. A
        task that is written and not queued is queued by a sweeper. Tasks that run in turn, or
        ``in_order``, are submitted one after another. With ``in_order`` one that is there and waits
        is in the queue before the next is submitted. Errors: LostRace after that; BackendError.
        """
        until_ms = None if held_from_ms is None else held_from_ms + HOLD_MS - SKEW_MS
        if in_order or turn_of(job) is not None:
            # Read together. One by one, those that are there could take all the time of a claim.
            there = await asyncio.gather(*map(self._look, tasks))
            new: list[bool] = []
            for task, found in zip(tasks, there, strict=True):
                new.append(found is None and await self._submit(task, job, until_ms))
                if in_order and _may_run(found):
                    await self._ensure_queued(task)
            return new
        return await asyncio.gather(*(self._submit(task, job, until_ms) for task in tasks))

    async def is_unfinished(self, task: PlannedTask) -> bool:
        """Return whether a task is there and has not ended."""
        found = await self._look(task)
        return found is not None and not found.status.is_terminal

    async def is_there(self, task: PlannedTask) -> bool:
        """Return whether a task is there."""
        return await self._look(task) is not None

    async def _look(self, task: PlannedTask) -> TaskStatusView | None:
        return await self._store.tasks.look(task.session_id, task.task_id)

    async def _ensure_queued(self, task: PlannedTask) -> None:
        # It may have begun since it was read with the others.
        found = await self._look(task)
        if found is not None and _may_run(found):
            # As one that comes now: by its time it could go before the one that came with it.
            await self._queue.ensure_queued([Job.ready(found)])

    async def _submit(
        self, task: PlannedTask, job: Mapping[str, Any], until_ms: int | None
    ) -> bool:
        session_id, task_id = task.session_id, task.task_id
        state = TaskState(
            task_id=task_id,
            session_id=session_id,
            status=TaskStatus.PENDING,
            task_type=TaskType.BACKGROUND,
            priority=job["priority"],
            context_snapshot=NO_CONTEXT,
            description=job["description"],
        )
        new = Submission(
            handler=job["handler"],
            task_input=job["input"],
            queue=job["queue"] or self._queue.name,
            limit_key=job.get("limit_key"),
            written_key=job.get("written_key"),
            policy=turn_of(job),
            attributes=job.get("attributes"),
            until_ms=until_ms,
        )
        return await self._submissions.submit(state, new)


def _may_run(found: TaskStatusView | None) -> bool:
    return found is not None and found.ours and found.status is TaskStatus.PENDING


def turn_of(job: Mapping[str, Any]) -> OnBusy | None:
    """Return what happens to others of a task's session; None for one that is not in turn."""
    return OnBusy.of(job.get("on_busy"), in_turn=job.get("in_turn", False))
