"""Cron jobs, as arq has them: the clean-up of old tasks is one; and what runs them in a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from redis_state.errors import BackendError, ConfigError
from redis_state.primitives.lease import Leases, new_owner
from redis_state.store import RedisStateStore
from redis_state.timeouts import timeout
from redis_state.worker.queue.jobs.job_format import CRON_PREFIX

if TYPE_CHECKING:
    from arq.cron import CronJob as CronJob  # noqa: PLC0414 - also for who takes cron jobs

log: logging.Logger = logging.getLogger(__name__)


NEEDS_ARQ = "{} needs arq: pip install 'redis_state[worker]'"
# How long it is remembered that a worker has a moment of a cron job: clocks differ by less.
_REMEMBERED_MS = 3_600_000
# How long a cron job that sets no limit may take.
_LONGEST_S = 3_600.0
_AGAIN_S = 1.0


class CleansUp(Protocol):
    """What can clean up: `TaskStateManager`, for one."""

    async def cleanup_old_tasks(self, older_than: timedelta) -> int:
        """Drop tasks that ended longer ago than that; return how many."""
        ...


def cleanup_cron(
    tasks: CleansUp,
    *,
    older_than: timedelta = timedelta(days=7),
    hour: int | set[int] | None = 2,
    minute: int | set[int] | None = 0,
    second: int | set[int] | None = 0,
    run_at_startup: bool = False,
    name: str = "cleanup_old_tasks",
) -> CronJob:
    """Make a cron job that removes tasks which ended longer ago than ``older_than``.

    It runs daily at 2:00. ``hour=None`` runs it each hour. Use it for ``AgentWorker(crons=…)`` and
    for arq's own ``cron_jobs``. All workers may have it: each time one of them runs it. If several
    did, each task would still be removed once. A failed run is left to the next. Several in one
    worker need a name each. Errors: ConfigError, also without arq.
    """
    try:
        from arq.cron import cron  # noqa: PLC0415 - workers do without arq
    except ImportError as error:
        raise ConfigError(NEEDS_ARQ.format("a cron job")) from error
    length = isinstance(older_than, timedelta)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not length or older_than < timedelta(0):
        raise ConfigError("older_than: a timedelta from 0 is needed")
    if not name:
        raise ConfigError("a cron job needs a name")

    async def clean(ctx: dict[Any, Any]) -> int:  # noqa: ARG001 - what arq gives
        dropped = await tasks.cleanup_old_tasks(older_than)
        log.info("%s: %d tasks dropped", name, dropped)
        return dropped

    return cron(
        clean,
        name=CRON_PREFIX + name,
        hour=hour,
        minute=minute,
        second=second,
        run_at_startup=run_at_startup,
    )


def copies(jobs: Sequence[CronJob]) -> list[CronJob]:
    """Copy cron jobs for one worker, which notes in them when they are due.

    Errors: ConfigError for what is no cron job that the queue would know again, and without arq.
    """
    if not jobs:
        return []
    try:
        from arq.cron import CronJob  # noqa: PLC0415 - workers do without arq
    except ImportError as error:
        raise ConfigError(NEEDS_ARQ.format("crons")) from error
    for job in jobs:
        if not isinstance(job, CronJob):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError("crons: each needs to be made by cleanup_cron() or arq's cron()")
        if not job.name.startswith(CRON_PREFIX):
            raise ConfigError(f"crons: the name {job.name!r} needs to begin with {CRON_PREFIX!r}")
    if len({job.name for job in jobs}) < len(jobs):
        raise ConfigError("crons: one name is given twice")
    return [replace(job, next_run=None) for job in jobs]


def plan_next(job: CronJob, now: datetime) -> None:
    """Write into a cron job when it is due next, by the clocks of this process's time zone then.

    arq counts by the clocks of now. If they change until then, workers that began before the change
    and after it would mean two moments of one.
    """
    job.calculate_next(now)
    due = job.next_run
    then = None if due is None else due.astimezone()
    if due is None or then is None or then.utcoffset() == now.utcoffset():
        return
    wall = due.replace(tzinfo=None)
    moved = wall.astimezone()
    moments = [moved] if moved.replace(tzinfo=None) == wall else []
    # One that comes each hour comes in both passes of a repeated hour. A time that is skipped comes
    # right after the change.
    job.calculate_next(then - timedelta(seconds=1))
    if job.next_run == then or not moments:
        moments.append(then)
    job.next_run = min(moments)


class Moments:
    """Who runs a moment of a cron job: the first worker that asks, under whatever runner.

    A lease of its own says so. A worker that dies with it leaves the job to its next moment.
    """

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._leases = Leases(store.base.scripts, keep_ms=_REMEMBERED_MS)

    async def take(self, job: CronJob, due_ms: int) -> bool:
        """Return whether this worker runs the job's moment."""
        if not job.unique:
            return True
        key = self._store.base.keys.cron(job.name, due_ms)
        try:
            held = await self._leases.acquire(key, duration_ms=_REMEMBERED_MS, owner=new_owner())
        except BackendError as error:
            log.warning("the cron job %s is left to the next time: %s", job.name, error)
            return False
        return held is not None


class CronRunner:
    """Run cron jobs at their times: each time in one of the workers that have the job.

    One that ``is_draining`` would cancel what it begins: it leaves the moment to the others.
    """

    def __init__(
        self, store: RedisStateStore, jobs: Sequence[CronJob], *, is_draining: Callable[[], bool]
    ) -> None:
        self._jobs = copies(jobs)
        self._is_draining = is_draining
        self._moments = Moments(store)
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run what is due until cancelled."""
        now = datetime.now().astimezone()
        for job in self._jobs:
            plan_next(job, now)
            if job.run_at_startup:
                job.next_run = now
        try:
            while True:
                self._begin_due()
                due = min(job.next_run for job in self._jobs if job.next_run is not None)
                wait_s = (due - datetime.now().astimezone()).total_seconds()
                await asyncio.sleep(min(max(wait_s, 0.0), _AGAIN_S))
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _begin_due(self) -> None:
        now = datetime.now().astimezone()
        for job in self._jobs:
            moment = job.next_run
            if moment is None or moment > now:
                continue
            if not self._is_draining():
                task = asyncio.create_task(self._run(job, moment))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            plan_next(job, max(moment, now))

    async def _run(self, job: CronJob, moment: datetime) -> None:
        try:
            if await self._moments.take(job, round(moment.timestamp() * 1000)):
                async with timeout(job.timeout_s or _LONGEST_S):
                    await job.coroutine({"job_id": job.name, "job_try": 1})
        except Exception:
            log.exception("the cron job %s failed", job.name)
