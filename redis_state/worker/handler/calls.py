"""What every call of a handler shares: its checkpoint, and the end of a run by a pause."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from redis_state.errors import InvalidTransition
from redis_state.models import TaskState, TaskStatus
from redis_state.store import RedisStateStore
from redis_state.worker.observe import tracing as telemetry
from redis_state.worker.tasks.execution.exits import TaskPaused
from redis_state.worker.tasks.execution.inbox import Inbox
from redis_state.worker.tasks.execution.steps import Steps
from redis_state.worker.tasks.started import StartedRun


class ContextCalls:
    """What the calls of a handler have in common."""

    store: RedisStateStore
    inbox: Inbox
    _started: StartedRun
    _steps: Steps

    @property
    def task(self) -> TaskState:
        """The task at the beginning of this run."""
        return self._started.state

    async def checkpoint(self) -> None:
        """Apply steering: wait while a PAUSE event is in force. Errors: TaskCancelled."""
        await self.inbox.checkpoint()

    @property
    def _rehearses(self) -> bool:
        return self._started.replay.rehearsal is not None

    @contextmanager
    def _calling(self, entry: str) -> Generator[None, None, None]:
        """End a call when it has returned or failed, see `CallOrder`."""
        try:
            yield
        finally:
            self._started.order.end(entry)

    @contextmanager
    def _ending_if_paused(self) -> Generator[None, None, None]:
        """Treat a pause by another coroutine of this run as the end of the run."""
        try:
            yield
        except InvalidTransition as denied:
            if denied.current != TaskStatus.PAUSED.value:
                raise
            raise self._end_paused() from None

    def _end_paused(self) -> TaskPaused:
        if isinstance(self.inbox.over, TaskPaused):
            return self.inbox.over
        telemetry.event("pause")
        paused = TaskPaused()
        self.inbox.close(paused)
        return paused
