"""A host's planner pauses: opaque tokens, each consumed by exactly one load."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from redis_state import codec
from redis_state.errors import TokenResolved, TokenUnknown
from redis_state.primitives.token import Tokens
from redis_state.stores.base import Base, as_object, ms
from redis_state.stores.values import mapping
from redis_state.transport.keys import token_digest

log: logging.Logger = logging.getLogger(__name__)

_CLAIMED: ContextVar[tuple[str, str] | None] = ContextVar("claimed pause", default=None)


@contextmanager
def claiming(token: str, claim: str) -> Generator[None]:
    """Have loads of a token in this context be one claim's, for a caller who cannot name it."""
    before = _CLAIMED.set((token, claim))
    try:
        yield
    finally:
        _CLAIMED.reset(before)


def current_claim(token: str) -> str | None:
    """Return the claim under which this context loads a token."""
    claimed = _CLAIMED.get()
    return claimed[1] if claimed is not None and claimed[0] == token else None


class PauseStore:
    """Save and consume planner pauses."""

    def __init__(self, base: Base, *, consumer: str) -> None:
        self._base = base
        self._consumer = consumer
        self._tokens = Tokens(base.scripts, keep_ms=ms(base.settings.resolved_token_ttl))

    async def save(self, token: str, payload: dict[str, Any]) -> None:
        """Keep a pause until it is loaded or `pause_ttl` is over; saving again starts that anew.

        A repeated save of a pause that was loaded already does nothing. Errors: TokenResolved if
        the token was used before with another payload: it cannot stand for a second pause.
        """
        await self._tokens.open(
            self._base.keys.pause(token),
            codec.encode(mapping("payload", payload)),
            ttl_ms=ms(self._base.settings.pause_ttl),
        )

    async def load(self, token: str, *, claim: str | None = None) -> dict[str, Any] | None:
        """Consume a pause: its payload for the first caller, None for every other.

        The same ``claim`` repeated gets the same payload. None also for a token that expired or
        never was, and for a pause that cannot be read; the log of this process says which of
        these it was.
        """
        try:
            return await self.claim(token, claim=claim or current_claim(token))
        except TokenResolved as error:
            log.info("a pause was loaded before: by %s at %d ms", error.by, error.at_ms)
            return None
        except TokenUnknown as error:
            log.info("a pause cannot be loaded: %s", error)
            return None

    async def claim(
        self, token: str, *, claim: str | None = None, by: str | None = None
    ) -> dict[str, Any] | None:
        """Consume a pause like `load`, and tell every other caller who was first.

        None for a pause that cannot be read. Errors: TokenResolved, TokenUnknown.
        """
        key = self._base.keys.pause(token)
        data = await self._tokens.consume(key, by=by or self._consumer, claim=claim)
        return self._base.attempt(token_digest(token), "pause", data, lambda: as_object(data))
