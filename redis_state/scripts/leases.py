"""Leases: one owner, an epoch that only grows."""

from __future__ import annotations

from redis_state.scripts.runner import (
    PendingReply,
    ScriptRunner,
    raw,
)


class LeaseScripts(ScriptRunner):
    """Leases: one owner, an epoch that only grows."""

    def acquire_lease(
        self, lease: str, *, owner: str, duration_ms: int, keep_ms: int
    ) -> PendingReply:
        """OK epoch | HELD left_ms."""
        return self._run("acquire_lease", (lease,), (raw(owner), duration_ms, keep_ms))

    def renew_lease(
        self, lease: str, *, owner: str, epoch: int, duration_ms: int, keep_ms: int
    ) -> PendingReply:
        """OK epoch | LOST epoch."""
        return self._run("renew_lease", (lease,), (raw(owner), epoch, duration_ms, keep_ms))

    def look_lease(self, lease: str) -> PendingReply:
        """OK left_ms."""
        return self._run("look_lease", (lease,), ())

    def release_lease(self, lease: str, *, owner: str, epoch: int) -> PendingReply:
        """OK epoch | LOST epoch."""
        return self._run("release_lease", (lease,), (raw(owner), epoch))
