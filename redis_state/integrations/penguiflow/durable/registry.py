"""The tasks of a session as all processes have them. Who runs a task has its lease.

A task's lease is taken before the task is saved, renewed while it has not ended, and given back at
its end. Every save of the task carries the lease's epoch. So a task whose lease has run out was
left by its process, for every reader. A process that was only stopped, and wakes up after another
has settled its task or started it again, can no longer change it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

from penguiflow.sessions import TaskRegistry
from penguiflow.state import TaskState, TaskStatus

from redis_state.errors import BackendError, LeaseLost
from redis_state.primitives.lease import HeldLease, Leases, Renewal
from redis_state.scripts import Fence
from redis_state.stores.base import ms
from redis_state.stores.sessions.task_status import TaskStatusView

log: logging.Logger = logging.getLogger(__name__)

_AGAIN_S = 0.2
ENDED: frozenset[TaskStatus] = frozenset(
    {TaskStatus.COMPLETE, TaskStatus.FAILED, TaskStatus.CANCELLED}
)
LEFT = "the process that ran the task is gone"


class TaskLeases:
    """The leases of the tasks that one session runs."""

    def __init__(self, store: Any, session_id: str, *, on_lost: Callable[[str], None]) -> None:
        settings = store.settings
        self._store = store
        self._session_id = session_id
        self._on_lost = on_lost
        self._leases = Leases(store.base.scripts, keep_ms=ms(settings.active_task_ttl))
        self.duration_s: float = settings.session_task_lease.total_seconds()
        self._duration_ms = ms(settings.session_task_lease)
        self._held: dict[str, HeldLease] = {}
        self._renewals: dict[str, Renewal] = {}

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._held

    def names(self) -> list[str]:
        """Return the tasks that this session runs."""
        return list(self._held)

    def fence(self, task_id: str) -> Fence | None:
        """Return what a save of a task carries."""
        held = self._held.get(task_id)
        return None if held is None else held.fence

    async def take(self, task_id: str) -> bool:
        """Take a task's lease; False if another session has it."""
        if task_id not in self._held:
            key = self._store.tasks.keys(self._session_id, task_id).lease
            held = await self._leases.acquire(key, duration_ms=self._duration_ms)
            if held is None:
                return False
            self._held[task_id] = held
        return True

    def keep(self, task_id: str) -> None:
        """Renew a lease that was taken until it is given back."""
        if task_id not in self._renewals:
            self._renewals[task_id] = self._leases.keep(
                self._held[task_id],
                duration_ms=self._duration_ms,
                on_lost=lambda _: self._on_lost(task_id),
            )

    async def give_back(self, task_id: str) -> None:
        """Release a lease. If the server is unreachable it expires."""
        held = self.drop(task_id)
        if held is not None:
            await self._leases.give_back(held)

    def drop(self, task_id: str) -> HeldLease | None:
        """Renew a lease no more, and write under it no more."""
        renewal = self._renewals.pop(task_id, None)
        if renewal is not None:
            renewal.stop()
        return self._held.pop(task_id, None)

    async def free(self, task_id: str) -> None:
        """Give back a task's lease in the name of its holder."""
        key = self._store.tasks.keys(self._session_id, task_id).lease
        owner, epoch = await self._store.base.fetch(key, ("owner", "epoch"))
        if owner and epoch:
            await self._leases.release(HeldLease(key, owner.decode(), int(epoch)))

    async def look(self, task_id: str) -> TaskStatusView | None:
        """Return how a stored task stands."""
        found: TaskStatusView | None = await self._store.tasks.look(self._session_id, task_id)
        return found


