"""The archiver of a worker: archives what has ended, for as long as the worker runs."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from dataclasses import asdict, dataclass, field
from time import monotonic

from redis_state.archive.archiver import Archiver
from redis_state.archive.protocol import Archive
from redis_state.archive.records import RecordArchiver, RecordReport
from redis_state.archive.retaining import Retainer
from redis_state.archive.waiting import ArchiveList
from redis_state.errors import BackendError
from redis_state.store import RedisStateStore
from redis_state.stores.archive_list import RecordList
from redis_state.worker.observe.stats import WorkerStats

log: logging.Logger = logging.getLogger(__name__)

_PAUSE_S = 1.0
_COUNT_EVERY_S = 15.0
_RETAIN_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class ArchiveRound:
    """What one round of all archivers did. ``more`` is likely to be due."""

    counts: Counter[str] = field(default_factory=Counter[str])
    postponed: bool = False
    more: bool = False


class _Archivers:
    """The archiver of tasks, and that of records if any class is chosen."""

    def __init__(self, store: RedisStateStore, archive: Archive) -> None:
        self._tasks = Archiver(store, archive)
        self._waiting = ArchiveList(store)
        chosen = bool(store.settings.archive_classes)
        self._records = RecordArchiver(store, archive) if chosen else None
        self._listed = RecordList(store.base)

    async def run_once(self) -> ArchiveRound:
        """Archive what is due, once."""
        tasks, records = await self._tasks.run_once(), RecordReport()
        if self._records is not None:
            records = await self._records.run_once()
        postponed = tasks.postponed + records.postponed
        more = tasks.looked >= self._tasks.full or (
            self._records is not None and records.looked >= self._records.full
        )
        counts = Counter(asdict(tasks))
        counts.update(records.counts)
        return ArchiveRound(counts, postponed=bool(postponed), more=more and not postponed)

    async def count(self, stats: WorkerStats) -> None:
        """Count what waits."""
        backlog = await self._waiting.backlog()
        stats.archive_backlog = backlog.tasks, backlog.oldest_s
        if self._records is not None:
            records = await self._listed.backlog()
            stats.record_backlog = records.records, records.oldest_s


async def archive_regularly(
    store: RedisStateStore, archive: Archive, *, stats: WorkerStats | None = None
) -> None:
    """Archive until cancelled. Any trouble with the servers is survived."""
    archivers = _Archivers(store, archive)
    retainer, retained_at = Retainer(store, archive), -_RETAIN_EVERY_S
    failing, counted_at = False, -_COUNT_EVERY_S
    try:
        while True:
            done = ArchiveRound()
            try:
                done = await archivers.run_once()
                if monotonic() - retained_at >= _RETAIN_EVERY_S and not done.postponed:
                    # Also after trouble: the next round comes by the lease, an hour later.
                    retained_at = monotonic()
                    await _retain(retainer, stats)
                if stats is not None and monotonic() - counted_at >= _COUNT_EVERY_S:
                    await archivers.count(stats)
                    counted_at = monotonic()
                failing = False
            except Exception as error:
                if not failing:
                    unknown = None if isinstance(error, BackendError) else error
                    log.warning("archiving fails, trying again: %s", error, exc_info=unknown)
                failing = True
            if stats is not None:
                stats.archived.update(done.counts)
            if not done.more:
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
