"""What arq's own runner does: our process beside it, each task a job of its."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from arq.cron import CronJob
from arq.worker import Retry

from redis_state.worker.queue.jobs.job import JobPayload, RunAgain
from redis_state.worker.queue.jobs.job_format import RUN_TASK, deserialize, serialize

log: logging.Logger = logging.getLogger(__name__)

P = TypeVar("P")

_SERVICES = "redis_state.services"
# arq itself reads no more of a queue, and running jobs stay in it.
_ARQ_READS = 10_000


def runner_options(
    *,
    make: Callable[[], P],
    start: Callable[[P], Awaitable[None]],
    end: Callable[[P], Awaitable[None]],
    run: Callable[[P, JobPayload], Awaitable[None]],
    crons: Sequence[CronJob],
    take: Callable[[P, CronJob, int], Awaitable[bool]],
) -> dict[str, Any]:
    """Return the part of arq's settings that is the same for every worker.

    A process is made and started before arq takes jobs, and ended after it. It runs each task. It
    takes each moment of a cron job first: workers that are not arq's may have the same job.
    """

    async def startup(ctx: dict[Any, Any]) -> None:
        process = ctx[_SERVICES] = make()
        await start(process)

    async def shutdown(ctx: dict[Any, Any]) -> None:
        process: P | None = ctx.pop(_SERVICES, None)
        if process is not None:
            await end(process)

    async def run_job(ctx: dict[Any, Any], stated: Any) -> None:
        job = JobPayload.read(stated)
        if job is None:
            log.warning("a job that names no task is dropped")
            return
        try:
            await run(ctx[_SERVICES], job)
        except RunAgain as again:
            raise Retry(defer=again.defer_s) from None

    def once(job: CronJob) -> CronJob:
        async def run_moment(ctx: dict[Any, Any]) -> Any:
            # What is tried again was taken by the first try.
            if ctx["job_try"] == 1 and not await take(ctx[_SERVICES], job, _due_ms(job, ctx)):
                return None
            return await job.coroutine(ctx)

        return replace(job, coroutine=run_moment)

    run_job.__qualname__ = RUN_TASK
    return {
        "functions": [run_job],
        "cron_jobs": [once(job) for job in crons],
        "on_startup": startup,
        "on_shutdown": shutdown,
        "job_serializer": serialize,
        "job_deserializer": deserialize,
        "queue_read_limit": _ARQ_READS,
        "keep_result": 0,
        "max_tries": 1_000_000,
        "health_check_interval": 15,
        "log_results": False,
    }


def _due_ms(job: CronJob, ctx: dict[Any, Any]) -> int:
    """Return the moment for which arq has queued a cron job. One with an id has it as its score."""
    name, _, due = ctx["job_id"].rpartition(":")
    return int(due) if job.job_id is None and name == job.name else ctx["score"]
