"""The children of a running task, for its handler."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any, Unpack

from redis_state.errors import InvalidField
from redis_state.worker.handler.calls import ContextCalls
from redis_state.worker.tasks.children.children import ChildTasks, result_of
from redis_state.worker.tasks.children.requests import ChildTask, SpawnOptions, SpawnRequest
from redis_state.worker.tasks.execution.inbox import refuse_in_undo


class ContextChildren(ContextCalls):
    """The part of a handler's context that spawns other tasks, and waits for them."""

    _children: ChildTasks

    def spawn(
        self,
        handler: str,
        task_input: Any = None,
        *,
        name: str | None = None,
        **options: Unpack[SpawnOptions],
    ) -> Coroutine[Any, Any, ChildTask]:
        """Spawn a child task for another handler, in this session; return its handle.

        A child is spawned once per task. A later run gets the same child, found by its ``name``
        (the handler's by default) and its order among those of that name. The name is counted by
        this call, before it is awaited. By default the child waits in this task's queue, with its
        priority. Limits of its ``limit_key`` hold for it (see `Queues`): it has none by default,
        also if this task has one. It is cancelled with this task, unless ``isolate`` is given. A
        task may end before its children, which then continue. A checkpoint.

        Errors: InvalidField, also for a name that two asyncio tasks use; TaskCancelled, LeaseLost.
        """
        requested = SpawnRequest.read(self._started, handler, task_input, options)
        entry = self._steps.ask("child", handler if name is None else name)
        self._steps.check_same(entry, requested.asks)
        return self._spawn(entry, requested)

    def join(self, child: ChildTask) -> Coroutine[Any, Any, Any]:
        """Return a child's result; if the child is not terminal, end the run and wait for it.

        The worker is free while the task waits. The child's end starts the next run. The end is
        recorded like a step's result. A checkpoint. While a step of another asyncio task works, the
        run does not end.

        Errors: TaskFailed and TaskWasCancelled with the child's reason; InvalidField for a child of
        another task; TaskCancelled, LeaseLost.
        """
        refuse_in_undo("child")
        if child.parent_id != self.task.task_id or child.session_id != self.task.session_id:
            raise InvalidField("child", "is no child of this task")
        return self._join(child, self._steps.do(f"join {child.place}", self._end_of, (child,), {}))

    async def _spawn(self, entry: str, requested: SpawnRequest) -> ChildTask:
        with self._calling(entry):
            await self.checkpoint()
            recorded = self._started.journal.get(entry)
            if recorded is None:
                await self._steps.check_call(entry)
                await self._steps.rehearsed(entry)
            elif self._rehearses:
                return ChildTask(
                    self.task.session_id,
                    recorded["task"],
                    self.task.task_id,
                    entry.partition(":")[2],
                )
            with self._ending_if_paused():
                return await self._children.spawn(
                    self._started,
                    entry,
                    requested,
                    self._steps.lane(),
                    place=self._steps.place_of(entry),
                )

    async def _join(self, child: ChildTask, end: Coroutine[Any, Any, Any]) -> Any:
        return result_of(child.session_id, child.task_id, await end)

    async def _end_of(self, child: ChildTask) -> dict[str, Any]:
        with self._ending_if_paused():
            ended = await self._steps.open.end_run(
                partial(self._children.join, self._started, child.task_id),
                partial(self._children.look, self._started, child.task_id),
            )
        if ended is None:
            raise self._end_paused()
        return ended
