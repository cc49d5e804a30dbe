"""OAuth tokens and scheduled jobs."""

from __future__ import annotations

from collections.abc import Mapping

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import Fence
from redis_state.transport.key_groups import JobKeys


class JobScripts(ScriptRunner):
    """OAuth tokens and scheduled jobs."""

    # OAuth tokens

    @script
    def save_oauth_token(
        self, token: str, *, value: bytes, expires_ms: int | None, ttl_ms: int
    ) -> PendingReply:
        """OK kept."""

    # Scheduled jobs

    @script
    def save_job(
        self,
        keys: JobKeys,
        fields: Mapping[str, bytes],
        *,
        write: str,
        ttl_ms: int,
        job_id: str,
        next_us: int | None,
        interval_us: int | None,
        enabled: bool,
    ) -> PendingReply:
        """OK version."""

    @script
    def claim_job(
        self, job: str, due: str, *, owner: str, lease_ms: int, job_id: str, up_to_us: int
    ) -> PendingReply:
        """OK epoch document next attempts | HELD left_ms | DENIED | MISSING."""

    @script
    def start_job(self, job: str, fence: Fence, *, lease_ms: int) -> PendingReply:
        """OK attempts | LOST epoch."""

    @script
    def end_job(self, keys: JobKeys, fence: Fence, *, job_id: str, ttl_ms: int) -> PendingReply:
        """OK next_us | LOST epoch."""
