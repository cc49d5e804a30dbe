"""Tokens: open, consume once, and release."""

from __future__ import annotations

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner


class TokenScripts(ScriptRunner):
    """Tokens: open, consume once, and release."""

    @script
    def open_token(
        self, token: str, *, payload: bytes, mark: str, ttl_ms: int, keep_ms: int
    ) -> PendingReply:
        """OK opened | TAKEN by at decision."""

    @script
    def resolve_token(
        self, token: str, *, claim: str, actor: str, decision: bytes, keep_ms: int
    ) -> PendingReply:
        """OK payload task | TAKEN by at decision | EXPIRED | MISSING."""

    @script
    def release_token(self, token: str, *, claim: str, keep_ms: int) -> PendingReply:
        """OK released | MISSING."""
