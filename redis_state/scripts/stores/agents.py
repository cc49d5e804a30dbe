"""Agents' sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import Fence


class AgentScripts(ScriptRunner):
    """Agents' sessions."""

    @script
    def save_session(
        self,
        session: str,
        fields: Mapping[str, bytes],
        *,
        index: str,
        expiries: str,
        session_id: str,
        tags: str,
        born: str,
        expected: int,
        base: str,
        dropped: Sequence[str],
        write: str,
        ttl_ms: int,
        fence: Fence | None = None,
    ) -> PendingReply:
        """OK version | STALE version | MISSING | AGAIN | LOST epoch."""

    @script
    def delete_session(
        self, session: str, *, index: str, expiries: str, session_id: str
    ) -> PendingReply:
        """OK deleted."""
