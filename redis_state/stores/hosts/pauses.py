"""A host's planner pauses: opaque tokens, each consumed by exactly one load."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redis_state import limits
from redis_state.errors import BackendError, OutcomeUnknown, TokenResolved, TokenUnknown
from redis_state.primitives.token import Tokens, new_claim
from redis_state.serialization import codec
from redis_state.serialization.fields import mapping
from redis_state.serialization.rows import as_object
from redis_state.stores.base import Base, ms
from redis_state.transport.keys import token_digest

log: logging.Logger = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

# So many pauses that could not be saved, and so many claims that nobody has, are kept at most.
_MOST_KEPT = 1000


@dataclass(slots=True)
class PauseClaim:
    """One caller's right to a pause. ``used`` says that the caller has the pause."""

    token: str = field(repr=False)
    name: str
    used: bool = False


@dataclass(frozen=True, slots=True)
class _Unsaved:
    """A pause that the server may not have.

    It ends at ``ends`` of this process's clock, and may be saved until ``until``.
    """

    payload: bytes = field(repr=False)
    ends: float
    until: float

    @property
    def left_ms(self) -> int:
        now = time.monotonic()
        return int((self.ends - now) * 1000) if now < self.until else 0


_CLAIMED: ContextVar[PauseClaim | None] = ContextVar("claimed pause", default=None)


def current_claim(token: str) -> PauseClaim | None:
    """Return the claim under which this context loads a token."""
    claimed = _CLAIMED.get()
    return claimed if claimed is not None and claimed.token == token else None


class PauseStore:
    """Save and consume planner pauses.

    Hosts only log that a pause could not be saved. So the pause is kept here, and saved before this
    process next claims it, or when the store is closed.
    """

    def __init__(self, base: Base, *, consumer: str) -> None:
        self._base = base
        self._consumer = consumer
        self._tokens = Tokens(base.scripts, keep_ms=ms(base.settings.resolved_token_ttl))
        self._unsaved: OrderedDict[str, _Unsaved] = OrderedDict()
        # Several callers of this process may have left one token.
        self._left: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def save(self, token: str, payload: dict[str, Any]) -> None:
        """Keep a pause until it is loaded or `pause_ttl` has passed. Saving again restarts that
        time.

        A repeated save of a loaded pause does nothing. Errors: TokenResolved if the token was used
        before with another payload: it cannot stand for a second pause. BackendError; this process
        then saves the pause before it claims it.
        """
        settings = self._base.settings
        key, data = self._base.keys.pause(token), codec.encode(mapping("payload", payload))
        started, lives = time.monotonic(), settings.pause_ttl.total_seconds()
        try:
            await self._tokens.open(key, data, ttl_ms=ms(settings.pause_ttl))
        except BackendError as error:
            ends = until = started + lives
            if isinstance(error, OutcomeUnknown):
                # If it is saved, another process may use it: only its trace shows that.
                until = started + min(lives, settings.resolved_token_ttl.total_seconds())
            _keep(self._unsaved, key, _Unsaved(data, ends, until))
            raise
        self._unsaved.pop(key, None)

    async def save_unsaved(self) -> bool:
        """Save the pauses that could not be saved; return whether there were any.

        Errors: BackendError.
        """
        unsaved = list(self._unsaved)
        for key in unsaved:
            await self._settle(key)
        return bool(unsaved)

    async def load(
        self, token: str, *, idempotency_key: str | None = None
    ) -> dict[str, Any] | None:
        """Consume a pause: its payload for the first caller, None for every other.

        The same ``idempotency_key`` repeated gets the same payload. None also for a token that
        expired or never was, and for a pause that cannot be read; the log of this process says
        which of these it was.
        """
        current = None if idempotency_key else current_claim(token)
        try:
            payload = await self.claim(
                token, idempotency_key=current.name if current else idempotency_key
            )
        except TokenResolved as error:
            log.info("a pause was loaded before: by %r at %d ms", error.actor, error.at_ms)
            return None
        except TokenUnknown as error:
            log.info("a pause cannot be loaded: %s", error)
            return None
        if current:
            current.used = True
        return payload

    async def claim(
        self, token: str, *, idempotency_key: str | None = None, actor: str | None = None
    ) -> dict[str, Any] | None:
        """Consume a pause like `load`, and inform every other caller who was first.

        A caller that is cancelled, or gets OutcomeUnknown, can only repeat a ``idempotency_key``
        that it named. Without a name the pause is released for the next caller. None for a pause
        that cannot be read. Errors: TokenResolved, TokenUnknown.
        """
        named = limits.own_id("idempotency_key", idempotency_key)
        data = await self._consume(token, named or new_claim(), actor, named=named is not None)
        return self._base.attempt(token_digest(token), "pause", data, lambda: as_object(data))

    @asynccontextmanager
    async def claimed(
        self, token: str, *, idempotency_key: str | None = None, actor: str | None = None
    ) -> AsyncGenerator[PauseClaim]:
        """Claim a pause for a block, whose loads of the token are this claim's.

        A block that fails before the claim is ``used`` leaves the pause to the next caller. A named
        ``idempotency_key`` is kept: repeat the call under it. Errors: TokenResolved, TokenUnknown.
        """
        named = limits.own_id("idempotency_key", idempotency_key)
        made = PauseClaim(token, named or new_claim())
        await self._consume(token, made.name, actor, named=named is not None)
        before = _CLAIMED.set(made)
        try:
            yield made
        except BaseException:
            if idempotency_key is None and not made.used:
                self._release(self._base.keys.pause(token), made.name)
            raise
        finally:
            _CLAIMED.reset(before)

    async def _consume(self, token: str, claim: str, actor: str | None, *, named: bool) -> bytes:
        key = self._base.keys.pause(token)
        await self._settle(key)
        try:
            return await self._tokens.consume(key, actor=actor or self._consumer, claim=claim)
        except (asyncio.CancelledError, OutcomeUnknown):
            if not named:
                self._release(key, claim)
            raise

    async def _settle(self, key: str) -> None:
        """Make the server know what this process knows of a token. Errors: BackendError."""
        unsaved = self._unsaved.get(key)
        if unsaved is not None:
            if unsaved.left_ms > 0:
                with suppress(TokenResolved):
                    await self._tokens.open(key, unsaved.payload, ttl_ms=unsaved.left_ms)
            if self._unsaved.get(key) is unsaved:
                del self._unsaved[key]
        # Copied in one step: the store may be used in several threads.
        for left in [left for left in list(self._left) if left[0] == key]:
            await self._tokens.release(key, claim=left[1])
            self._left.pop(left, None)

    def _release(self, key: str, claim: str) -> None:
        """Release a claim without waiting. If the server is unreachable, the next claim does it."""
        _keep(self._left, (key, claim), None)
        task = asyncio.get_running_loop().create_task(self._settle_quietly(key))
        self._base.background.add(task)
        task.add_done_callback(self._base.background.discard)

    async def _settle_quietly(self, key: str) -> None:
        try:
            await self._settle(key)
        except BackendError as error:
            log.warning("a pause whose caller left is not released yet: %s", error)


def _keep(kept: OrderedDict[K, T], key: K, value: T) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > _MOST_KEPT:
        kept.popitem(last=False)
