"""The archiver of a worker: archives what has ended, for as long as the worker runs."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import asdict
from time import monotonic

from redis_state.archive.archiver import Archiver, ArchiveReport
from redis_state.archive.protocol import Archive
from redis_state.archive.retaining import Retainer
from redis_state.archive.waiting import ArchiveList
from redis_state.errors import BackendError
from redis_state.store import RedisStateStore
from redis_state.worker.observe.stats import WorkerStats

log: logging.Logger = logging.getLogger(__name__)

_PAUSE_S = 1.0
_COUNT_EVERY_S = 15.0
_RETAIN_EVERY_S = 60.0


async def archive_regularly(
    store: RedisStateStore, archive: Archive, *, stats: WorkerStats | None = None
) -> None:
    """Archive until cancelled. Any trouble with the servers is survived."""
    archiver, waiting = Archiver(store, archive), ArchiveList(store)
    retainer, retained_at = Retainer(store, archive), -_RETAIN_EVERY_S
    failing, counted_at = False, -_COUNT_EVERY_S
    try:
        while True:
            report = ArchiveReport()
            try:
                report = await archiver.run_once()
                if monotonic() - retained_at >= _RETAIN_EVERY_S and not report.postponed:
                    # Also after trouble: the next round comes by the lease, an hour later.
                    retained_at = monotonic()
                    await _retain(retainer, stats)
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


async def _retain(retainer: Retainer, stats: WorkerStats | None) -> None:
    report = await retainer.run_once()
    if report is None:
        return
    if stats is not None:
        stats.retained.update(report.rows)
    if any(report.rows.values()):
        removed = ", ".join(f"{what} {rows}" for what, rows in report.rows.items())
        log.info("removed from the archive what has expired: %s", removed)
    for name, reason in report.left.items():
        log.warning("%s of the archive %s", name, reason)
