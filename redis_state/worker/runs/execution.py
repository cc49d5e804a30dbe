"""The handler of a run: call it, and stop it with all that it has begun."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from inspect import isawaitable
from typing import Any, cast

from redis_state.serialization.payloads import Payloads
from redis_state.store import RedisStateStore
from redis_state.worker.handler.context import TaskContext
from redis_state.worker.handler.versions import Chosen
from redis_state.worker.runs.config import RunConfig
from redis_state.worker.tasks.children.children import ChildTasks
from redis_state.worker.tasks.execution.compensation import Compensations
from redis_state.worker.tasks.execution.exits import Exited, returned
from redis_state.worker.tasks.execution.inbox import Inbox, TaskCancelled
from redis_state.worker.tasks.started import StartedRun

log: logging.Logger = logging.getLogger(__name__)

# How long a handler that was cancelled may take to clean up.
CLEAN_UP_S = 5.0


class HandlerExecution:
    """The part of a run that calls its handler, and stops it."""

    _store: RedisStateStore
    _config: RunConfig
    _started: StartedRun
    _task_id: str
    _payloads: Payloads
    _on_begun: Callable[[], None] | None
    _children: ChildTasks
    _inbox: Inbox
    _chosen: Chosen
    _compensations: Compensations
    _handling: asyncio.Task[Any] | None
    _context: TaskContext | None

    async def _handle(self) -> Any:
        name = self._started.handler
        handler = self._chosen.code
        if handler is None:
            self._inbox.raise_if_over()
            known = ", ".join(sorted(self._config.handlers)) or "none"
            raise LookupError(f"no handler named {name!r} in this worker, which has {known}")
        self._context = context = TaskContext(
            self._store,
            self._started,
            self._inbox,
            self._config.worker,
            steps=self._config.steps,
            child_tasks=self._children,
            compensations=self._compensations,
        )
        if self._chosen.is_new:
            await context.record_version(self._chosen.version)
        try:
            context.begin(cast("asyncio.Task[Any]", asyncio.current_task()))
            if self._on_begun is not None:
                self._on_begun()
            if self._config.may_block:
                # Else nobody would find the task as running before the handler yields.
                self._store.transport.sender.hurry()
            outcome: Any = handler(context)
            outcome = returned(await outcome if isawaitable(outcome) else outcome)
            await context.check_changed()
            if outcome is not None:
                outcome = await self._payloads.put("result", outcome)
        except (SystemExit, KeyboardInterrupt) as error:
            # asyncio would end the whole worker for it.
            raise Exited.by(error) from error
        else:
            return outcome

    async def _stop(self, handling: asyncio.Task[Any]) -> None:
        handling.cancel()
        await asyncio.wait({handling}, timeout=CLEAN_UP_S)
        if not handling.done():
            log.error("the handler of task %r goes on after it was cancelled", self._task_id)
            self._inbox.close(TaskCancelled("the run is over"))

    async def _stop_rest(self) -> None:
        """Cancel the steps that the handler has left: no result of theirs is recorded any more."""
        if self._context is None or not (rest := self._context.working()):
            return
        rest.discard(cast("asyncio.Task[Any]", self._handling))
        if not rest:
            return
        self._inbox.close(TaskCancelled("the run is over"))
        for task in rest:
            task.cancel()
        _, stuck = await asyncio.wait(rest, timeout=CLEAN_UP_S)
        if stuck:
            log.error("parts of the handler of task %r go on", self._task_id)
