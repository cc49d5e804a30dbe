"""The archiver of a worker: archives what has ended, for as long as the worker runs."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import asdict
from time import monotonic

from redis_state.archive.archiver import Archiver, ArchiveReport
from redis_state.archive.protocol import Archive
from redis_state.archive.waiting import ArchiveList
from redis_state.errors import BackendError
from redis_state.store import RedisStateStore
from redis_state.worker.observe.stats import WorkerStats

log: logging.Logger = logging.getLogger(__name__)

_PAUSE_S = 1.0
_COUNT_EVERY_S = 15.0


async def archive_regularly(
    store: RedisStateStore, archive: Archive, *, stats: WorkerStats | None = None
) -> None:
    """Archive until cancelled. Any trouble with the servers is survived."""
    archiver, waiting = Archiver(store, archive), ArchiveList(store)
    failing, counted_at = False, -_COUNT_EVERY_S
    try:
        while True:
            report = ArchiveReport()
            try:
                report = await archiver.run_once()
                if stats is not None and monotonic() - counted_at >= _COUNT_EVERY_S:
                    backlog = await waiting.backlog()
                    stats.archive_backlog = backlog.tasks, backlog.oldest_s
                    counted_at = monotonic()
                failing = False
            except Exception as error:
                if not failing:
                    unknown = None if isinstance(error, BackendError) else error
                    log.warning("archiving fails, trying again: %s", error, exc_info=unknown)
                failing = True
            if stats is not None:
                stats.archived.update(asdict(report))
            if report.postponed or report.looked < archiver.full:
                # Workers that began together need not archive together.
                await asyncio.sleep(_PAUSE_S * random.uniform(0.75, 1.25))
    finally:
        await archive.aclose()
