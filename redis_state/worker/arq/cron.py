"""The clean-up of old tasks as a cron job of arq's workers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from arq.cron import CronJob, cron

from redis_state.errors import ConfigError
from redis_state.worker.arq.job_format import CRON_PREFIX

log: logging.Logger = logging.getLogger(__name__)


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
    worker need a name each. Errors: ConfigError.
    """
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

    Errors: ConfigError for what is no cron job that the queue would know again.
    """
    for job in jobs:
        if not isinstance(job, CronJob):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError("crons: each needs to be made by cleanup_cron() or arq's cron()")
        if not job.name.startswith(CRON_PREFIX):
            raise ConfigError(f"crons: the name {job.name!r} needs to begin with {CRON_PREFIX!r}")
    if len({job.name for job in jobs}) < len(jobs):
        raise ConfigError("crons: one name is given twice")
    return [replace(job, next_run=None) for job in jobs]
