"""Delivered steering: a StreamingSession fed from the durable log, in whatever process it runs.

    async with open_session(store, "session-1") as session:
        await session.spawn_task(pipeline, task_id="task-1")

Any process steers it by ``store.save_steering(event)``. PenguiFlow itself never reads the log of
steering: it would not deliver an event of another process.

What is delivered, and when: each task of the session has a reader of its own, from its first
step on, while it is queued, runs or is paused. The reader starts after the last event
that any reader is known to have delivered to this task. Without one it starts at the oldest kept
event. So events from before the task's start are delivered when it starts. After a crash, a task
that starts again under its id does not receive them again.

"Known" means recorded in the store right after ``session.steer`` returned. A process that dies
between the two causes one repeated event. An event that the session itself got through
``session.steer`` is saved once and not fed again. Events for a task in another process are left to
that process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from penguiflow.sessions import StreamingSession
from penguiflow.state import StateUpdate, SteeringEvent, SteeringEventType, TaskState

from redis_state.errors import BackendError, InvalidField
from redis_state.integrations.penguiflow.adapter.private_names import forget, inbox_of
from redis_state.integrations.penguiflow.durable.durable_session import DurableSession
from redis_state.integrations.penguiflow.durable.registry import ENDED
from redis_state.integrations.penguiflow.durable.steering_reader import (
    ALL,
    APPROVALS,
    OF_OWNERS,
    SteeringReader,
)
from redis_state.scripts import Fence
from redis_state.store import RedisStateStore

log: logging.Logger = logging.getLogger(__name__)

_AGAIN_S = 1.0
_CLOSE_S = 5.0


class WatchedStore:
    """The store as StreamingSession and SessionManager take it, watched by the sessions' bridges.

    One serves any number of sessions. Without a bridge it is the store.
    """

    def __init__(self, store: RedisStateStore) -> None:
        # Of PenguiFlow's own classes. Its tool jobs look for an attribute of this very name.
        self._store: Any = store
        self.bridges: dict[str, SteeringBridge] = {}

    @property
    def store(self) -> RedisStateStore:
        """The store itself."""
        store: RedisStateStore = self._store
        return store

    async def save_task(self, state: TaskState, *, fence: Fence | None = None) -> None:
        """Save a task. Errors: LeaseLost under a ``fence`` of an earlier epoch."""
        ended = state.status in ENDED
        await self._store.tasks.save(state, fence=fence)
        bridge = self.bridges.get(state.session_id)
        if bridge is not None:
            # In its next turn the loop has let the session make the task's inbox, or its patch.
            asyncio.get_running_loop().call_soon(bridge.look_at, state.task_id, ended)

    async def list_tasks(self, session_id: str) -> list[TaskState]:
        """Return a session's tasks in the order of their first save."""
        found: list[TaskState] = await self._store.list_tasks(session_id)
        return found

    async def save_update(self, update: StateUpdate) -> None:
        """Append an update."""
        await self._store.save_update(update)

    async def list_updates(self, session_id: str, **options: Any) -> list[StateUpdate]:
        """Return the newest updates after a cursor and of a task, oldest first."""
        found: list[StateUpdate] = await self._store.list_updates(session_id, **options)
        return found

    async def save_steering(self, event: SteeringEvent) -> None:
        """Append a steering event, unless a bridge took it from the log."""
        bridge = self.bridges.get(event.session_id)
        if bridge is None:
            await self._store.save_steering(event)
        else:
            await bridge.save(event)

    async def list_steering(self, session_id: str, **options: Any) -> list[SteeringEvent]:
        """Return the newest steering events after a cursor and of a task, oldest first."""
        found: list[SteeringEvent] = await self._store.list_steering(session_id, **options)
        return found


