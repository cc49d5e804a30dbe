"""What a worker does with the queue: it claims jobs, parks some, and ends its claims.

What a worker claims leaves the queue, and is kept as claimed until the worker ends it. A worker
that dies between its claim and the start of the task leaves the claim, which the sweeper finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from redis_state.errors import CommandRefused
from redis_state.scripts import EndedJob, EndedJobs, raw
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.transport.subscriber import Subscription
from redis_state.worker.queue.access import QueueAccess
from redis_state.worker.queue.jobs.job import (
    ClaimedJob,
    Job,
    JobPayload,
    ListedClaims,
    OldClaim,
    age_s,
    task_of,
)
from redis_state.worker.queue.jobs.job_format import payload_key, stated_in
from redis_state.worker.queue.limits import line_of

# A claim is remembered for so long. Then its permit is free, so a run is shorter, its end included.
_CLAIM_LIFE_MS = timedelta(days=7) // timedelta(milliseconds=1)
LONGEST_RUN_S: float = timedelta(days=6).total_seconds()


class QueueClaims(QueueAccess):
    """The claims on the jobs of a namespace's queues."""

    def __init__(self, store: RedisStateStore, *, name: str | None = None) -> None:
        super().__init__(store, name=name)
        self._own_names = raw(f"{self._jobs_tag}/")
        self._parked: dict[str, bytes] = {}

    async def claim(self, queue: str, *, limit: int) -> list[ClaimedJob]:
        """Claim the first jobs that are due, at most so many. Errors: BackendUnavailable.

        A call whose reply was lost gets the same jobs when it is repeated. If it fails, what it
        claimed is found by a sweeper.
        """
        reply = await self._scripts.claim_jobs(
            self.keys(queue), limit=limit, life_ms=_CLAIM_LIFE_MS
        )
        now, limited, parked, *rest = reply.facts
        self.record_parked(queue, parked)
        return await self._claimed(queue, now, rest, is_limited=limited == 1)

    async def claim_parked(
        self, queue: str, lanes: Sequence[str], *, limit: int
    ) -> tuple[list[ClaimedJob], bytes, bool]:
        """Claim jobs that wait for a worker with their version, as `claim`. See `parked`.

        Return also up to when what was parked is known, and whether there may be more of these
        lanes. Errors: BackendUnavailable.
        """
        reply = await self._scripts.claim_parked(
            self.keys(queue), limit=limit, life_ms=_CLAIM_LIFE_MS, lanes=lanes
        )
        now, parked, more, *rest = reply.facts
        self.record_parked(queue, parked)
        return await self._claimed(queue, now, rest, is_limited=True), parked, more == 1

    async def park(self, job: ClaimedJob, lane: str, *, version: int) -> None:
        """End a claim, and keep its job for a worker that serves a lane.

        ``version`` is that of the task's record: if the record changes, a sweeper queues the job.
        Errors: BackendUnavailable.
        """
        await self._scripts.park_job(
            self.keys(job.queue),
            payload=self._payload_beside(job),
            id=job.id,
            claimed=job.claimed,
            place=job.place,
            lane=lane,
            version=version,
            life_ms=self._life_ms,
        )

    async def parked(
        self, queue: str, *, lanes: int, limit: int
    ) -> list[tuple[str, int, list[bytes]]]:
        """List lanes of a queue that have jobs, how many, and the first of them.

        Errors: BackendUnavailable.
        """
        keyed = self.keys(queue).keyed
        flat = (await self._scripts.look_parked(keyed, lanes=lanes, limit=limit)).facts
        return [
            (lane.decode(), count, members)
            for lane, count, members in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        ]

    def parked_at(self, queue: str) -> bytes:
        """Return when a job of a queue was last parked, by the last claim; else b""."""
        return self._parked.get(queue, b"")

    def record_parked(self, queue: str, at: bytes) -> None:
        """Remember when a job of a queue was last parked."""
        self._parked[queue] = at

    async def old_claims(
        self, queue: str, *, listed: ListedClaims, patience_ms: int, limit: int = 256
    ) -> tuple[ListedClaims, list[OldClaim]]:
        """List the claims that are older than ``patience_ms``, the oldest first.

        Then those of before the server's clock was set back. Return also which are ``listed`` by
        now, for the next call. Errors: BackendUnavailable.
        """
        reply = await self._scripts.list_claims(
            self.keys(queue).claims,
            after=listed.after_ms,
            ahead=listed.ahead_ms,
            patience_ms=patience_ms,
            limit=limit,
        )
        return listed.read(queue, *reply.facts)

    def claim_of(self, session_id: str, task_id: str) -> str:
        """Return a task as claims name it."""
        return Job(session_id, task_id, 0, 0).claim_under(self._jobs_tag)

    async def claimed_of(self, queue: str | None, key: str) -> set[str]:
        """List the claims of what waits in the line of a key: it has begun, or is about to.

        Errors: BackendUnavailable.
        """
        under = raw(line_of(key))
        found: list[bytes] = await self.transport.commands.zrange_by_lex(
            self.keys(queue).holders, b"[" + under + b"\0", b"(" + under + b"\1"
        )
        return {member[len(under) + 1 :].decode() for member in found}

    async def payload(self, job: ClaimedJob) -> JobPayload | None:
        """Read what a claimed job says itself. Errors: BackendUnavailable, CommandRefused."""
        payload = await self.transport.commands.get(_payload_of(job))
        return JobPayload.read(stated_in(payload))

    async def end(self, queue: str, jobs: Sequence[tuple[ClaimedJob, int | None]]) -> None:
        """End claims. A job with a number is due again in so many ms.

        Errors: BackendUnavailable.
        """
        ended = [
            EndedJob(self._payload_beside(job), job.id, job.claimed, again_ms, job.place, job.begun)
            for job, again_ms in jobs
        ]
        await self._scripts.end_jobs(self.keys(queue), EndedJobs(ended), life_ms=self._life_ms)
        for job, again_ms in jobs:
            if again_ms is None and not self._is_ours(job):
                # Where this process may not, it is left to expire.
                with suppress(CommandRefused):
                    await self.transport.commands.unlink(_payload_of(job))

    def listen(self, queue: str) -> Subscription:
        """Follow the channel on which a queue's workers are woken."""
        return self.transport.subscriber.subscribe(self.keys(queue).channel)

    async def drop_claims(
        self,
        queue: str | None,
        tasks: Sequence[tuple[tuple[str, str], TaskStatusView | None]],
        *,
        before_ms: int,
    ) -> None:
        """End what is left of the claims of tasks that had ended at that time, or waited for more.

        With each task comes its record as it was read then, None for one that is gone: what was
        parked before that goes too.
        """
        tag = self._jobs_tag
        names = [
            (
                Job(*task, 0, 0).claim_under(tag),
                None if found is None else found.version,
                None if found is None else found.attempts,
            )
            for task, found in tasks
        ]
        await self._scripts.drop_claims(self.keys(queue), before_ms=before_ms, tasks=names)

    async def _claimed(
        self,
        queue: str,
        now: bytes,
        flat: Sequence[bytes],
        *,
        is_limited: bool,
    ) -> list[ClaimedJob]:
        claimed = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        return [
            await self._named(
                ClaimedJob(job_id, queue, mark, None, place=place),
                age_s(place, now),
                is_limited=is_limited,
            )
            for job_id, place, mark in claimed
        ]

    async def _named(
        self, nameless: ClaimedJob, place_age_s: float | None, *, is_limited: bool
    ) -> ClaimedJob:
        try:
            task = task_of(nameless.id)
        except ValueError:
            return nameless
        if task is None:
            try:
                task = await self.payload(nameless)
            except CommandRefused:
                task = None
        if task is None:
            return nameless
        named = JobPayload(task.session_id, task.task_id, task.runs, place_age_s=place_age_s)
        return ClaimedJob(
            nameless.id, nameless.queue, nameless.claimed, named, is_limited, nameless.place
        )

    def _is_ours(self, job: ClaimedJob) -> bool:
        """Return whether a job has a name as clients of this namespace give it.

        arq's own runner and clients of arq name theirs otherwise.
        """
        return job.id.startswith(self._own_names)

    def _payload_beside(self, job: ClaimedJob) -> str:
        """Return the key of a job's payload; a key without a value if the job is not ours.

        That payload may be in another slot, or beyond this user's rights: no job that is ended in
        the same call would end.
        """
        return _payload_of(job) if self._is_ours(job) else payload_key(f"{self._jobs_tag}/")


def _payload_of(job: ClaimedJob) -> str:
    return payload_key(job.id.decode("utf-8", "replace"))
