"""The session runtime: load a session, change it, save it, and publish each stage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from inspect import isawaitable
from typing import TypeAlias

from redis_state import limits
from redis_state.agents.state.ids import check_session_id
from redis_state.agents.state.session import AgentSession
from redis_state.agents.storage.session_store import SessionStore
from redis_state.errors import LeaseLost, SessionBusy, SessionConflict
from redis_state.primitives.lease import HeldLease, Leases, new_owner
from redis_state.scripts import Fence
from redis_state.serialization import codec
from redis_state.stores.base import ms

log: logging.Logger = logging.getLogger(__name__)

_ASK_AGAIN_S = 0.05
_ATTEMPTS = 100


class SessionStage(StrEnum):
    """Where a hook is called."""

    BEFORE_CREATE = "before_create"
    AFTER_CREATE = "after_create"
    AFTER_LOAD = "after_load"
    AFTER_ACTION = "after_action"
    BEFORE_SAVE = "before_save"
    AFTER_SAVE = "after_save"


class SessionEventType(StrEnum):
    """The event of a runtime."""

    LOADED = "SessionLoaded"
    ACTION_EXECUTED = "SessionActionExecuted"
    SAVED = "SessionSaved"
    LOAD_FAILED = "SessionLoadFailed"
    SAVE_FAILED = "SessionSaveFailed"


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """Something that happened to a session. ``facts`` has the keys of the original."""

    kind: SessionEventType
    session_id: str
    facts: dict[str, object]


Hook: TypeAlias = Callable[[AgentSession], AgentSession | Awaitable[AgentSession]]
Action: TypeAlias = Callable[[AgentSession], AgentSession | Awaitable[AgentSession]]


@dataclass(slots=True)
class _Hooks:
    by_stage: dict[SessionStage, list[tuple[int, Hook]]] = field(
        default_factory=dict[SessionStage, list[tuple[int, Hook]]]
    )

    def add(self, stage: SessionStage, hook: Hook, priority: int) -> None:
        hooks = self.by_stage.setdefault(stage, [])
        hooks.append((priority, hook))
        hooks.sort(key=lambda each: -each[0])  # stable: of equals the first registered

    async def run(self, stage: SessionStage, session: AgentSession) -> AgentSession:
        for _, hook in self.by_stage.get(stage, ()):
            session = await _done(hook(session))
        return session


@dataclass(frozen=True, slots=True)
class SessionLease:
    """A session that only its holder executes. ``lost`` is set by a takeover."""

    held: HeldLease
    lost: asyncio.Event

    @property
    def fence(self) -> Fence:
        """What each save carries, to be refused after a take-over."""
        return self.held.fence


class SessionRuntime:
    """An executor of actions on sessions, with hooks and events in the original's order.

    The session that a hook returns is used from there on. Of one stage, hooks of a higher priority
    come first. Listeners are called in order and must not fail.
    """

    def __init__(
        self, sessions: SessionStore, *, listeners: Sequence[Callable[[SessionEvent], object]] = ()
    ) -> None:
        self.sessions: SessionStore = sessions
        self._listeners = tuple(listeners)
        self._hooks = _Hooks()
        base = sessions.base
        self._leases = Leases(base.scripts, keep_ms=ms(base.settings.agent_sessions_ttl))

    def add_hook(self, stage: SessionStage, hook: Hook, *, priority: int = 0) -> None:
        """Register a hook for a stage."""
        self._hooks.add(stage, hook, priority)

    async def create(self, session: AgentSession) -> AgentSession:
        """Store a new session. Hooks: before_create, before_save, after_save, after_create.

        Errors: SessionConflict if there is one.
        """
        session = await self._hooks.run(SessionStage.BEFORE_CREATE, session)
        session = await self._hooks.run(SessionStage.BEFORE_SAVE, session)
        stored = await self.sessions.create(session)
        stored = await self._hooks.run(SessionStage.AFTER_SAVE, stored)
        stored = await self._hooks.run(SessionStage.AFTER_CREATE, stored)
        self._report_version(SessionEventType.SAVED, stored)
        return stored

    async def get(self, session_id: str) -> AgentSession:
        """Return a session through the hooks of after_load. Errors: SessionNotFound."""
        try:
            session = await self.sessions.get(session_id)
            session = await self._hooks.run(SessionStage.AFTER_LOAD, session)
        except Exception as error:
            self._report_failure(SessionEventType.LOAD_FAILED, session_id, error)
            raise
        self._report_version(SessionEventType.LOADED, session)
        return session

    async def execute(
        self,
        session_id: str,
        action: Action,
        *,
        pure: bool = False,
        fence: Fence | None = None,
    ) -> AgentSession:
        """Load a session, apply an action to it, and save the result.

        A ``pure`` action has no effect except what it returns. It is repeated on the newer session
        after another process's save. Any other action raises SessionConflict. Changes by hooks of
        after_save are returned and not stored. Errors: the action's own, without an event;
        SessionNotFound; LeaseLost under a stale fence.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return await self._execute(session_id, action, fence)
            except SessionConflict:
                if not pure or attempt + 1 == _ATTEMPTS:
                    raise
        raise AssertionError  # pragma: no cover - the last attempt returned or raised

    async def save(self, session: AgentSession, *, fence: Fence | None = None) -> AgentSession:
        """Save a session. Hooks: before_save, after_save. Errors: as SessionStore.save."""
        try:
            session = await self._hooks.run(SessionStage.BEFORE_SAVE, session)
            return await self._store(session, fence)
        except Exception as error:
            self._report_failure(SessionEventType.SAVE_FAILED, session.session_id, error)
            raise

    @asynccontextmanager
    async def holding(
        self, session_id: str, *, lease_s: float = 10.0, wait_s: float = 0.0
    ) -> AsyncGenerator[SessionLease, None]:
        """Be the only one to execute a session for the length of the block.

        The lease is renewed meanwhile, and runs out ``lease_s`` after its holder died. Errors:
        SessionBusy if another process holds it for longer than ``wait_s``; InvalidField for times
        that cannot be.
        """
        limits.seconds("lease_s", lease_s)
        limits.patience("wait_s", wait_s)
        key = self.sessions.base.keys.agent_lease(check_session_id(session_id))
        held = await self._acquire(key, session_id, lease_s, wait_s)
        lost = asyncio.Event()

        def lose(error: LeaseLost) -> None:
            log.warning("session %r was taken over: %s", session_id, error)
            lost.set()

        try:
            with self._leases.keep(held, duration_ms=round(lease_s * 1000), on_lost=lose):
                yield SessionLease(held, lost)
        finally:
            await self._leases.give_back(held)

    async def _acquire(self, key: str, session_id: str, lease_s: float, wait_s: float) -> HeldLease:
        deadline = asyncio.get_running_loop().time() + wait_s
        owner = new_owner()
        while True:
            held = await self._leases.acquire(key, duration_ms=round(lease_s * 1000), owner=owner)
            if held is not None:
                return held
            if asyncio.get_running_loop().time() >= deadline:
                raise SessionBusy(session_id)
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _execute(self, session_id: str, action: Action, fence: Fence | None) -> AgentSession:
        loaded = await self.get(session_id)
        changed = await _done(action(loaded))
        changed = await self._hooks.run(SessionStage.AFTER_ACTION, changed)
        try:
            changed = await self._hooks.run(SessionStage.BEFORE_SAVE, changed)
            self._report_action(loaded, changed, action)
            return await self._store(changed, fence)
        except Exception as error:
            self._report_failure(SessionEventType.SAVE_FAILED, session_id, error)
            raise

    async def _store(self, session: AgentSession, fence: Fence | None) -> AgentSession:
        saved = await self.sessions.save(session, fence=fence)
        saved = await self._hooks.run(SessionStage.AFTER_SAVE, saved)
        self._report_version(SessionEventType.SAVED, saved)
        return saved

    def _report(self, kind: SessionEventType, session_id: str, **facts: object) -> None:
        for listener in self._listeners:  # each has facts of its own
            listener(SessionEvent(kind, session_id, {"sessionId": session_id, **facts}))

    def _report_version(self, kind: SessionEventType, session: AgentSession) -> None:
        self._report(kind, session.session_id, version=session.version, status=session.status.value)

    def _report_action(self, before: AgentSession, after: AgentSession, action: Action) -> None:
        self._report(
            SessionEventType.ACTION_EXECUTED,
            after.session_id,
            action=getattr(action, "__qualname__", type(action).__name__),
            beforeVersion=before.version,
            afterVersion=after.version,
            beforeStatus=before.status.value,
            afterStatus=after.status.value,
        )

    def _report_failure(self, kind: SessionEventType, session_id: str, error: Exception) -> None:
        self._report(kind, session_id, error=codec.text_of(error), errorType=type(error).__name__)


async def _done(outcome: AgentSession | Awaitable[AgentSession]) -> AgentSession:
    return await outcome if isawaitable(outcome) else outcome
