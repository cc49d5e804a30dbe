"""What a client reads of tasks and of the pool, and does not change."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from redis_state import limits
from redis_state.models import TaskState
from redis_state.store import RedisStateStore
from redis_state.worker.client.unserved import (
    HandlerVersion,
    UnservedTasks,
    count_versions,
    list_unserved,
)
from redis_state.worker.observe.registry import WorkerInfo, WorkerRegistry
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.children.children import ChildTasks
from redis_state.worker.tasks.recorded.compensations import Compensation, read_compensations
from redis_state.worker.tasks.recorded.snapshots import FullSnapshot, Snapshots, StepSnapshot
from redis_state.worker.tasks.views.archived import read_archived_step, view_archived
from redis_state.worker.tasks.views.dead_list import DeadPage, list_dead, list_first_dead
from redis_state.worker.tasks.views.stream import list_unfinished


class ClientReading(ABC):
    """What a client reads of what is there already."""

    store: RedisStateStore
    _queue: Queue
    _children: ChildTasks
    _snapshots: Snapshots

    @abstractmethod
    async def get(self, session_id: str, task_id: str) -> TaskState | None:
        """Return a task, or None."""

    async def children(self, session_id: str, task_id: str) -> Sequence[TaskState]:
        """List the tasks that a task has spawned, the first spawned first."""
        names = await self._children.children(session_id, task_id)
        loads = [self.get(session_id, name) for name in names]
        found = [state for state in await asyncio.gather(*loads) if state is not None]
        return sorted(found, key=lambda state: state.created_at)

    async def unfinished(self, *, limit: int = 100) -> Sequence[TaskState]:
        """List unfinished tasks of all sessions, the one made first, first.

        None is left out and none comes twice because tasks change meanwhile.
        """
        return await list_unfinished(self.store, limits.count("limit", limit, least=0))

    async def snapshots(self, session_id: str, task_id: str) -> list[StepSnapshot]:
        """List the recorded steps of a task in order, without the results, also of an archived one.

        Errors: CorruptState if a record is damaged.
        """
        found = await self._snapshots.list(session_id, task_id)
        if found or not await self._has_left(session_id, task_id):
            return found
        archived = await view_archived(self.store, session_id, task_id)
        return [] if archived is None else list(archived.steps)

    async def snapshot(self, session_id: str, task_id: str, version: int) -> FullSnapshot | None:
        """Return one snapshot with its result, however large, or None; also of an archived task.

        Errors: CorruptState; PayloadLost.
        """
        found = await self._snapshots.get(session_id, task_id, version)
        if found is not None or not await self._has_left(session_id, task_id):
            return found
        return await read_archived_step(self.store, session_id, task_id, version)

    async def last_checkpoint(self, session_id: str, task_id: str) -> FullSnapshot | None:
        """Return the newest snapshot that a `checkpoint_step` made, or None."""
        return await self._snapshots.last_checkpoint(session_id, task_id)

    async def compensations(self, session_id: str, task_id: str) -> list[Compensation]:
        """List what a task's handler registered to be undone, and what became of it.

        In the order of the registrations, also of an archived task. Errors: CorruptState if a
        record is damaged.
        """
        found = await read_compensations(self.store, session_id, task_id)
        if found or not await self._has_left(session_id, task_id):
            return found
        archived = await view_archived(self.store, session_id, task_id)
        return [] if archived is None else list(archived.compensations)

    async def _has_left(self, session_id: str, task_id: str) -> bool:
        """Return whether there is an archive, and Redis has no such task."""
        if not self.store.settings.has_archive:
            return False
        key = self.store.base.keys.task(session_id, task_id)
        return not await self.store.transport.commands.exists(key)

    async def workers(self) -> list[WorkerInfo]:
        """List the live worker processes. See `WorkerRegistry`."""
        return await WorkerRegistry(self.store).list()

    async def unserved(self, *, limit: int = 100) -> Sequence[UnservedTasks]:
        """List what waits for workers with a version of its handler, by queue and version.

        A task is listed once a worker that lacks the version has come to it. At most ``limit``
        tasks of each are named.
        """
        most = limits.count("limit", limit, least=0)
        return await list_unserved(self.store, self._queue, limit=most)

    async def versions(self, *, handler: str | None = None) -> Sequence[HandlerVersion]:
        """Count the unfinished tasks that need each version of a handler. It reads each of them.

        A version without tasks may be removed from the workers.
        """
        return await count_versions(self.store, handler=handler)

    async def dead(self, *, limit: int = 100) -> Sequence[TaskState]:
        """List dead letters of all sessions, the newest first: FAILED tasks that were given up.

        Their workers kept dying, the server kept refusing them, or no worker could read them.
        """
        return await list_first_dead(self.store, limits.count("limit", limit, least=0))

    async def list_dead(self, *, limit: int = 100, after: str | None = None) -> DeadPage:
        """Return a page of the dead letters of all sessions, the newest first. See `dead`.

        ``after`` is the cursor of the page before. A dead letter that stays one is neither skipped
        nor repeated, whatever is retried or given up meanwhile. A page has at most 1,000. Errors:
        InvalidField, also for a cursor that is none.
        """
        return await list_dead(self.store, limit=limit, after=after)
