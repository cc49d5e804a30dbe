"""Tokens: open, consume once, and release."""

from __future__ import annotations

from redis_state.scripts.runner import (
    PendingReply,
    ScriptRunner,
    raw,
)


class TokenScripts(ScriptRunner):
    """Tokens: open, consume once, and release."""

    def open_token(
        self, token: str, *, payload: bytes, mark: str, ttl_ms: int, keep_ms: int
    ) -> PendingReply:
        """OK opened | TAKEN by at decision."""
        return self._run("open_token", (token,), (payload, mark, ttl_ms, keep_ms))

    def resolve_token(
        self, token: str, *, claim: str, by: str, decision: bytes, keep_ms: int
    ) -> PendingReply:
        """OK payload task | TAKEN by at decision | EXPIRED | MISSING."""
        return self._run("resolve_token", (token,), (raw(claim), raw(by), decision, keep_ms))

    def release_token(self, token: str, *, claim: str, keep_ms: int) -> PendingReply:
        """OK released | MISSING."""
        return self._run("release_token", (token,), (raw(claim), keep_ms))
