"""What follows the steering of a task for its run: it reads the log, and passes each event on.

An event may be passed on twice, after a rollback of the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from redis_state.backoff import Backoff
from redis_state.errors import CursorGap, RedisStateError
from redis_state.models import SteeringEvent
from redis_state.store import RedisStateStore
from redis_state.timers import SharedTimer, SharedTimers

log: logging.Logger = logging.getLogger(__name__)

AGAIN_S = 1.0
_BACKOFF_S = Backoff(AGAIN_S, 30.0)
_PATIENCE_S = 300.0
# A run that ends before, without a checkpoint, need not subscribe.
_FOLLOW_AFTER_S = 0.05


class SteeringFollower:
    """Follow the steering of one task, from a cursor on."""

    def __init__(
        self,
        store: RedisStateStore,
        session_id: str,
        task_id: str,
        *,
        after: str | None,
        heard_from_ms: int,
        receive: Callable[[SteeringEvent], None],
        timers: SharedTimers,
    ) -> None:
        self._store = store
        self._session_id = session_id
        self._task_id = task_id
        self._begins_after = after
        self._after = after
        self._heard_from_ms = heard_from_ms
        self._receive = receive
        self._timers = timers
        self._starting: SharedTimer | asyncio.Handle | None = None
        self._is_over = False
        # What follows now.
        self.task: asyncio.Task[None] | None = None

    async def catch_up(self) -> None:
        """Read what is there already, so that a handler starts with all of it."""
        while True:
            try:
                page = await self._store.read_steering(
                    self._session_id, after=self._after, task_id=self._task_id
                )
            except CursorGap as gap:
                self._resume(gap)
                continue
            for entry in page.entries:
                if self._is_heard(entry.cursor):
                    self._receive(entry.value)
            self._after = page.cursor
            if page.at_end:
                return

    def begin(self) -> None:
        """Receive what arrives from now on: after a moment, or from the first checkpoint on."""
        self._starting = self._timers.after(_FOLLOW_AFTER_S, self.follow_now)

    def stop(self) -> None:
        """Receive nothing more. What follows is still to be ended, once nobody waits for that."""
        self._is_over = True
        if self._starting is not None:
            self._starting.cancel()
            # An undo that waits after a handler that ended at once must not begin it either.
            self._starting = None

    async def end(self) -> None:
        """Receive nothing more, and end what follows."""
        self.stop()
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task})
            # It refers back to this by the error that has ended it.
            self.task = None

    def let_go(self) -> None:
        """Drop what refers back to the run, see `Inbox.let_go`. Call it at the end."""
        self._receive = _unheard

    def follow_now(self) -> None:
        """Receive what arrives from now on, unless it is not to begin, or does so already.

        It begins a turn of the loop later. The call that the handler makes now leaves before it.
        """
        if isinstance(self._starting, SharedTimer) and self.task is None:
            self._starting.cancel()
            self._starting = asyncio.get_running_loop().call_soon(self._follow)

    def _follow(self) -> None:
        self.task = asyncio.create_task(self.follow())
        self.task.add_done_callback(self._follow_again)

    def _follow_again(self, stopped: asyncio.Task[None]) -> None:
        """Follow again if something else than the end of the run has stopped it."""
        # Read in any case, or asyncio tells of it with its traceback.
        error = None if stopped.cancelled() else stopped.exception()
        if self._starting is None:
            return
        cause = "cancelled" if error is None else type(error).__name__
        log.warning("steering of task %r was not followed any more: %s", self._task_id, cause)
        self.task = None
        self._starting = self._timers.after(AGAIN_S if error else 0, self.follow_now)

    async def follow(self) -> None:
        """Receive what arrives from now on, until cancelled."""
        # When the run began: see `catch_up`, which is not called if there was nothing.
        was_read, failures = True, 0
        while True:
            entries = self._store.steering.watch(
                self._session_id,
                after=self._after,
                task_id=self._task_id,
                reconnect_timeout_s=_PATIENCE_S,
                was_read=was_read,
            )
            was_read = False
            try:
                async with aclosing(entries):
                    async for entry in entries:
                        if self._is_over:
                            return
                        # Else one that cannot be received would keep all later ones away.
                        self._after, failures = entry.cursor, 0
                        if self._is_heard(entry.cursor):
                            self._receive(entry.value)
            except CursorGap as gap:
                self._resume(gap)
            except RedisStateError as error:
                log.warning("steering of task %r is not heard: %s", self._task_id, error)
                await asyncio.sleep(AGAIN_S)
            except Exception as error:
                log.warning(
                    "steering of task %r is not heard: %s",
                    self._task_id,
                    type(error).__name__,
                    exc_info=self._store.base.payloads.loggable(error),
                )
                failures += 1
                await asyncio.sleep(_BACKOFF_S.after(failures))

    def _is_heard(self, cursor: str) -> bool:
        """Return whether a row is of this task, and not of a much earlier one of its id."""
        return int(cursor.split("-")[1]) >= self._heard_from_ms

    def _resume(self, gap: CursorGap) -> None:
        """Read on where the log says, or from the beginning if the server lost rows.

        What was received before is not received again, so no clock is needed to find what is new.
        """
        log.warning("steering of task %r was dropped: %s", self._task_id, gap)
        again = gap.reason != "trimmed" and gap.cursor != self._begins_after
        self._after = self._begins_after if again else gap.resume_after


def _unheard(_: SteeringEvent) -> None:
    """Do nothing with an event."""
