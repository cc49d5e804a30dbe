"""Take a job's task up, if it is there to be run: start it, run it, and count the run."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic

from redis_state.errors import (
    BackendError,
    CommandRefused,
    CorruptState,
    InvalidTransition,
    LeaseLost,
    NoConnection,
    PayloadUnreadable,
)
from redis_state.primitives.lease import HeldLease, Renewal, new_owner
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.job_parts import JOB_FIELDS, job_in
from redis_state.worker.observe import tracing as telemetry
from redis_state.worker.observe.stats import RunOutcome as Ended
from redis_state.worker.queue.jobs.job import JobPayload, RunAgain, waited_s
from redis_state.worker.runs.config import AGAIN_S, RunConfig
from redis_state.worker.runs.run import TaskRun
from redis_state.worker.runs.waiting import shielded
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.started import LEFT_TO_OTHERS, NotStarted, StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions

log: logging.Logger = logging.getLogger(__name__)

# A task that this process cannot read is another worker's, if one has the key.
_UNREADABLE_S = 5.0
# So is one that another version of the library has written. Not all at the same moment.
_LEFT_S = (5.0, 15.0)
# One whose record or lease is none cannot even be failed: it waits for the repair. So does one
# whose start is refused, perhaps in its middle: each such start adds rows to the session's updates.
_UNMENDED_S = 30.0


async def run_task(
    store: RedisStateStore,
    config: RunConfig,
    job: JobPayload,
    *,
    queue: str,
    permit: bytes | None = None,
    on_begun: Callable[[], None] | None = None,
) -> str | None:
    """Run a task if it is there to be run; else return why it was not started.

    Raises only RunAgain and CancelledError.

    With ``permit`` the job's claim, which has that mark, is what lets the task run at all. A run
    whose lease had run out lost its own, and may have renewed its lease since: the claim is kept
    for it. ``on_begun`` is called right before the handler.
    """
    transitions = TaskTransitions(store)
    start = partial(_start, store, transitions, config, job, permit)
    try:
        started = await start()
        while permit and isinstance(started, NotStarted) and started.reason == "held":
            await asyncio.sleep(min(started.left_ms / 1000, AGAIN_S))
            started = await start()
        if isinstance(started, StartedRun):
            run = TaskRun(store, config, started, transitions, on_begun=on_begun)
            if not (run.lacks_code and await run.left_to_others(queue)):
                await _counted(run, config, started, job, queue=queue)
        else:
            _leave_to_others(job, started)
            # Its job is dropped. If the owner of the task dies, the sweeper queues the task.
            log.info("task %r is not started: %s", job.task_id, started.reason)
            unstarted = TaskBookkeeping(store).inspect_unstarted
            await unstarted(job.session_id, job.task_id, started)
            return started.reason
    except RunAgain:
        raise
    except PayloadUnreadable as error:
        log.warning("task %r is left to another worker: %s", job.task_id, error)
        raise RunAgain(defer_s=_UNREADABLE_S) from None
    except BackendError as error:
        log.warning("task %r is tried again: %s", job.task_id, error)
        is_lasting = isinstance(error, (CorruptState, CommandRefused))
        raise RunAgain(defer_s=_UNMENDED_S if is_lasting else AGAIN_S) from None
    except Exception:
        log.exception("task %r is tried again", job.task_id)
        raise RunAgain(defer_s=config.lease_s) from None
    return None


def _leave_to_others(job: JobPayload, started: NotStarted) -> None:
    """Errors: RunAgain for a task that only other workers may be able to run."""
    if started.reason in LEFT_TO_OTHERS:
        log.info("task %r is left to other workers: %s", job.task_id, started.reason)
        raise RunAgain(defer_s=random.uniform(*_LEFT_S))


async def _start(
    store: RedisStateStore,
    transitions: TaskTransitions,
    config: RunConfig,
    job: JobPayload,
    permit: bytes | None,
) -> StartedRun | NotStarted:
    """Start a task. While the server is unreachable, retry for the length of a lease.

    It counts from the first time: what is read at a start may take longer than that.
    Each retry has the same name. So a start whose reply was lost is found again, and is not
    mistaken for the run of a dead worker. One that is cancelled is taken back.
    """
    owner, clock = new_owner(), asyncio.get_running_loop().time
    end: float | None = None
    ends_s = monotonic() + config.keep_s

    def keep(held: HeldLease, on_lost: Callable[[LeaseLost], object]) -> Renewal:
        return config.keep(held, job.task_id, ends_s=ends_s, on_lost=on_lost)

    async def start() -> StartedRun | NotStarted:
        return await transitions.start(
            job.session_id,
            job.task_id,
            owner=owner,
            lease_ms=config.lease_ms,
            worker=config.worker,
            keep=keep,
            max_crashes=config.max_crashes,
            claimed=permit,
        )

    async def take_back() -> None:
        lease = store.tasks.keys(job.session_id, job.task_id).lease
        with suppress(BackendError, LeaseLost, InvalidTransition):
            held = await store.transport.commands.hget(lease, "owner")
            started = await start() if held == owner.encode() else None
            if isinstance(started, StartedRun):
                # As if it had not been started: earlier deaths count on.
                await transitions.give_back(started, None)

    try:
        while True:
            try:
                await _check_readable(store, job)
                return await start()
            except NoConnection:
                end = end or clock() + config.lease_s
                if clock() + AGAIN_S > end:
                    raise
                await asyncio.sleep(AGAIN_S)
    except asyncio.CancelledError:
        # It may have happened. Else its lease had to run out, and this worker counted as dead.
        await shielded(take_back())
        raise


async def _check_readable(store: RedisStateStore, job: JobPayload) -> None:
    """Leave a task as it is whose input this process cannot read, if it has met such a one.

    So a worker without keys starts one task that it gives back, and then none. Errors:
    PayloadUnreadable.
    """
    payloads = store.base.payloads
    if payloads.met_unreadable:
        key = store.base.keys.task(job.session_id, job.task_id)
        fields = ("item:1", "document", "progress", *JOB_FIELDS)
        found = await store.transport.commands.hmget(key, *fields)
        names = ("input", "context_snapshot", "progress", "input")
        for name, value in zip(names, (*found[:3], job_in(found[3:])), strict=True):
            payloads.need_all(value, of=f"task {job.task_id!r}", field=name)


async def _counted(
    run: TaskRun,
    config: RunConfig,
    started: StartedRun,
    job: JobPayload,
    *,
    queue: str,
) -> None:
    """Run a task that was started, with a span around it and among the worker's runs."""
    state = started.state
    entry = config.stats.begin(
        state.session_id,
        state.task_id,
        started.handler,
        taken_over=started.taken_over,
        queue=queue,
        waited_s=waited_s(job, priority=state.priority)
        if job.runs + 1 == started.attempts
        else None,
    )
    span = telemetry.running(
        started.handler,
        parent=started.trace,
        queued_by=job.trace,
        session_id=state.session_id,
        task_id=state.task_id,
        worker=config.worker,
        epoch=started.held.epoch,
        attempt=started.attempts,
        taken_over=started.taken_over,
    )
    with span:
        try:
            await run.run()
        finally:
            config.stats.end(entry, run.ended, lost=run.lost)
            span.set(outcome=run.ended.value)
            if run.ended is Ended.FAILED:
                span.fail("the task has failed")