class SteeringBridge:
    """Feeds one session what its steering log holds for the tasks that run here. See `following`.

    ``delivered`` counts the events that it has fed.
    """

    def __init__(
        self, store: WatchedStore, session: StreamingSession, *, owner: bool, retell: bool
    ) -> None:
        self.store: Any = store.store
        self.session: StreamingSession = session
        self.owner: bool = owner
        self.retell: bool = retell
        self.delivered: int = 0
        self._readers: dict[str, SteeringReader] = {}
        self._turning = asyncio.Lock()
        self._turns: set[asyncio.Task[None]] = set()
        # By task and event: one event may be of several tasks.
        self._fed: set[tuple[str, str]] = set()
        # By task: what this session was given itself, until a reader has come by it.
        self._own: dict[str, dict[str, asyncio.Future[bool]]] = {}

    def look_at(self, task_id: str, ended: bool) -> None:  # noqa: FBT001 - for call_soon
        """Record that a task was saved here: it may have started or ended."""
        reader = self._readers.get(task_id)
        if ended:
            self._spawn(self._turn(task_id, APPROVALS))
        elif inbox_of(self.session, task_id) is not None and (
            reader is None or reader.kinds is not ALL
        ):
            self._spawn(self._turn(task_id, ALL))

    async def save(self, event: SteeringEvent) -> None:
        """Save what the session was given here; what came from the log is saved already.

        If that fails, the session forgets the event too, so that the call can be repeated.
        """
        if (event.task_id, event.event_id) in self._fed:
            return
        outcome = asyncio.get_running_loop().create_future()
        self._own.setdefault(event.task_id, {})[event.event_id] = outcome
        try:
            await self.store.save_steering(event)
        except BaseException:
            # It may stand in the log all the same. Then the session has not acted on it: feed it.
            self._forget_own(event.task_id, event.event_id)
            forget(self.session, event)
            outcome.set_result(False)
            raise
        outcome.set_result(True)
        if event.task_id not in self._readers:
            self._forget_own(event.task_id, event.event_id)

    async def is_own(self, event: SteeringEvent) -> bool:
        """Return, once its save has an outcome, whether the session was given an event here."""
        outcome = self._own.get(event.task_id, {}).get(event.event_id)
        if outcome is None:
            return False
        saved = await outcome
        self._forget_own(event.task_id, event.event_id)
        return saved

    async def feed(self, event: SteeringEvent) -> None:
        """Give the session an event as its own, as often as it takes while the server is away."""
        place = event.task_id, event.event_id
        while True:
            self._fed.add(place)
            try:
                await self.session.steer(event)
            except BackendError as error:
                log.warning("steering of task %r waits: %s", event.task_id, error)
                forget(self.session, event)
            except Exception as error:  # noqa: BLE001 - of the host's code: the next is fed
                kind = type(error).__name__
                log.error("steering of task %r failed in its session: %s", event.task_id, kind)  # noqa: TRY400 - the traceback may quote the payload
                return
            else:
                self.delivered += 1
                return
            finally:
                self._fed.discard(place)
            await asyncio.sleep(_AGAIN_S)

    async def start(self) -> None:
        """Begin to read for the tasks that the session has already."""
        for task in await self.session.list_tasks():
            if inbox_of(self.session, task.task_id) is not None:
                await self._turn(task.task_id, ALL)
            elif self.owner and task.status not in ENDED:
                await self._turn(task.task_id, OF_OWNERS)
        for patch in self.session.pending_patches.values():
            if patch.task_id not in self._readers:
                await self._turn(patch.task_id, APPROVALS)

    async def aclose(self) -> None:
        """Stop at once. What was not fed is fed by the next reader of its task."""
        stopping = [*self._turns, *(reader.task for reader in self._readers.values())]
        for task in stopping:
            task.cancel()
        await asyncio.gather(*stopping, return_exceptions=True)

    async def _turn(self, task_id: str, kinds: frozenset[SteeringEventType]) -> None:
        """Set the kinds of events that a task's reader feeds from now on, or end it."""
        async with self._turning:
            if kinds is ALL and inbox_of(self.session, task_id) is None:
                kinds = APPROVALS  # it has ended in the meantime
            patches: Any = self.session.pending_patches
            waits = any(patch.task_id == task_id for patch in patches.values())
            wanted = kinds if waits or kinds is not APPROVALS else None
            reader = self._readers.get(task_id)
            if reader is not None:
                if reader.kinds is wanted:
                    return
                await reader.stop()
                del self._readers[task_id]
            if wanted is None:
                # Nobody comes by what is saved. What is not yet is forgotten once it is.
                own = self._own.get(task_id, {})
                for event_id in [name for name, outcome in own.items() if outcome.done()]:
                    self._forget_own(task_id, event_id)
                return
            after = None if reader is None else reader.recorded
            self._readers[task_id] = SteeringReader(self, task_id, wanted, after)

    def _forget_own(self, task_id: str, event_id: str) -> None:
        own = self._own.get(task_id, {})
        own.pop(event_id, None)
        if not own:
            self._own.pop(task_id, None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        turn = asyncio.create_task(work)
        self._turns.add(turn)
        turn.add_done_callback(self._turns.discard)


@asynccontextmanager
async def following(
    store: WatchedStore, session: StreamingSession, *, owner: bool = False, retell: bool = False
) -> AsyncGenerator[SteeringBridge]:
    """Feed a session from its steering log, as long as the block runs.

    ``store`` is the store of the session. ``owner`` means that no other process has this session:
    then a CANCEL or PRIORITIZE also reaches a task that a crashed process left behind and that
    nobody runs. ``retell`` delivers to each task all its events again, from the oldest kept one on,
    for a task that starts from its beginning. Errors: InvalidField for a session that has a bridge
    already, or belongs to another store.
    """
    if getattr(session, "_state_store", store) is not store:
        raise InvalidField("session", "was not made with this store")
    if session.session_id in store.bridges:
        raise InvalidField("session", "is followed already")
    bridge = SteeringBridge(store, session, owner=owner, retell=retell)
    store.bridges[session.session_id] = bridge
    try:
        await bridge.start()
        yield bridge
    finally:
        del store.bridges[session.session_id]
        await bridge.aclose()


@asynccontextmanager
async def open_session(
    store: RedisStateStore,
    session_id: str,
    *,
    owner: bool = False,
    retell: bool = False,
    **options: Any,
) -> AsyncGenerator[DurableSession]:
    """Give a session with all that is stored of it, steered from anywhere while the block runs.

    Tasks that their process has left are failed first, see `SharedSession.settle`; with ``owner``,
    which says that no other process has the session, at once.

    At the end the session is closed: tasks that have ended are saved to their end, what still
    runs is CANCELLED. Then its updates, which PenguiFlow saves without waiting, are waited for.
    Options are those of StreamingSession.
    """
    kept = WatchedStore(store)
    session = DurableSession(session_id, state_store=kept, owner=owner, **options)
    await session.hydrate()
    async with following(kept, session, owner=owner, retell=retell):
        try:
            yield session
        finally:
            await session.close()
            with suppress(TimeoutError):
                await store.drain(_CLOSE_S)


__all__ = ["SteeringBridge", "WatchedStore", "following", "open_session"]
