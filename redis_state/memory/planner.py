"""One memory object for all sessions of a planner: each call goes to the session at hand."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from redis_state import limits
from redis_state.errors import BackendError, InvalidField, RedisStateError
from redis_state.memory.document import memory_store_of
from redis_state.memory.keys import CompositeKey, MemoryKey, read_composite, resolve_key
from redis_state.memory.session import SessionMemory, check_summarizer
from redis_state.memory.types import MemoryHealth, MemoryTypes, Summarizer

log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Open:
    """A session and its store, which is kept so that no other one can come to have its id."""

    store: Any
    session: SessionMemory


class PlannerMemory:
    """What a planner is given as its short-term memory; it needs a state store beside it.

    `hydrate` names the session, for the task that calls it and those it starts: what comes next
    in them is about that session. So one planner serves many sessions, also at a time. Without a
    session, or after a key that could be several ones', nothing is shown and nothing remembered.
    With ``require_explicit_key=False`` a session of this object alone is used then; it is not
    stored. Belongs to one event loop.
    """

    def __init__(
        self,
        config: Any,
        *,
        summarizer: Summarizer | None = None,
        time_source: Callable[[], float] | None = None,
        types: MemoryTypes | None = None,
        max_sessions: int = 1000,
    ) -> None:
        check_summarizer(config, summarizer)
        self._config = config
        self._summarizer = summarizer
        self._time_source = time_source
        self._types = types or MemoryTypes()
        self._max_sessions = limits.count("max_sessions", max_sessions)
        self._sessions: OrderedDict[tuple[int, str], _Open] = OrderedDict()
        self._ephemeral = MemoryKey("default", "anonymous", secrets.token_hex(16))

    @property
    def health(self) -> MemoryHealth:
        """How the summarising of the session at hand goes."""
        session = self._current()
        if session is None:
            healthy: MemoryHealth = self._types.health(MemoryHealth.HEALTHY.value)
            return healthy
        return session.health

    def resolve_key(self, tool_context: Mapping[str, Any] | None) -> MemoryKey | None:
        """Find a run's key by this memory's isolation, to be passed as ``memory_key``.

        A planner looks for a memory's key at its own default paths and joins it unescaped: pass
        the key if your paths differ or your names may hold a colon.
        """
        return resolve_key(tool_context, self._config.isolation, ephemeral=self._ephemeral)

    def session(self, store: Any, key: MemoryKey | str) -> SessionMemory:
        """Return the memory of one session. Errors: InvalidField for an ambiguous key."""
        composite = read_composite(key)
        if composite == self._ephemeral.composite():
            store = None
        place = (id(store), composite)
        found = self._sessions.get(place)
        if found is None:
            self._make_room()
            found = self._sessions[place] = _Open(store, self._open(store, composite))
        self._sessions.move_to_end(place)
        return found.session

    async def hydrate(self, store: Any, key: Any) -> None:
        """Turn to a session and read what others have saved of it.

        Errors, which are logged too, since a planner does not say what failed: InvalidField for an
        ambiguous key: then there is no session at hand. BackendError leaves the session at hand
        as it was last known.
        """
        _turn_to(self, None)
        try:
            session = self.session(store, key)
            _turn_to(self, session)
            memories = memory_store_of(store)
            if memories is not None:
                memories.add_user(self)
            await session.hydrate()
        except RedisStateError as error:
            log.warning("a memory cannot be read: %s", error)
            raise

    async def persist(self, store: Any, key: Any) -> None:
        """Save what is not saved yet of a session."""
        await self.session(store, key).persist()

    async def add_turn(self, turn: Any, *, turn_id: str | None = None) -> None:
        """Add a turn to the session at hand. See `SessionMemory.add_turn` and `turns_named`."""
        session = self._current()
        if session is None:
            log.warning("a turn of no known session is not remembered")
            return
        await session.add_turn(turn, turn_id=turn_id or _next_name())

    async def get_llm_context(self) -> Mapping[str, Any]:
        """Return what a model is shown of the session at hand; nothing without one."""
        session = self._current()
        return {} if session is None else await session.get_llm_context()

    def estimate_tokens(self) -> int:
        """Estimate what a model is shown of the session at hand, in tokens."""
        session = self._current()
        return 0 if session is None else session.estimate_tokens()

    async def flush(self) -> None:
        """Wait until what waits is summarised and saved, of every session."""
        for each in list(self._sessions.values()):
            await each.session.flush()

    async def leave(self, store: Any, *, timeout_s: float) -> None:
        """Release the sessions of a store that is about to be closed; their content is saved.

        Waiting turns are summarised first, if that takes no longer than ``timeout_s``. Otherwise
        they are stored as waiting, for the session's next process. Errors: BackendError if a save
        failed; its content is lost then.
        """
        places = [place for place, each in self._sessions.items() if each.store is store]
        sessions = [self._sessions.pop(place).session for place in places]
        memories = memory_store_of(store)
        if memories is not None:
            memories.drop_user(self)
        left = (session.leave(store, timeout_s=timeout_s) for session in sessions)
        for error in await asyncio.gather(*left, return_exceptions=True):
            if isinstance(error, BackendError):
                raise error
            if error is not None:
                log.warning("a memory could not be saved: %s", type(error).__name__)

    def to_dict(self) -> dict[str, Any]:
        """Return the session at hand as it is stored. Errors: InvalidField without one."""
        return self._needed().to_dict()

    def from_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the session at hand. Errors: InvalidField, also without one."""
        self._needed().from_dict(state)

    def get_artifact(self, ref: str) -> Any | None:
        """Return None: artifacts are kept by the artifact store."""
        del ref
        return None

    async def aclose(self) -> None:
        """Stop summarising and save, every session."""
        for each in list(self._sessions.values()):
            await each.session.aclose()

    def _open(self, store: Any, key: CompositeKey) -> SessionMemory:
        return SessionMemory(
            store,
            key,
            config=self._config,
            summarizer=self._summarizer,
            time_source=self._time_source,
            types=self._types,
        )

    def _make_room(self) -> None:
        """Forget sessions with nothing left to save, the longest unused first.

        Before another one is opened, which has nothing to save either.
        """
        extra = len(self._sessions) + 1 - self._max_sessions
        if extra > 0:
            idle = [place for place, each in self._sessions.items() if each.session.idle]
            for place in idle[:extra]:
                del self._sessions[place]

    def _current(self) -> SessionMemory | None:
        session = _at_hand.get().get(self)
        if session is None and not self._config.isolation.require_explicit_key:
            return self.session(None, self._ephemeral)
        return session

    def _needed(self) -> SessionMemory:
        session = self._current()
        if session is None:
            raise InvalidField("session", "there is none at hand: hydrate first")
        return session


@contextmanager
def turns_named(name: str) -> Generator[None]:
    """Give ids to the turns that are added in this block, in order, here and in tasks started here.

    So a job that begins again adds none a second time.
    """
    token = _names.set(f"{name}-{number}" for number in itertools.count(1))
    try:
        yield
    finally:
        _names.reset(token)


def _next_name() -> str | None:
    names = _names.get()
    return None if names is None else next(names)


_names: ContextVar[Iterator[str] | None] = ContextVar("names of turns", default=None)

# Copied whenever it is changed: a task's sessions are its own.
_at_hand: ContextVar[WeakKeyDictionary[PlannerMemory, SessionMemory]] = ContextVar(
    "sessions at hand",
    default=WeakKeyDictionary(),  # noqa: B039 - never changed itself
)


def _turn_to(memory: PlannerMemory, session: SessionMemory | None) -> None:
    sessions = WeakKeyDictionary(_at_hand.get())
    sessions.pop(memory, None)
    if session is not None:
        sessions[memory] = session
    _at_hand.set(sessions)
