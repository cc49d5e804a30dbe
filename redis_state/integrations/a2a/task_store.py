"""The SDK's plain TaskStore: for handlers that know no versions (SDK 1.1, the legacy one).

It stands on the same tasks as the versioned store. A plain save knows no version, so the last one
wins, with one exception: a task that has ended stays in its state, and a deleted one stays deleted.
"""

from __future__ import annotations

from functools import partial

from a2a.server.context import ServerCallContext
from a2a.server.tasks.task_store import TaskStore
from a2a.types.a2a_pb2 import Task, TaskState

from redis_state.integrations.a2a.backend import A2ABackend
from redis_state.integrations.a2a.convert import draft_of, explained, protocol_errors, task_of
from redis_state.integrations.a2a.scoped_tasks import ScopedTasks
from redis_state.stores.a2a.task_model import UNLESS_REVIVED, Phase
from redis_state.stores.a2a.tasks import new_write


class RedisTaskStore(ScopedTasks, TaskStore):
    """Tasks on Redis, each owner's of each tenant apart.

    ``holds_lease`` says that the agents of the tasks saved here run in this process: when it dies,
    what they worked on is ended as failed.
    """

    def __init__(self, backend: A2ABackend, *, holds_lease: bool = False) -> None:
        super().__init__(backend)
        self._holds_lease = holds_lease

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Save a task whole. Errors: UnsupportedOperationError for one that has ended in another
        state, TaskNotFoundError for one that was deleted, InvalidParamsError for one too large.

        A server that only taps the task's queue writes nothing but a cancel: there the legacy
        handler saves what it receives, which is older than what the feeding server has saved.
        A cancel of a task that is worked on elsewhere keeps what was saved since it was read.
        """
        cancels = task.status.state == TaskState.TASK_STATE_CANCELED
        if self.backend.only_listens(task.id) and not cancels:
            return
        ref = self.backend.ref(task.id, context)
        draft = draft_of(*explained(task, None, self.backend.owner.reason(ref)))
        with protocol_errors():
            elsewhere = cancels and ref not in self.backend.owner.held
            if elsewhere and await self._cancel(ref, task, None, None) is not None:
                return
            if self._holds_lease:
                await self.backend.owner.save(ref, draft, UNLESS_REVIVED)
            else:
                write = new_write(self.backend.owner.name)
                tasks = self.backend.tasks
                await self.backend.owner.repeat(
                    partial(tasks.write, ref, draft, UNLESS_REVIVED, write=write)
                )

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return a copy of the task, or None. One whose server has died is ended first."""
        with protocol_errors():
            found = await self.backend.read(self.backend.ref(task_id, context))
        if found is None or found.phase is Phase.GONE:
            return None
        return task_of(found.body)
