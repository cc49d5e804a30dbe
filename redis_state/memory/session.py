"""The memory of one session, in the server.

What this process did and has not saved yet is a list of changes. Saving compares and sets: if
another process was first, its document is read, the changes are made on that, and it is tried
again. So nothing is overwritten, and a change that was saved although its reply was lost finds
itself in the document and is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

from redis_state.backoff import Backoff
from redis_state.errors import InvalidField, RedisStateError, VersionConflict
from redis_state.memory.document import memory_store_of, open_document
from redis_state.memory.keys import CompositeKey, MemoryKey, read_composite
from redis_state.memory.state import Added, MemoryChange, Replaced, Rules, State, settled
from redis_state.memory.summarising import Attempt, Summarising
from redis_state.memory.types import (
    MemoryHealth,
    MemoryTypes,
    ShortTermMemoryConfig,
    Summarizer,
)
from redis_state.memory.wire import document_of, state_of, turn_of
from redis_state.serialization import codec
from redis_state.timeouts import timeout

log: logging.Logger = logging.getLogger(__name__)

_MOST_CONFLICTS = 200
_MOST_UNSAVED = 1000
_PAUSE_S = Backoff(0.002, 0.25, jitter=1.0)


class SessionMemory:
    """One session's memory, shared with every process that has one of the same key.

    `add_turn` returns when the turn is in the server. Summaries are made in the background and
    saved together with the removal of the turns they replace, so no crash loses a turn. When the
    store is closed, what waits is summarised and saved first. Belongs to one event loop. Making one
    does no I/O.

    ``config`` may be PenguiFlow's. Errors: InvalidField for a key that could be several sessions',
    and for ``rolling_summary`` without a summarizer.
    """

    def __init__(
        self,
        store: Any,
        key: MemoryKey | str,
        *,
        config: Any,
        summarizer: Summarizer | None = None,
        time_source: Callable[[], float] | None = None,
        types: MemoryTypes | None = None,
    ) -> None:
        check_summarizer(config, summarizer)
        self.key: CompositeKey = read_composite(key)
        self._config: ShortTermMemoryConfig = config
        self._types = types or MemoryTypes()
        self._rules = Rules(config, self._types.budget_exceeded)
        self._document = open_document(store, self.key)
        self._memories = memory_store_of(store)
        self._state = State()
        self._version: int | None = None
        self._conflicting: int = 0
        self._unsaved: list[MemoryChange] = []
        self._saving = asyncio.Lock()
        self._work = Summarising(self, config, summarizer, time_source or time.monotonic)
        self._callbacks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<SessionMemory {self._state.health.value} unsaved={len(self._unsaved)}>"

    @property
    def health(self) -> MemoryHealth:
        """How the summarising goes, as this process knows it. Of the host's own class."""
        health: MemoryHealth = self._types.health(self._state.health.value)
        return health

    @property
    def unsaved(self) -> int:
        """How many changes are not in the server yet."""
        return len(self._unsaved)

    @property
    def idle(self) -> bool:
        """Whether everything is saved and nothing is being summarised."""
        return not self._unsaved and not self._work.running and not self._saving.locked()

    async def add_turn(self, turn: Any, *, turn_id: str | None = None) -> None:
        """Add a turn, and return when it is saved.

        ``turn_id`` makes a repetition harmless, up to 512 turns later. Errors: MemoryBudgetExceeded
        under the policy ``error``, and then nothing was changed; BackendError, and then the turn
        is kept here and saved with the next change.
        """
        if self._config.strategy == "none":
            return
        self._use_store()
        added = Added(turn_of(turn, turn_id or secrets.token_urlsafe(9)))
        if len(self._unsaved) >= _MOST_UNSAVED:
            await self._save()
        taken = False
        try:
            taken = self.change(added)
            if taken:
                self.fire(self._config.on_turn_added, turn)
                await self._save()
        finally:
            # A turn that is refused changes nothing: it is no occasion to recover.
            self._work.begin(recover=taken and added.refused is None)
        if added.refused is not None:
            raise added.refused

    async def get_llm_context(self) -> Mapping[str, Any]:
        """Return what a model is shown, under ``conversation_memory``; nothing for ``none``."""
        payload = self._rules.payload(self._state)
        return {"conversation_memory": codec.plain(payload)} if payload else {}

    def estimate_tokens(self) -> int:
        """Estimate what a model is shown, in tokens."""
        return self._rules.tokens(self._state)

    async def flush(self) -> None:
        """Wait until what waits is summarised, or the summarizer has degraded, and is saved.

        Errors: BackendError if it cannot be saved.
        """
        await self._work.finish()
        await self._save()

    async def persist(self, store: Any = None, key: Any = None) -> None:
        """Save what is not saved yet. Errors: InvalidField for the key of another session."""
        del store
        self._check_key(key)
        await self._save()

    async def hydrate(self, store: Any = None, key: Any = None) -> None:
        """Read what the other processes have saved. What is not saved here yet stays.

        Errors: InvalidField for the key of another session, or a document that is no memory.
        """
        del store
        self._check_key(key)
        if self._config.strategy == "none":
            return
        self._use_store()
        async with self._saving:
            await self._reload()

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the memory as it is stored: PenguiFlow's format."""
        document: dict[str, Any] = codec.plain(document_of(self._state, self._config))
        return document

    def from_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the whole memory by a stored one; the next save overwrites what others did.

        Errors: InvalidField.
        """
        given = settled(state_of(codec.plain(state)))
        self._state = given
        self._unsaved = [Replaced(given)]

    def get_artifact(self, ref: str) -> Any | None:
        """Return None: artifacts are kept by the artifact store."""
        del ref
        return None

    async def leave(self, store: Any = None, *, timeout_s: float) -> None:
        """Summarise what waits if that takes no longer than ``timeout_s``, and save.

        What takes longer is stored as waiting, for the next process. Errors: BackendError if
        something could not be saved.
        """
        del store
        with suppress(TimeoutError, RedisStateError):  # what cannot be saved is tried again below
            async with timeout(timeout_s):
                await self.flush()
        await self.aclose()

    async def aclose(self) -> None:
        """Stop summarising and save. What was being summarised is kept, and waits. Repeatable."""
        if self._memories is not None:
            self._memories.drop_user(self)
        await self._work.stop()
        await self._save()
        if self._callbacks:
            await asyncio.wait(list(self._callbacks))

    # For the summarising

    @property
    def state(self) -> State:
        """The memory as this process knows it."""
        return self._state

    @property
    def rules(self) -> Rules:
        """What its configuration says."""
        return self._rules

    def change(self, change: MemoryChange) -> bool:
        """Make a change here, to be saved later. Errors: MemoryBudgetExceeded; nothing changed."""
        state = self._state.copy()
        if not change.apply(state, self._rules):
            return False
        self._take(state)
        self._unsaved.append(change)
        return True

    def mark(self, health: MemoryHealth) -> None:
        """Set the health for as long as an attempt takes. It is no change of its own to save."""
        state = self._state.copy()
        state.health = health
        self._take(state)

    def abandon(self) -> None:
        """End a recovery that came to nothing: the memory is degraded as it was before."""
        self._take(settled(self._state))

    async def save_quietly(self) -> None:
        """Save; what cannot be saved now is saved with the next change."""
        try:
            await self._save()
        except RedisStateError as error:
            log.warning("a memory could not be saved yet: %s", type(error).__name__)

    def fire(self, callback: Callable[..., Any] | None, *facts: Any) -> None:
        """Call a host's callback beside everything else. Its errors are logged."""
        if callback is None:
            return
        task = asyncio.create_task(_call(callback, facts))
        self._callbacks.add(task)
        task.add_done_callback(self._callbacks.discard)

    def _take(self, state: State) -> None:
        before, self._state = self._state.health, state
        if before != state.health:
            health = self._types.health
            self.fire(
                self._config.on_health_changed, health(before.value), health(state.health.value)
            )

    def _use_store(self) -> None:
        if self._memories is not None:
            self._memories.add_user(self)

    def _check_key(self, key: Any) -> None:
        if key is not None and read_composite(key) != self.key:
            raise InvalidField("key", "is that of another session")

    async def _save(self) -> None:
        async with self._saving:
            conflicts = 0
            while self._unsaved:
                if self._version is None:
                    await self._reload()
                batch = list(self._unsaved)
                if not batch or await self._save_as_is(batch):
                    continue
                conflicts += 1
                if conflicts == _MOST_CONFLICTS:
                    raise VersionConflict(self.key, expected=0, actual=self._conflicting)
                await asyncio.sleep(_PAUSE_S.after(conflicts))

    async def _save_as_is(self, batch: list[MemoryChange]) -> bool:
        """Save the state with these changes in it; False if another process was first."""
        expected = self._version or 0
        # Whatever goes wrong from here on, it may have been saved: read before saving again.
        self._version = None
        try:
            self._version = await self._document.save(self.to_dict(), expected=expected)
        except VersionConflict as conflict:
            self._conflicting = cast("int", conflict.actual)
            return False
        saved = set(map(id, batch))
        self._unsaved = [change for change in self._unsaved if id(change) not in saved]
        return True

    async def _reload(self) -> None:
        """Read the document and make again what is not saved. No await after the first."""
        found = await self._document.load()
        # A document that could not be read was set aside by the store: it may be written over.
        document, version = found or (None, self._conflicting)
        self._conflicting = 0
        state = State() if document is None else state_of(document)
        state = settled(state, recovering=self._work.attempt is Attempt.RECOVERY)
        kept: list[MemoryChange] = []
        for change in self._unsaved:
            made = state.copy()
            try:
                applied = change.apply(made, self._rules)
            except self._types.budget_exceeded as error:
                change.refused = error
                continue
            if applied:
                state = made
                kept.append(change)
        self._state, self._version, self._unsaved = state, version, kept


def check_summarizer(config: Any, summarizer: Summarizer | None) -> None:
    """Refuse a configuration that needs a summarizer and has none. Errors: InvalidField."""
    if config.strategy == "rolling_summary" and summarizer is None:
        raise InvalidField("summarizer", "rolling_summary needs one")


async def _call(callback: Callable[..., Any], facts: tuple[Any, ...]) -> None:
    try:
        await callback(*facts)
    except Exception as error:  # noqa: BLE001 - a host's callback, any failure
        log.warning("a callback of a memory failed: %s", type(error).__name__)
