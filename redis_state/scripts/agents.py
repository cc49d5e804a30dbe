"""Agents' sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redis_state.scripts.runner import (
    Fence,
    PendingReply,
    ScriptRunner,
    flat,
    raw,
)


class AgentScripts(ScriptRunner):
    """Agents' sessions."""

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
        return self._run(
            "save_session",
            (session, index, expiries, fence.lease if fence else session),
            (
                fence.mark if fence else b"",
                expected,
                raw(base),
                raw(write),
                ttl_ms,
                session_id,
                tags,
                born,
                len(dropped),
                *dropped,
                *flat(fields),
            ),
        )

    def delete_session(
        self, session: str, *, index: str, expiries: str, session_id: str
    ) -> PendingReply:
        """OK deleted."""
        return self._run_once("delete_session", (session, index, expiries), (session_id,))
