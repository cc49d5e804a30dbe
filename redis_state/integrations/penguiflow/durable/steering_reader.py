"""The reader of one task's steering: what another process sent, fed in order to the session that
runs the task.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from penguiflow.state import SteeringEvent, SteeringEventType

from redis_state.errors import BackendError, CursorGap, RedisStateError
from redis_state.integrations.penguiflow.adapter.private_names import has_room, inbox_of
from redis_state.integrations.penguiflow.durable.registry import ENDED
from redis_state.memory.keys import heard_steering
from redis_state.stores.sessions.session_log import Entry

if TYPE_CHECKING:
    from redis_state.integrations.penguiflow.sessions import SteeringBridge

log: logging.Logger = logging.getLogger(__name__)

_AGAIN_S = 1.0
_CHECK_FOR_ROOM_S = 0.05

_MESSAGES = frozenset(
    {
        SteeringEventType.USER_MESSAGE,
        SteeringEventType.INJECT_CONTEXT,
        SteeringEventType.REDIRECT,
    }
)
# What a reader feeds: of a task that runs here; that nobody runs; that has ended.
ALL: frozenset[SteeringEventType] = frozenset(SteeringEventType)
OF_OWNERS: frozenset[SteeringEventType] = frozenset(
    {SteeringEventType.CANCEL, SteeringEventType.PRIORITIZE}
)
APPROVALS: frozenset[SteeringEventType] = frozenset(
    {SteeringEventType.APPROVE, SteeringEventType.REJECT}
)


class SteeringReader:
    """A reader of one task's part of the log, which feeds it in order.

    Messages wait here while the task's inbox has no room for them, because the inbox itself would
    drop them. Events that steer the run (CANCEL, PAUSE, ...) do not wait behind them. ``recorded``
    is the cursor before which everything was fed.
    """

    def __init__(
        self,
        bridge: SteeringBridge,
        task_id: str,
        kinds: frozenset[SteeringEventType],
        after: str | None,
    ) -> None:
        self._bridge = bridge
        self._task_id = task_id
        self.kinds: frozenset[SteeringEventType] = kinds
        self.recorded: str | None = after
        self._known = after is not None or bridge.retell
        self._heard = after
        self._left = False
        self._held: deque[SteeringEvent] = deque()
        self._holding = asyncio.Event()
        self._feeding = asyncio.Lock()
        self._key = heard_steering(bridge.session.session_id, task_id)
        self.task: asyncio.Task[None] = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop, not in the middle of an event."""
        async with self._feeding:
            self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lasting(self._hand_out))
            group.create_task(self._lasting(self._listen))

    async def _lasting(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do one part of the reader until it is cancelled, whatever happens in it."""
        while True:
            try:
                await work()
            except CursorGap as gap:
                log.warning("steering of task %r was dropped: %s", self._task_id, gap)
                self._heard = gap.resume_after
                continue
            except RedisStateError as error:
                log.warning("steering of task %r is not heard: %s", self._task_id, error)
            except Exception as error:  # noqa: BLE001 - else nobody would steer the task any more
                kind = type(error).__name__
                log.error("steering of task %r is not heard: %s", self._task_id, kind)  # noqa: TRY400 - the traceback may quote the payload
            await asyncio.sleep(_AGAIN_S)

    async def _listen(self) -> None:
        store, session_id = self._bridge.store, self._bridge.session.session_id
        if not self._known:
            note = await store.load_memory_state(self._key)
            self._heard = self.recorded = None if note is None else note.get("after")
            self._known = True
        entries = store.watch_steering(session_id, after=self._heard, task_id=self._task_id)
        async with aclosing(entries):
            async for entry in entries:
                async with self._feeding:
                    await self._hear(entry)

    async def _hear(self, entry: Entry[Any]) -> None:
        event: SteeringEvent = entry.value
        if not await self._bridge.is_own(event):
            if not await self._wants(event):
                self._left = True
            elif event.event_type in _MESSAGES and (self._held or not self._has_room(event)):
                self._held.append(event)
                self._holding.set()
            else:
                await self._bridge.feed(event)
        self._heard = entry.cursor
        await self._note()
        if self.kinds is APPROVALS:
            self._bridge.look_at(self._task_id, ended=True)

    async def _hand_out(self) -> None:
        while await self._holding.wait():
            async with self._feeding:
                while self._held and self._has_room(self._held[0]):
                    await self._bridge.feed(self._held.popleft())
                if not self._held:
                    self._holding.clear()
                    await self._note()
            await asyncio.sleep(_CHECK_FOR_ROOM_S)

    async def _note(self) -> None:
        """Record how far everything was fed, so that no later reader repeats it."""
        if self._left or self._held or self._heard is None:
            return
        self.recorded = self._heard
        with suppress(BackendError):  # the next note says as much
            await self._bridge.store.save_memory_state(self._key, {"after": self.recorded})

    async def _wants(self, event: SteeringEvent) -> bool:
        if self.kinds is APPROVALS:
            patch_id = event.payload.get("patch_id")
            waiting = self._bridge.session.pending_patches
            return event.event_type in APPROVALS and patch_id in waiting
        # PenguiFlow would let a late RESUME or CANCEL change the status of a terminal task.
        task = await self._bridge.session.get_task(self._task_id)
        over = task is None or task.status in ENDED
        return event.event_type in self.kinds and not over

    def _has_room(self, event: SteeringEvent) -> bool:
        inbox = inbox_of(self._bridge.session, self._task_id)
        return inbox is not None and has_room(inbox, event)
