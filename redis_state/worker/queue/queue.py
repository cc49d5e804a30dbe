"""The queue carries a task's name from the client to a worker, and nothing else.

The task's record is the truth. A lost, doubled or late job is harmless: one script decides by the
record whether a task starts. A sweeper puts a lost job again, when the record shows a waiting task.

What a worker claims leaves the queue, and is kept as claimed until the worker ends it. A worker
that dies between its claim and the start of the task leaves the claim, which the sweeper finds.
Jobs are in arq's format (see `job_format`): its own runner takes them too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from redis_state import limits
from redis_state.errors import CommandRefused
from redis_state.primitives.listed import behind_a_write
from redis_state.primitives.record import new_write_id
from redis_state.scripts import EndedJob, EndedJobs, QueuedJob, Scripts, raw
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.transport.key_groups import QueueKeys
from redis_state.transport.keys import Keys
from redis_state.transport.subscriber import Subscription
from redis_state.transport.transport import Transport
from redis_state.worker.queue.backlog import Backlog, read_backlog
from redis_state.worker.queue.jobs.job import (
    ClaimedJob,
    Job,
    JobPayload,
    ListedClaims,
    OldClaim,
    QueueState,
    age_s,
    seniority_ms,
    task_of,
)
from redis_state.worker.queue.jobs.job_format import payload_key, payload_of, picked_key, stated_in
from redis_state.worker.queue.limits import line_of
from redis_state.worker.queue.names import QueueNames
from redis_state.worker.queue.server import check_shared, queue_server

DEFAULT_QUEUE = "tasks"

_REMEMBERED = 64
# A claim is remembered for so long. Then its permit is free, so a run is shorter, its end included.
_CLAIM_LIFE_MS = timedelta(days=7) // timedelta(milliseconds=1)
LONGEST_RUN_S: float = timedelta(days=6).total_seconds()


class Queue:
    """The queues of a store's namespace. ``name`` is where a job goes that names none.

    Without ``queue_url`` the calls of queue and store share a connection, and their order.
    Errors: ConfigError for an address that no worker could share; InvalidField for an empty name.
    """

    def __init__(self, store: RedisStateStore, *, name: str | None = None) -> None:
        check_shared(store.settings)
        self.name: str = limits.name_or("queue", name, DEFAULT_QUEUE)
        self._store = store
        self._life_ms = ms(store.settings.active_task_ttl)
        elsewhere = queue_server(store.settings)
        self._own = None if elsewhere is None else Transport(elsewhere)
        self._scripts = store.base.scripts if self._own is None else Scripts(self._own)
        database = int(self.transport.address.options.get("db") or 0)
        self._keys = Keys(store.settings.namespace, database)
        self._jobs_tag = self._keys.jobs_tag
        self._own_names = raw(f"{self._jobs_tag}/")
        self._known: dict[str, QueueKeys] = {}
        self.names: QueueNames = QueueNames(
            self._scripts, self._keys.queue_names(), life_ms=self._life_ms
        )
        self._history = ""
        self._parked: dict[str, bytes] = {}

    @property
    def scripts(self) -> Scripts:
        """The scripts, run on the queue's server."""
        return self._scripts

    @property
    def rates_key(self) -> str:
        """The key of the namespace's rates."""
        return self._keys.rates()

    @property
    def rate_settings(self) -> str:
        """The key of the rates that were set in place of the handlers' own."""
        return self._keys.rate_settings()

    @property
    def transport(self) -> Transport:
        """The way to the queue's server."""
        return self._scripts.transport

    def keys(self, queue: str | None = None) -> QueueKeys:
        """Return the keys of a queue."""
        name = queue or self.name
        known = self._known.get(name)
        if known is None:
            known = self._keys.queue(name)
            # Names are the user's: a process has few.
            if len(self._known) < _REMEMBERED:
                self._known[name] = known
        return known

    async def put(self, job: Job) -> None:
        """Queue the run of a task that is written, where it belongs, once.

        Errors: OutcomeUnknown if it cannot be queued now: then a sweeper queues it.
        """
        name = job.queue or self.name
        with behind_a_write(self.transport.address):
            if not self.names.knows(name, at_ms=job.at_ms):
                await self.names.know(name, at_ms=job.at_ms)
            keys = self.keys(name)
            written = self._written(job, keys)
            await self._scripts.queue_job(keys, payload=payload_key(written.id), job=written)

    async def ensure_queued(
        self, jobs: Sequence[Job], *, patience_ms: int = 2_000
    ) -> list[QueueState]:
        """Ensure that the queue has these jobs, all of tasks that wait to be run.

        All of them travel together. Safe to repeat, also concurrently: a job is there once. What a
        worker claimed less than ``patience_ms`` ago is left alone: the worker may be about to start
        it. One that was merely slow then finds the task held, or starts it first. A permit stays
        until its claim is ``retired``, see `Job`. Errors: BackendUnavailable.
        """
        return [state for state, _ in await self.ensure_or_held(jobs, patience_ms=patience_ms)]

    async def ensure_or_held(
        self, jobs: Sequence[Job], *, patience_ms: int
    ) -> list[tuple[QueueState, int]]:
        """Do the same; for a job that is HELD also return when it was claimed, else 0."""
        found = await asyncio.gather(*(self._ensure(job, patience_ms) for job in jobs))
        return list(found)

    async def move(self, job: Job) -> None:
        """Move a job that is due to the place of its priority. See `place_by_record`.

        A repetition finds it there. Errors: BackendUnavailable.
        """
        name, earlier = self._ids(job)
        await self._scripts.move_job(
            self.keys(job.queue),
            payload=payload_key(name),
            earlier_payload=payload_key(earlier),
            id=name,
            earlier=earlier,
            earlier_ms=seniority_ms(job.priority),
            since_ms=job.since_ms,
        )

    async def defer(self, job: Job, *, sooner: bool) -> None:
        """Move a job that waits to another time: only sooner, or only later.

        One that is due, and waits for its key, is put off too. Errors: BackendUnavailable.
        """
        name = job.id_under(self._jobs_tag)
        await self._scripts.defer_job(
            self.keys(job.queue),
            payload=payload_key(name),
            id=name,
            at_ms=job.at_ms or 0,
            earlier_ms=seniority_ms(job.priority),
            sooner=sooner,
            life_ms=self._life_ms,
        )

    async def backlog(self, queue: str | None = None, *, ages: bool = True) -> Backlog:
        """Return what waits, what is claimed, and the limits. Errors: BackendUnavailable."""
        return await read_backlog(self._store, self._scripts, self.keys(queue), ages=ages)

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

    async def clear(self) -> None:
        """Forget everything queued. The tasks stay as they are: a sweeper queues what waits again.

        Errors: BackendUnavailable.
        """
        await self._scripts.clear_queue(self.keys(), history=self._keys.queue_history())

    async def history(self, *, picking: bool = False) -> tuple[str, bool]:
        """Return what distinguishes the history of the queues from one that was lost, "" if their
        server does not say; and whether arq's own runner picked jobs within a day.

        ``picking`` if it does now. Errors: BackendUnavailable.
        """
        reply = await self._scripts.know_history(
            self._keys.queue_history(), id=new_write_id(), picking=picking
        )
        history = reply.text(0)
        if history != self._history:
            # What this process has written may be lost. Tasks that wait are ensured again.
            self.names.doubt()
            self._history = history
        return history, reply.facts[1] == 1

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

    async def aclose(self) -> None:
        """Disconnect this loop from a server of the queue's own. Safe to repeat."""
        if self._own is not None:
            await self._own.aclose()

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

    async def _ensure(self, job: Job, patience_ms: int) -> tuple[QueueState, int]:
        await self.names.know(job.queue or self.name, at_ms=job.at_ms)
        keys = self.keys(job.queue)
        written = self._written(job, keys)
        _, earlier = self._ids(job)
        reply = await self._scripts.ensure_job(
            keys,
            payload=payload_key(written.id),
            picked=picked_key(written.id),
            earlier_payload=payload_key(earlier),
            job=written,
            earlier=earlier,
            orphan=job.orphan,
            version=str(job.version),
            patience_ms=patience_ms,
            retired=job.retired_ms,
        )
        state = QueueState(reply.text(0))
        return state, int(reply.facts[1]) if state is QueueState.HELD else 0

    def _ids(self, job: Job) -> tuple[str, str]:
        """Return a job's id, and that of the run before."""
        tag = self._jobs_tag
        return job.id_under(tag), job._replace(runs=max(0, job.runs - 1)).id_under(tag)

    def _written(self, job: Job, keys: QueueKeys) -> QueuedJob:
        return QueuedJob(
            channel=keys.channel,
            id=job.id_under(self._jobs_tag),
            payload=payload_of(job.stated()),
            life_ms=self._life_ms,
            earlier_ms=seniority_ms(job.priority),
            since_ms=job.since_ms,
            at_ms=job.at_ms,
            key=job.key,
        )


def _payload_of(job: ClaimedJob) -> str:
    return payload_key(job.id.decode("utf-8", "replace"))
