"""The inbox: steering that reaches a task, whatever process runs it.

It is the task's part of the session's steering log, so it lives as long as the task, not the run.
Each run reads it from the beginning, as each run begins at the handler's start: what an earlier
run was told, a later one is told again, before its first checkpoint. What an earlier task of the
same id was told is left out. What steers the run itself
(CANCEL, PAUSE, RESUME, PRIORITIZE) acts when it arrives; what resolves a pause has acted before;
the rest waits until the handler takes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import NoReturn

from redis_state import limits
from redis_state.errors import BackendError, CursorGap
from redis_state.models import SteeringEvent, SteeringEventType
from redis_state.store import RedisStateStore

log: logging.Logger = logging.getLogger(__name__)

_AGAIN_S = 1.0


class TaskCancelled(BaseException):
    """The task was cancelled. Raised at the handler's next checkpoint; let it pass.

    Not an Exception, so that a handler that goes on after any error does not go on after this.
    """

    def __init__(self, reason: str | None) -> None:
        super().__init__(reason or "cancelled")
        self.reason = reason


class Inbox:
    """Steering of one task, for its running handler."""

    def __init__(
        self,
        store: RedisStateStore,
        session_id: str,
        task_id: str,
        *,
        after: str | None,
        on_hard_cancel: Callable[[], None],
        on_priority: Callable[[int], None],
    ) -> None:
        self._store = store
        self._session_id = session_id
        self._task_id = task_id
        self._after = after
        self._on_hard_cancel = on_hard_cancel
        self._on_priority = on_priority
        self._waiting: deque[SteeringEvent] = deque()
        self._arrived = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._cancelled: TaskCancelled | None = None
        self._over: BaseException | None = None
        # Asked at each checkpoint, with the steps and updates that are about to begin.
        self.guarding: Callable[[int, int], Awaitable[None]] | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled."""
        return self._cancelled is not None

    @property
    def cancel_reason(self) -> str | None:
        """Why the task was cancelled, if that was said."""
        return None if self._cancelled is None else self._cancelled.reason

    @property
    def over(self) -> BaseException | None:
        """What ended the run, for whoever goes on in spite of it."""
        return self._over

    def close(self, reason: BaseException) -> None:
        """Have every further checkpoint of this run raise ``reason``. The first one stands."""
        self._over = self._over or reason
        self._open.set()
        self._arrived.set()

    def take(self) -> list[SteeringEvent]:
        """Take what has arrived, in order. Does not wait."""
        events = list(self._waiting)
        self._waiting.clear()
        self._arrived.clear()
        return events

    async def wait(self, timeout_s: float | None = None) -> list[SteeringEvent]:
        """Wait until something arrives, then take it; nothing after ``timeout_s``.

        Errors: TaskCancelled.
        """
        try:
            async with asyncio.timeout(limits.timeout("timeout_s", timeout_s)):
                while not self._waiting:
                    self.raise_if_over()
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            return []
        self.raise_if_over()
        return self.take()

    def cancel(self, reason: str) -> None:
        """Have the task be cancelled at its next checkpoint, unless it is already."""
        self._cancelled = self._cancelled or TaskCancelled(reason)
        self._open.set()
        self._arrived.set()

    async def checkpoint(self, *, steps: int = 0, updates: int = 0) -> None:
        """Let steering act: wait while the task is told to pause; then ask the guards.

        ``steps`` and ``updates`` are what the task is about to do. Errors: TaskCancelled,
        TaskStopped.
        """
        self.raise_if_over()
        await self._open.wait()
        self.raise_if_over()
        if self.guarding is not None:
            await self.guarding(steps, updates)
            self.raise_if_over()

    async def until_over(self) -> NoReturn:
        """Wait until the run is over, and say why. Errors: TaskCancelled, LeaseLost."""
        while True:
            self.raise_if_over()
            self._arrived.clear()
            await self._arrived.wait()

    def raise_if_over(self) -> None:
        """Errors: TaskCancelled, LeaseLost."""
        over = self._over or self._cancelled
        if over is not None:
            raise over

    async def catch_up(self) -> None:
        """Read what is there already, so that a handler starts with all of it."""
        while True:
            try:
                page = await self._store.read_steering(
                    self._session_id, after=self._after, task_id=self._task_id
                )
            except CursorGap as gap:
                log.warning("steering of task %s was dropped: %s", self._task_id, gap)
                self._after = gap.resume_after
                continue
            for entry in page.entries:
                self._receive(entry.value)
            self._after = page.cursor
            if page.at_end:
                return

    async def follow(self) -> None:
        """Receive what arrives from now on, until cancelled."""
        while True:
            entries = self._store.watch_steering(
                self._session_id, after=self._after, task_id=self._task_id
            )
            try:
                async with aclosing(entries):
                    async for entry in entries:
                        self._receive(entry.value)
                        self._after = entry.cursor
            except CursorGap as gap:
                log.warning("steering of task %s was dropped: %s", self._task_id, gap)
                self._after = gap.resume_after
            except BackendError as error:
                log.warning("steering of task %s is not heard: %s", self._task_id, error)
                await asyncio.sleep(_AGAIN_S)

    def _receive(self, event: SteeringEvent) -> None:
        match event.event_type:
            case SteeringEventType.CANCEL:
                self._cancelled = TaskCancelled(_text(event.payload.get("reason")))
                self._open.set()
                if event.payload.get("hard") is True:
                    self._on_hard_cancel()
            case SteeringEventType.PAUSE:
                self._open.clear()
            case SteeringEventType.RESUME:
                self._open.set()
            case SteeringEventType.PRIORITIZE:
                priority = event.payload.get("priority")
                if isinstance(priority, int):
                    self._on_priority(priority)
            case SteeringEventType.APPROVE | SteeringEventType.REJECT if (
                "resume_token" in event.payload
            ):
                # It has acted already: the pause that it resolved returns it.
                pass
            case _:
                self._waiting.append(event)
        self._arrived.set()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