class SharedRegistry(TaskRegistry):  # type: ignore[misc]  # penguiflow has no types
    """PenguiFlow's registry of a session's tasks, over a store that its processes share.

    What runs here is what this process has in memory; everything else is read from the store each
    time. A task that runs elsewhere is not changed here, nor the status of one that has ended.
    Errors, beside PenguiFlow's: BackendError.
    """

    def __init__(self, store: Any, session_id: str, *, on_lost: Callable[[str], None]) -> None:
        super().__init__(persist_task=self._save)
        self._store = store
        self._session_id = session_id
        self._lost = on_lost
        self.leases: TaskLeases = TaskLeases(store.store, session_id, on_lost=self._lose)
        self._taking = asyncio.Lock()
        self._ending: set[str] = set()
        # Runs that have not begun, and those of them that save that they begin. A task that a
        # planner resumes, or that is steered, is set RUNNING too: that begins no run.
        self.expected: set[tuple[str, asyncio.Task[Any] | None]] = set()
        self.starting: set[tuple[str, asyncio.Task[Any] | None]] = set()

    async def create_task(
        self, *, session_id: str, task_id: str | None = None, **options: Any
    ) -> TaskState:
        """Make a task that this process runs from now on.

        Another process that still runs one of this id is taken over: it stops, and changes the
        task no more.
        """
        task_id = task_id or secrets.token_hex(8)
        while not await self.leases.take(task_id):
            await self.leases.free(task_id)
        try:
            self.leases.keep(task_id)
            return await super().create_task(session_id=session_id, task_id=task_id, **options)
        except BaseException:
            await super().remove_task(task_id)
            await self.leases.give_back(task_id)
            raise

    def remembered(self, task_id: str) -> TaskState | None:
        """Return a task as this process knows it, without a look at the store."""
        task: TaskState | None = self._tasks.get(task_id)
        return task

    async def get_task(self, task_id: str) -> TaskState | None:
        """Return the present task, of any process."""
        if task_id not in self.leases:
            await self._read(task_id)
        return self.remembered(task_id)

    async def list_tasks(
        self, session_id: str, *, status: TaskStatus | None = None
    ) -> list[TaskState]:
        """Return the session's tasks as they are now, by first save."""
        stored = await self._store.list_tasks(session_id)
        names = [state.task_id for state in stored]
        for state in stored:
            await self._show(state)
        names += [name for name in self.leases.names() if name not in names]
        for known in await super().list_tasks(session_id):
            if known.task_id not in names:
                await super().remove_task(known.task_id)
        found = [task for name in names if (task := self.remembered(name)) is not None]
        return [task for task in found if status is None or task.status == status]

    async def list_children(self, task_id: str) -> list[str]:
        """Return the tasks that a task has spawned, in any process."""
        await self.list_tasks(self._session_id)
        found: list[str] = await super().list_children(task_id)
        return found

    async def update_status(self, task_id: str, status: TaskStatus) -> TaskState | None:
        """Change a task's status; None if it may not be changed here."""
        start = task_id, asyncio.current_task()
        if status is TaskStatus.RUNNING and start in self.expected:
            self.expected.remove(start)
            self.starting.add(start)
        async with self._changing(task_id, status) as may_change:
            if not may_change:
                return None
            changed: TaskState | None = await super().update_status(task_id, status)
            return changed

    async def update_task(
        self, task_id: str, *, status: TaskStatus | None = None, **changes: Any
    ) -> TaskState | None:
        """Change a task; None if it may not be changed here."""
        async with self._changing(task_id, status) as may_change:
            if not may_change:
                return None
            changed: TaskState | None = await super().update_task(task_id, status=status, **changes)
            return changed

    async def update_priority(self, task_id: str, priority: int) -> TaskState | None:
        """Change a task's priority; None if it may not be changed here."""
        async with self._changing(task_id, None) as may_change:
            if not may_change:
                return None
            changed: TaskState | None = await super().update_priority(task_id, priority)
            return changed

    async def runs_elsewhere(self, task_id: str) -> bool:
        """Return whether another process runs a task, or a worker of the pool is to."""
        if task_id in self.leases:
            return False
        standing = await self.leases.look(task_id)
        if standing is None or standing.status.is_terminal:
            return False
        return standing.ours or standing.left_ms > 0

    async def settle(self, task_id: str, *, alone: bool) -> TaskState | None:
        """Fail a task that its process has left, and return it; None if none has.

        ``alone`` says that no other process has the session: then it need not run out first. A
        task that never had a lease is left as it is: a plain session may run it.
        """
        standing = None if task_id in self.leases else await self.leases.look(task_id)
        if standing is None or standing.status.is_terminal or standing.ours or not standing.epoch:
            return None
        if standing.left_ms > 0:
            if not alone:
                return None
            await self.leases.free(task_id)
        return await self.update_task(task_id, status=TaskStatus.FAILED, error=LEFT)

    async def aclose(self) -> None:
        """Give back all leases, but those under which a task's end is being saved."""
        held = [name for name in self.leases.names() if name not in self._ending]
        await asyncio.gather(*map(self.leases.give_back, held))

    @asynccontextmanager
    async def _changing(self, task_id: str, status: TaskStatus | None) -> AsyncGenerator[bool]:
        """Hold a task's lease for a change; the block gets whether the change may be made."""
        if task_id in self.leases:
            yield True
            return
        async with self._taking:
            standing = await self.leases.look(task_id)
            if standing is None or standing.ours or not await self.leases.take(task_id):
                yield False
                return
            try:
                await self._read(task_id, whole=True)
                known = self.remembered(task_id)
                yield known is not None and (
                    known.status not in ENDED or status is None or status == known.status
                )
            finally:
                await self.leases.give_back(task_id)

    async def _save(self, state: TaskState) -> None:
        """Save a task under its lease; at its end give that back."""
        task_id = state.task_id
        fence = self.leases.fence(task_id)
        if fence is None:  # lost in the meantime
            return
        try:
            if state.status in ENDED:
                await self._save_end(state, fence)
            else:
                await self._store.save_task(state, fence=fence)
        except LeaseLost:
            self._lose(task_id)
            return
        if state.status in ENDED:
            await self.leases.give_back(task_id)

    async def _save_end(self, state: TaskState, fence: Fence) -> None:
        """Save a task's end, for a lease's length as often as it takes while the server is away.

        After that its lease is not renewed any more. So the task is settled, in any process, and
        is not RUNNING as long as this process lives.
        """
        task_id, clock = state.task_id, asyncio.get_running_loop().time
        until = clock() + self.leases.duration_s
        self._ending.add(task_id)
        try:
            while True:
                try:
                    await self._store.save_task(state, fence=fence)
                except BackendError as error:
                    if clock() + _AGAIN_S > until:
                        self.leases.drop(task_id)
                        # What is stored counts from now on.
                        await super().remove_task(task_id)
                        raise
                    log.warning("the end of task %r is not saved yet: %s", task_id, error)
                    await asyncio.sleep(_AGAIN_S)
                else:
                    return
        finally:
            self._ending.discard(task_id)

    def _lose(self, task_id: str) -> None:
        self.leases.drop(task_id)
        self._lost(task_id)

    async def _read(self, task_id: str, *, whole: bool = False) -> None:
        state = await self._store.store.tasks.load(self._session_id, task_id)
        if state is not None:
            await self._show(state, whole=whole)
        elif whole or task_id not in self.leases:
            await super().remove_task(task_id)

    async def _show(self, state: TaskState, *, whole: bool = False) -> None:
        """Bring a task up to date, in the object that was handed out."""
        known = self.remembered(state.task_id)
        if known is None:
            await super().seed_tasks([state])
        elif whole or not self._is_newer(known, state):
            for field in fields(state):
                setattr(known, field.name, getattr(state, field.name))

    def _is_newer(self, known: TaskState, state: TaskState) -> bool:
        if known.task_id in self.leases:
            return True
        # Read before it ended here.
        older: bool = state.updated_at <= known.updated_at
        return known.status in ENDED and state.status not in ENDED and older


__all__ = ["ENDED", "LEFT", "SharedRegistry", "TaskLeases"]
