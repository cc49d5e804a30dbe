"""The token: consumed by exactly one caller; all others learn by whom, when and how."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Any

from redis_state.errors import TokenResolved, TokenUnknown
from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.serialization import codec


class Tokens:
    """Open and consume one-time tokens. A token's key names it by its digest only."""

    def __init__(self, scripts: Scripts, *, keep_ms: int) -> None:
        self._scripts = scripts
        self._keep_ms = keep_ms

    async def open(self, key: str, payload: bytes, *, ttl_ms: int) -> bool:
        """Open a token, or renew an open one with this payload and a new expiry.

        Returns False, and does nothing, if it was already used with this very payload: that is a
        repeated save. Errors: TokenResolved if it was used with another one.
        """
        reply = await self._scripts.open_token(
            key, payload=payload, mark=payload_mark(payload), ttl_ms=ttl_ms, keep_ms=self._keep_ms
        )
        if reply.word is ReplyCode.TAKEN:
            raise resolved(reply)
        return bool(reply.facts[0])

    async def consume(
        self, key: str, *, actor: str, decision: Any = None, claim: str | None = None
    ) -> bytes:
        """Consume a token and return its payload; exactly one claim gets it.

        The same ``claim`` repeated gets the same payload, for as long as the token's trace is
        kept. Errors: TokenResolved for everybody else, TokenUnknown if it expired or never was.
        """
        reply = await self._scripts.resolve_token(
            key,
            claim=claim or new_claim(),
            actor=actor,
            decision=codec.encode(decision),
            keep_ms=self._keep_ms,
        )
        payload: bytes = raise_unless_won(reply).facts[0]
        return payload

    async def release(self, key: str, *, claim: str) -> bool:
        """Open a token again that a claim has, as if the claim had never come. It never will.

        For a claim whose caller left before the reply. False if the claim does not have the token.
        """
        reply = await self._scripts.release_token(key, claim=claim, keep_ms=self._keep_ms)
        return reply.word is ReplyCode.OK and bool(reply.facts[0])


def raise_unless_won(reply: Reply, decode: Callable[[bytes], Any] = codec.decode) -> Reply:
    """Return the winner's reply; raise the error of every other caller."""
    if reply.word is ReplyCode.TAKEN:
        raise resolved(reply, decode)
    if reply.word in (ReplyCode.EXPIRED, ReplyCode.MISSING):
        raise TokenUnknown(expired=reply.word is ReplyCode.EXPIRED)
    return reply


def resolved(reply: Reply, decode: Callable[[bytes], Any] = codec.decode) -> TokenResolved:
    """Read by whom, when and how a token was used."""
    return TokenResolved(
        actor=reply.text(0), at_ms=int(reply.facts[1]), decision=decode(reply.facts[2])
    )


def payload_mark(payload: bytes) -> str:
    """Return a digest that identifies a payload."""
    return hashlib.sha256(payload).hexdigest()[:32]


def new_claim() -> str:
    """Return a new id for one consumer's call."""
    return secrets.token_urlsafe(16)
