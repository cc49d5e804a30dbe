"""Leases: one owner, an epoch that only grows."""

from __future__ import annotations

from redis_state.transport.scripts.run import (
    Reply,
    ScriptRunner,
    raw,
)


class LeaseScripts(ScriptRunner):
    """Leases: one owner, an epoch that only grows."""

    async def acquire_lease(
        self, lease: str, *, owner: str, duration_ms: int, keep_ms: int
    ) -> Reply:
        """OK epoch | HELD left_ms."""
        return await self._run("acquire_lease", (lease,), (raw(owner), duration_ms, keep_ms))

    async def renew_lease(
        self, lease: str, *, owner: str, epoch: int, duration_ms: int, keep_ms: int
    ) -> Reply:
        """OK epoch | LOST epoch."""
        return await self._run("renew_lease", (lease,), (raw(owner), epoch, duration_ms, keep_ms))

    async def release_lease(self, lease: str, *, owner: str, epoch: int) -> Reply:
        """OK epoch | LOST epoch."""
        return await self._run("release_lease", (lease,), (raw(owner), epoch))
