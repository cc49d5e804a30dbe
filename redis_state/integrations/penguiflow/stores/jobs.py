"""PenguiFlow's job store on Redis, for its own scheduler in any number of processes.

The scheduler asks for what is due, and for each job records a run, spawns it, and saves the job if
it repeats. It never says that a job without an interval was spawned. But it asks its list for the
next job only when the spawning of the last one returned: `DueJobs` takes that as the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any

from penguiflow.sessions.scheduler import JobDefinition, JobRunRecord

from redis_state.errors import BackendError, LostRace
from redis_state.integrations.penguiflow.adapter.standalone import StandaloneStore
from redis_state.primitives.lease import Renewal
from redis_state.serialization.fields import dumped, text
from redis_state.settings import Settings, make_settings
from redis_state.stores.base import ms
from redis_state.stores.hosts.jobs import JobClaim, JobStore, Planned
from redis_state.stores.sessions.task_fields import microseconds

log: logging.Logger = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RETRY_S = 0.2

Spawn = Callable[[JobDefinition], Awaitable[str]]


@dataclass(slots=True)
class HeldJob:
    """A claimed job of this process: as it was handed out, and how far its run has come."""

    claim: JobClaim
    requested: datetime
    handed: dict[str, Any]
    begun: bool = False
    ended: bool = False
    failed: bool = False
    lost: bool = False
    next_us: int | None = None

    @property
    def waits(self) -> bool:
        """Return whether it is still to be ended, and worth holding."""
        return not (self.ended or self.failed or self.lost)


@dataclass(slots=True)
class Batch:
    """What one call of `list_due` claimed. ``at`` is the job that a loop over it is at."""

    held: dict[str, HeldJob]
    task: asyncio.Task[Any] | None
    at: str | None = None
    renewals: list[Renewal] = field(default_factory=list[Renewal], repr=False)

    @property
    def is_done(self) -> bool:
        """Return whether no process can work on it any more."""
        return self.task is None or self.task.done()


class DueJobs(list[Any]):
    """Claimed jobs. A loop over them reports each one whose turn ended well to the store."""

    def __init__(
        self, jobs: Sequence[JobDefinition], store: PenguiflowJobStore, batch: Batch
    ) -> None:
        super().__init__(jobs)
        self._store = store
        self._batch = batch

    def __iter__(self) -> Iterator[JobDefinition]:
        store, batch = self._store, self._batch
        store.keep_up(batch)
        try:
            for job in super().__iter__():
                batch.at = job.job_id
                yield job
                store.passed(batch)
        except GeneratorExit:
            # The loop was left, by an error perhaps: then its job is left to its lease.
            store.give_back(batch)
            raise
        finally:
            store.leave(batch)


class PenguiflowJobStore(StandaloneStore):
    """Scheduled jobs. Each due occurrence is given to one scheduler of all processes."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._jobs = JobStore(self.base)
        self._batches: list[Batch] = []
        self._guards = False

    async def save_job(self, job: JobDefinition) -> None:
        """Save a job; the last save wins. Sets its `updated_at`.

        What the scheduler saves after a run does not decide when the job is due next: that is the
        first moment of its own rhythm that is still to come, and is set in ``job`` too. A job that
        was fired is not fired again for a save that came late. Errors: InvalidField.
        """
        job.updated_at = datetime.now(UTC)
        claimed = self._claimed(job.job_id).held
        held = claimed.get(job.job_id)
        if held is not None and held.begun and _moved_on(job, held):
            if held.waits:
                with self._surviving("a fired job"):
                    await self._end(held)
            if held.failed or held.lost or not held.ended:
                return
            job.schedule.next_run_at = _when(held.next_us)
            claimed.pop(job.job_id, None)
            if _content(job) == held.handed:
                return
        schedule = job.schedule
        await self._jobs.save(
            text("job_id", job.job_id),
            text("session_id", job.session_id),
            dumped("job", job.model_dump),
            next_us=None if schedule.next_run_at is None else microseconds(schedule.next_run_at),
            interval_s=schedule.interval_s,
            enabled=job.enabled,
        )

    async def list_jobs(self, session_id: str | None = None) -> list[JobDefinition]:
        """Return a session's jobs, or all, by first save. A fired one-shot job is due at None."""
        found = await self._jobs.list(session_id)
        jobs = (self._read(planned) for planned in found)
        return [job for job in jobs if job is not None]

    async def list_due(self, now: datetime) -> list[JobDefinition]:
        """Claim and return the enabled jobs that are due at ``now``, 500 at most.

        No other call of any process gets them while the claim is valid: `job_lease`, longer while a
        loop over the list runs. ``now`` decides what is due, so a scheduler whose clock is ahead
        fires early. It does not fire twice, because the server keeps the claims. The claim of a job
        that was not fired expires, and the next call of any process gets the job. With `guarded`,
        none is due while the server is away.
        """
        task = asyncio.current_task()
        for batch in [old for old in self._batches if old.task is task or old.is_done]:
            self._forget(batch)
        batch = Batch({}, task)
        jobs: list[JobDefinition] = []
        with self._surviving("due jobs"):
            for claim in await self._jobs.claim_due(microseconds(now)):
                if claim.attempts >= self.settings.job_attempts:
                    await self._give_up(claim)
                    continue
                job = self._read(Planned(claim.document, claim.due_us))
                if job is not None:
                    batch.held[claim.job_id] = HeldJob(claim, now, _content(job))
                    jobs.append(job)
        self._batches.append(batch)
        return DueJobs(jobs, self, batch)

    async def record_run(self, run: JobRunRecord) -> None:
        """Record a run, and that the claimed job has begun.

        Inside of a loop over `list_due` the job counts as fired when the loop reaches the next job.
        Outside of one it counts now. Errors: LostRace if the claim expired and another scheduler
        has the job; BackendError. With `guarded` the job is left out instead.
        """
        job_id = text("job_id", run.job_id)
        batch = self._claimed(job_id)
        held = batch.held.get(job_id)
        if held is None or held.begun or run.completed_at is not None:
            await self._jobs.record_run(run.job_id, dumped("run", run.model_dump))
            return
        held.begun = True
        with self._surviving(f"a run of job {job_id!r}"):
            try:
                await self._jobs.begin(held.claim)
                await self._jobs.record_run(run.job_id, dumped("run", run.model_dump))
            except BackendError:
                held.failed = True
                raise
            except LostRace:
                held.lost = True
                if not self._guards:
                    raise
        if not held.waits:
            return
        if batch.at != job_id:
            await self._end(held)

    async def list_runs(self, job_id: str) -> list[JobRunRecord]:
        """Return a job's newest runs, each as last recorded, in the order of their first record."""
        runs: dict[str, JobRunRecord] = {}
        for document in await self._jobs.runs(job_id):
            run = JobRunRecord.model_validate(document)
            runs[run.run_id] = run
        return list(runs.values())

    def guarded(self, spawn: Spawn) -> Spawn:
        """Wrap the scheduler's spawn function, so that a failure does not end the scheduler.

        PenguiFlow's runner silently ends at the first error. Guarded, one of a spawn is logged by
        its kind and recorded as a run with the status ``failed``. The job is offered again when its
        lease expires, `job_attempts` times in all. While the server is away, nothing is spawned.
        """
        self._guards = True

        async def guard(job: JobDefinition) -> str:
            held = self._claimed(job.job_id).held.get(job.job_id)
            if held is not None and (held.lost or held.failed):
                log.info("job %r is left to the scheduler that has it next", job.job_id)
                return ""
            try:
                return await spawn(job)
            except Exception as error:  # noqa: BLE001 - a host's own code, any failure
                log.error("spawning job %r failed: %s", job.job_id, type(error).__name__)  # noqa: TRY400 - an error's text may be a payload
            if held is not None:
                held.failed = True
            with self._surviving(f"a failed run of job {job.job_id!r}"):
                await self._note(job.job_id, "failed")
            return ""

        return guard

    # Called by a loop over DueJobs

    def keep_up(self, batch: Batch) -> None:
        """Renew the batch's claims until `leave`."""
        self.leave(batch)
        with suppress(RuntimeError):  # no event loop
            for held in batch.held.values():
                wanted = partial(_waits, held, batch)
                batch.renewals.append(self._jobs.keep(held.claim, wanted=wanted))

    def passed(self, batch: Batch) -> None:
        """Take the job that the loop was at as fired, if its run was recorded."""
        held = batch.held.get(batch.at or "")
        batch.at = None
        if held is not None and held.begun and held.waits:
            self._background(self._end(held))

    def give_back(self, batch: Batch) -> None:
        """Release the claims that the loop did not reach, for any scheduler."""
        for job_id, held in batch.held.items():
            if job_id != batch.at and held.waits and not held.begun:
                self._background(self._release(held))

    def leave(self, batch: Batch) -> None:
        """Stop to renew the batch's claims."""
        batch.at = None
        while batch.renewals:
            batch.renewals.pop().stop()

    async def _release(self, held: HeldJob) -> None:
        # Another loop over the same list may have come to it meanwhile.
        if not held.begun:
            await self._jobs.release(held.claim)

    async def _end(self, held: HeldJob) -> None:
        """End an occurrence as fired, asking again while its lease may hold."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + ms(self.settings.job_lease) / 1000
        while True:
            try:
                held.next_us = await self._jobs.end(held.claim)
                held.ended = True
            except LostRace:
                held.lost = True
            except BackendError:
                if loop.time() > give_up_at:
                    raise
                await asyncio.sleep(_RETRY_S)
                continue
            return

    async def _give_up(self, claim: JobClaim) -> None:
        log.error("job %r was begun %d times and never ended", claim.job_id, claim.attempts)
        await self._note(claim.job_id, "given_up")
        with suppress(LostRace):
            await self._jobs.end(claim)

    @contextmanager
    def _surviving(self, what: str) -> Generator[None]:
        """Log trouble with the server instead of raising it, if `guarded`: it ends the runner."""
        try:
            yield
        except BackendError as error:
            if not self._guards:
                raise
            log.warning("%s cannot be read or written: %s", what, error)

    async def _note(self, job_id: str, status: str) -> None:
        run = JobRunRecord(job_id=job_id, completed_at=datetime.now(UTC), status=status)
        await self._jobs.record_run(job_id, dumped("run", run.model_dump))

    def _claimed(self, job_id: str) -> Batch:
        """Return what the running task has claimed; of one that has claimed nothing, with this job.

        Two schedulers of a process may have had a job one after the other: each has its own claim.
        """
        task = asyncio.current_task()
        own = (batch for batch in self._batches if batch.task is task)
        having = (batch for batch in reversed(self._batches) if job_id in batch.held)
        return next(chain(own, having), Batch({}, task))

    def _forget(self, batch: Batch) -> None:
        self.leave(batch)
        self._batches.remove(batch)

    def _read(self, planned: Planned) -> JobDefinition | None:
        def read() -> JobDefinition:
            job = JobDefinition.model_validate(planned.document)
            wanted = job.schedule.next_run_at
            if wanted is None or planned.next_us != microseconds(wanted):
                job.schedule.next_run_at = _when(planned.next_us)
            return job

        return self.base.attempt("jobs", "job", b"", read)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await work
            except BackendError as error:
                log.warning("the store of jobs could not be written: %s", error)

        background = self.base.background
        try:
            task = asyncio.get_running_loop().create_task(run())
        except RuntimeError:
            # A loop over the jobs that ends outside of an event loop: leases do the rest.
            work.close()
            return
        background.add(task)
        task.add_done_callback(background.discard)


def create_job_store(*, url: str | None = None, **options: Any) -> PenguiflowJobStore:
    """Make the job store. No I/O; the first call connects.

    The server is ``url``, else ``REDIS_STATE_URL``; options are the fields of `Settings`, among
    them ``job_lease`` and ``job_attempts``. Errors: ConfigError names an option that cannot be
    used.
    """
    return PenguiflowJobStore(make_settings(url, **options))


def _waits(held: HeldJob, batch: Batch) -> bool:
    return held.waits and not batch.is_done


def _moved_on(job: JobDefinition, held: HeldJob) -> bool:
    """Return whether a job is due when the scheduler itself says so after a run."""
    return (
        job.schedule.interval_s is not None
        and job.schedule.next_run_at == job.schedule.next_after(held.requested)
    )


def _content(job: JobDefinition) -> dict[str, Any]:
    """Return all of a job except what each run changes."""
    changing: Any = {"updated_at": True, "schedule": {"next_run_at"}}
    content: dict[str, Any] = dumped("job", partial(job.model_dump, exclude=changing))
    return content


def _when(moment_us: int | None) -> datetime | None:
    return None if moment_us is None else _EPOCH + timedelta(microseconds=moment_us)
