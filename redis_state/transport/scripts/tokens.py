"""Tokens: open, and consume once."""

from __future__ import annotations

from redis_state.transport.scripts.run import (
    Asked,
    ScriptRunner,
    raw,
)


class TokenScripts(ScriptRunner):
    """Tokens: open, and consume once."""

    def open_token(
        self, token: str, *, payload: bytes, mark: str, ttl_ms: int, keep_ms: int
    ) -> Asked:
        """OK opened | TAKEN by at decision."""
        return self._run("open_token", (token,), (payload, mark, ttl_ms, keep_ms))

    def resolve_token(
        self, token: str, *, claim: str, by: str, decision: bytes, keep_ms: int
    ) -> Asked:
        """OK payload task | TAKEN by at decision | EXPIRED | MISSING."""
        return self._run("resolve_token", (token,), (raw(claim), raw(by), decision, keep_ms))
