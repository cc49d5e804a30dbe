"""OAuth tokens and scheduled jobs."""

from __future__ import annotations

from collections.abc import Mapping

from redis_state.scripts.runner import (
    PendingReply,
    ScriptRunner,
    flat,
    raw,
)
from redis_state.transport.keys import JobKeys


class JobScripts(ScriptRunner):
    """OAuth tokens and scheduled jobs."""

    # OAuth tokens

    def save_oauth_token(
        self, token: str, *, value: bytes, expires_ms: int | None, ttl_ms: int
    ) -> PendingReply:
        """OK kept."""
        expires = "" if expires_ms is None else expires_ms
        return self._run_once("save_oauth_token", (token,), (value, expires, ttl_ms))

    # Scheduled jobs

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
        return self._run(
            "save_job",
            (keys.job, keys.jobs, keys.jobs_of, keys.due),
            (
                write,
                ttl_ms,
                raw(job_id),
                "" if next_us is None else next_us,
                "" if interval_us is None else interval_us,
                int(enabled),
                *flat(fields),
            ),
        )

    def claim_job(
        self, job: str, due: str, *, owner: str, lease_ms: int, job_id: str, asked_us: int
    ) -> PendingReply:
        """OK document next attempts | HELD left_ms | DENIED | MISSING."""
        return self._run("claim_job", (job, due), (owner, lease_ms, raw(job_id), asked_us))

    def hold_job(self, job: str, *, owner: str, lease_ms: int, begins: bool) -> PendingReply:
        """OK attempts | LOST."""
        return self._run("hold_job", (job,), (owner, lease_ms, int(begins)))

    def end_job(self, keys: JobKeys, *, owner: str, job_id: str, ttl_ms: int) -> PendingReply:
        """OK next_us | LOST."""
        return self._run_once(
            "end_job",
            (keys.job, keys.jobs, keys.jobs_of, keys.due),
            (owner, raw(job_id), ttl_ms),
        )
