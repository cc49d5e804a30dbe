"""Leases: one owner, an epoch that only grows."""

from __future__ import annotations

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner


class LeaseScripts(ScriptRunner):
    """Leases: one owner, an epoch that only grows."""

    @script
    def acquire_lease(
        self, lease: str, *, owner: str, duration_ms: int, keep_ms: int | None
    ) -> PendingReply:
        """OK epoch | HELD left_ms."""

    @script
    def renew_lease(
        self, lease: str, *, owner: str, epoch: int, duration_ms: int, keep_ms: int | None
    ) -> PendingReply:
        """OK epoch | LOST epoch."""

    @script
    def look_lease(self, lease: str) -> PendingReply:
        """OK left_ms."""

    @script
    def release_lease(self, lease: str, *, owner: str, epoch: int) -> PendingReply:
        """OK epoch | LOST epoch."""
