"""Scheduled jobs: each occurrence is given to one scheduler of all, and moves on when it is fired.

Which occurrences are due is the caller's question, and his clock's. Whose they are, and for how
long, is decided on the server's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from redis_state import limits
from redis_state.errors import LeaseLost, LostRace
from redis_state.primitives.lease import HeldLease, Leases, Renewal, new_owner
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.record import Stored, new_write_id
from redis_state.scripts import Reply, ReplyCode
from redis_state.serialization import codec
from redis_state.serialization.fields import text
from redis_state.serialization.rows import as_object
from redis_state.stores.base import Base, ms
from redis_state.transport.key_groups import JobKeys

_MOST_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class JobClaim:
    """An occurrence that one scheduler has: of which job, due when, begun how often before."""

    job_id: str
    session_id: str
    held: HeldLease
    due_us: int
    attempts: int
    document: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Planned:
    """A job as it stands: its document, and when it is due next, in microseconds."""

    document: dict[str, Any] = field(repr=False)
    next_us: int | None


class JobStore:
    """Save, list and claim jobs, and note their runs."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._lease_ms = ms(base.settings.job_lease)
        self._leases = Leases(base.scripts, keep_ms=None)
        self._ttl_ms = ms(base.settings.jobs_ttl)
        self._runs = Bounds(base.settings.max_runs_per_job, ms(base.settings.job_runs_ttl))

    async def save(
        self,
        job_id: str,
        session_id: str,
        document: dict[str, Any],
        *,
        next_us: int | None,
        interval_s: int | None,
        enabled: bool,
    ) -> None:
        """Save a job and plan its next occurrence; the last save wins.

        An occurrence that was fired is not planned again, and one that is claimed stays claimed.
        """
        if interval_s is not None:
            limits.count("schedule.interval_s", interval_s)
        await self._base.scripts.save_job(
            self._keys(job_id, session_id),
            {"document": codec.encode(document)},
            write=new_write_id(),
            ttl_ms=self._ttl_ms,
            job_id=job_id,
            next_us=next_us,
            interval_us=None if interval_s is None else interval_s * 1_000_000,
            enabled=enabled,
        )

    async def list(self, session_id: str | None) -> list[Planned]:
        """Return a session's jobs, or all, in the order of their first save."""
        keys = self._base.keys
        index = keys.jobs() if session_id is None else keys.jobs_of(session_id)
        jobs = await self._base.list_ordered("jobs", "job", index, key_of=keys.job, read=_read)
        return [job for job in jobs if session_id in (None, job.document.get("session_id"))]

    async def claim_due(self, up_to_us: int) -> Sequence[JobClaim]:
        """Claim what is due at a moment, 500 at most, the longest due first.

        Each claim is one atomic step, and holds for `job_lease`.
        """
        claims: list[JobClaim] = []
        owner, seen = new_owner(), 0
        commands, due = self._base.scripts.transport.commands, self._base.keys.jobs_due()
        while len(claims) < _MOST_AT_ONCE:
            room = _MOST_AT_ONCE - len(claims)
            found: list[bytes] = await commands.zrange_up_to(due, up_to_us, offset=seen, count=room)
            if not found:
                break
            seen += len(found)
            names = [name.decode("utf-8", "surrogatepass") for name in found]
            tried = await asyncio.gather(*(self._claim(name, owner, up_to_us) for name in names))
            claims += [claim for claim in tried if claim is not None]
        return claims

    async def begin(self, claim: JobClaim) -> int:
        """Record that a claimed occurrence begins; return how often it has begun.

        Holds it for `job_lease` from now. Errors: LostRace if another scheduler has it.
        """
        reply = await self._base.scripts.start_job(
            claim.held.key, claim.held.fence, lease_ms=self._lease_ms
        )
        return int(_kept(reply, claim).facts[0])

    def keep(self, claim: JobClaim, *, wanted: Callable[[], bool]) -> Renewal:
        """Renew a claim as long as it is ``wanted``. `begin` and `end` raise if it was lost."""
        return self._leases.keep(
            claim.held, duration_ms=self._lease_ms, on_lost=lambda _: None, wanted=wanted
        )

    async def release(self, claim: JobClaim) -> None:
        """Release a claim, for any scheduler. Until one comes, it can still be begun."""
        with suppress(LeaseLost):
            await self._leases.renew(claim.held, duration_ms=0)

    async def end(self, claim: JobClaim) -> int | None:
        """End an occurrence as fired; return when the job is due next, None for never.

        That is the next future moment of its own rhythm, counted from when this occurrence was due.
        Missed moments are left out. Errors: LostRace.
        """
        reply = await self._base.scripts.end_job(
            self._keys(claim.job_id, claim.session_id),
            claim.held.fence,
            job_id=claim.job_id,
            ttl_ms=self._ttl_ms,
        )
        return _moment(_kept(reply, claim).facts[0])

    async def record_run(self, job_id: str, document: dict[str, Any]) -> None:
        """Append a run, once per content."""
        row = (codec.fingerprint(document).encode(), codec.encode(document))
        await self._log(job_id).add(row)

    async def runs(self, job_id: str) -> Sequence[dict[str, Any]]:
        """Return the recorded runs of a job, oldest first."""
        rows = await self._log(job_id).read_all()
        return self._base.read_rows("jobs", "run", rows, lambda row: as_object(row.data))

    async def _claim(self, job_id: str, owner: str, up_to_us: int) -> JobClaim | None:
        key = self._base.keys.job(job_id)
        reply = await self._base.scripts.claim_job(
            key,
            self._base.keys.jobs_due(),
            owner=owner,
            lease_ms=self._lease_ms,
            job_id=job_id,
            up_to_us=up_to_us,
        )
        if reply.word is not ReplyCode.OK:
            return None
        epoch, data, due_us, attempts = reply.facts
        held = HeldLease(key, owner, int(epoch))

        def read() -> JobClaim:
            document = as_object(data)
            session_id = text("session_id", document.get("session_id"))
            return JobClaim(job_id, session_id, held, int(due_us), int(attempts), document)

        return self._base.attempt("jobs", f"job {job_id}", data, read)

    def _keys(self, job_id: str, session_id: str) -> JobKeys:
        keys = self._base.keys
        return JobKeys(keys.job(job_id), keys.jobs(), keys.jobs_of(session_id), keys.jobs_due())

    def _log(self, job_id: str) -> Log:
        return Log(self._base.scripts, self._base.keys.job_runs(job_id), self._runs)


def _read(_: str, record: Stored) -> Planned:
    return Planned(as_object(record.fields["document"]), _moment(record.fields["next"]))


def _kept(reply: Reply, claim: JobClaim) -> Reply:
    if reply.word is ReplyCode.LOST:
        raise LostRace(f"another scheduler has job {claim.job_id!r}")
    return reply


def _moment(written: bytes) -> int | None:
    return int(written) if written else None
