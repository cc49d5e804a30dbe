"""The archiver of a process: archives what has ended, for as long as the process runs.

It works for its share of the time. What has waited for a quarter of its lifetime is archived
without rests: later it would expire.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import TypeVar

from redis_state.archive.copying.archiver import Archiver, ArchiveReport
from redis_state.archive.copying.pace import Pace
from redis_state.archive.copying.records import RecordArchiver, RecordReport
from redis_state.archive.identity import KnownArchive
from redis_state.archive.opening import shortest_lifetime_s
from redis_state.archive.protocol import Archive
from redis_state.archive.retaining import Retainer
from redis_state.archive.retention import outliving
from redis_state.archive.waiting import ArchiveBacklog, ArchiveList
from redis_state.archive.working import WorkingArchivers
from redis_state.errors import BackendError
from redis_state.store import RedisStateStore
from redis_state.stores.archive_list import RecordList
from redis_state.worker.observe.stats import SHOWN_PERIODS, WorkerStats

T = TypeVar("T")

log: logging.Logger = logging.getLogger(__name__)

_PAUSE_S = 1.0
_COUNT_EVERY_S = 15.0
_SHOWN_S = SHOWN_PERIODS * _COUNT_EVERY_S
_RETAIN_EVERY_S = 60.0
# Of a lifetime: who has waited for longer is late.
_LATE = 0.25
# A pool that ends more than its share archives is late again and again.
_SAY_AGAIN_S = 3600.0


@dataclass(frozen=True, slots=True)
class ArchiveRound:
    """What one round of all archivers did. ``more`` is likely to be due."""

    counts: Counter[str] = field(default_factory=Counter[str])
    postponed: bool = False
    more: bool = False


class _Part:
    """A part of the work, whose trouble is survived, and logged once. The others continue."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failing = False

    async def tried(self, work: Awaitable[T]) -> T | None:
        """Await work; None if it fails."""
        try:
            done = await work
        except Exception as error:
            if not self._failing:
                unknown = None if isinstance(error, BackendError) else error
                log.warning("%s fails, trying again: %s", self._name, error, exc_info=unknown)
            self._failing = True
            return None
        self._failing = False
        return done


class _Archivers:
    """The archiver of tasks, and that of records if any class is chosen."""

    def __init__(self, store: RedisStateStore, archive: Archive, pace: Pace) -> None:
        self._tasks = Archiver(store, archive, pace=pace)
        self._waiting = ArchiveList(store)
        chosen = bool(store.settings.archive_classes)
        self._records = RecordArchiver(store, archive, pace=pace) if chosen else None
        self._listed = RecordList(store.base)
        self._of_tasks, self._of_records = _Part("archiving"), _Part("archiving records")
        self._known, self._compared = KnownArchive(store, archive), False

    async def run_once(self) -> ArchiveRound:
        """Archive what is due, once. The first time also compare the archive if nothing is due."""
        if not self._compared:
            self._compared = True
            await _Part("archiving").tried(self._known.check())
        tasks = await self._of_tasks.tried(self._tasks.run_once()) or ArchiveReport()
        records = None
        if self._records is not None:
            records = await self._of_records.tried(self._records.run_once())
        records = records or RecordReport()
        postponed = tasks.postponed + records.postponed
        more = tasks.looked >= self._tasks.full or (
            self._records is not None and records.looked >= self._records.full
        )
        counts = Counter(asdict(tasks))
        counts.update(records.counts)
        return ArchiveRound(counts, postponed=bool(postponed), more=more and not postponed)

    async def count(
        self, stats: WorkerStats | None, *, shown_s: float
    ) -> tuple[float, ArchiveBacklog]:
        """Count what waits; return it, and for how long the first of what is due is, in seconds.

        What was looked at is kept from expiring, and due later: what an archive refuses, or what
        waits for an archive that is away.
        """
        lists = [self._waiting.tasks, self._waiting.sessions]
        await self._waiting.strike_unlisted()
        backlog = await self._waiting.backlog()
        if stats is not None:
            stats.archive_backlog.put((backlog.tasks, backlog.age_s), for_s=shown_s)
            stats.sessions_behind.put(backlog.sessions, for_s=shown_s)
        if self._records is not None:
            lists.append(self._listed.watch)
            records = await self._listed.backlog()
            if stats is not None:
                stats.record_backlog.put((records.records, records.oldest_s), for_s=shown_s)
        return max(await asyncio.gather(*(each.overdue_s() for each in lists))), backlog


class _Lateness:
    """Whether what is due has been so for so long that it may expire. A line an hour says so."""

    def __init__(self, store: RedisStateStore, *, archives: bool) -> None:
        self._lifetime_s = shortest_lifetime_s(store.settings)
        self._archives = archives
        self._said_at = -_SAY_AGAIN_S
        self._waits = False
        self.late = False

    def look(self, overdue_s: float, backlog: ArchiveBacklog) -> None:
        """Learn for how long the first of what is due is, and what could not be archived.

        The latter may wait for ever, of a damaged session for one: it is only logged.
        """
        late_s, waited = self._lifetime_s * _LATE, self._waits
        self.late = overdue_s > late_s
        self._waits = self.late or backlog.behind_s > late_s
        if not self._waits or waited or monotonic() - self._said_at < _SAY_AGAIN_S:
            return
        self._said_at = monotonic()
        does = "is archived without rests" if self._archives else "this worker archives nothing"
        if self.late:
            log.warning(
                "what has ended waits to be archived for %d s, and may expire after %d s: %s",
                overdue_s,
                self._lifetime_s,
                does,
            )
            return
        # What waits for an archive that is away is kept from expiring, but not from being trimmed.
        log.warning(
            "updates of %d sessions wait to be archived for %d s, and the oldest may be trimmed",
            backlog.sessions,
            backlog.behind_s,
        )


class _RetentionRounds:
    """The rounds of retention, and of cleaning up. Archiving continues beside one of an hour."""

    def __init__(self, store: RedisStateStore, archive: Archive, stats: WorkerStats | None) -> None:
        self._retainer = Retainer(store, archive)
        if longer := outliving(store.settings):
            log.warning(
                "archive_retention removes tasks before %s: once they have gone, nothing says "
                "whose these are, and no erasure of a user finds them",
                ", ".join(longer),
            )
        self._stats = stats
        self._part = _Part("the retention of the archive")
        self._began_at = -_RETAIN_EVERY_S
        self._round: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin a round if one is due, and none runs."""
        runs = self._round is not None and not self._round.done()
        if runs or monotonic() - self._began_at < _RETAIN_EVERY_S:
            return
        # Also after trouble: the next round comes by the lease, an hour later.
        self._began_at = monotonic()
        self._round = asyncio.create_task(self._part.tried(self._remove()))

    async def _remove(self) -> None:
        report = await self._retainer.run_once()
        if report is None:
            return
        if self._stats is not None:
            self._stats.retained.update(report.rows)
        if any(report.rows.values()):
            removed = ", ".join(f"{what} {rows}" for what, rows in report.rows.items())
            log.info("removed from the archive what has expired: %s", removed)
        for name, reason in report.left.items():
            log.warning("%s of the archive %s", name, reason)

    async def end(self) -> None:
        """End the round that runs, if one does. The archive is still open."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait({self._round})


async def archive_regularly(
    store: RedisStateStore,
    archive: Archive,
    *,
    stats: WorkerStats | None = None,
    share: float | None = None,
) -> None:
    """Archive until cancelled. Any trouble with the servers is survived.

    ``share`` is the part of the time, `archive_share` by default. With 0 it only counts what waits.
    """
    share = store.settings.archive_share if share is None else share
    pace, lateness = Pace(share or 1.0), _Lateness(store, archives=share > 0)
    archivers = _Archivers(store, archive, pace)
    retention, counting = _RetentionRounds(store, archive, stats), _Part("counting what waits")
    counted_at, done, round_s = -_COUNT_EVERY_S, ArchiveRound(), 0.0
    signs, signing = WorkingArchivers(store), _Part("the sign that this process archives")
    try:
        while True:
            resting = pace.owes
            if share:
                await signing.tried(signs.sign())
            if share and not resting:
                began_at = monotonic()
                done = await archivers.run_once()
                round_s = monotonic() - began_at
                if stats is not None:
                    stats.archived.update(done.counts)
            if share and not resting and not done.postponed:
                retention.begin()
            if monotonic() - counted_at >= _COUNT_EVERY_S:
                counted_at = monotonic()
                # Nothing is counted during a round, which may be a long one.
                shown_s = max(_SHOWN_S, SHOWN_PERIODS * round_s)
                waits = await counting.tried(archivers.count(stats, shown_s=shown_s))
                if waits is not None:
                    lateness.look(*waits)
            if lateness.late and done.more:
                pace.hurry()
            else:
                pace.share = share or 1.0
            if resting:
                await pace.rest_on(most_s=_COUNT_EVERY_S)
                continue
            # Workers that began together need not archive together.
            idle_s = 0.0 if done.more else _PAUSE_S * random.uniform(0.75, 1.25)
            await pace.rest_between_rounds(least_s=idle_s, most_s=_COUNT_EVERY_S)
    finally:
        await retention.end()
        await archive.aclose()
        await signs.aclose()
