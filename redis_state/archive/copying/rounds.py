"""The rounds of an archiver: what is due is copied, verified, marked, and left to expire.

Every step may be repeated, by any process: the archive knows what it has by keys of its own, and
the mark names the version that was verified. What differs is the source: see `Archiver` for tasks
with the updates of their sessions, `RecordArchiver` for records of all other classes.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from time import monotonic
from typing import Any, ClassVar, Generic, Self, TypeVar

from redis_state.archive.copying.pace import Pace
from redis_state.archive.identity import KnownArchive
from redis_state.archive.model import (
    ArchiveBatch,
    ArchivedRecord,
    ArchivedTask,
    ArchiveVerdict,
)
from redis_state.archive.protocol import Archive
from redis_state.backoff import Backoff
from redis_state.errors import ArchiveUnavailable, OtherArchive
from redis_state.primitives.watchlist.watchlist import WatchClaim, WatchList
from redis_state.scripts import ReplyCode
from redis_state.transport.keys import WATCH_SHARDS

log: logging.Logger = logging.getLogger(__name__)

HOLD_MS = 120_000
AGAIN_MS, TROUBLE_MS = 1_000, 3_600_000
_AWAY_MS = Backoff(4_000, 600_000)
_SAY_AGAIN_S = 3600.0

CopyT = TypeVar("CopyT", ArchivedTask, ArchivedRecord)
ReportT = TypeVar("ReportT", bound="RoundReport")


@dataclass(slots=True)
class RoundReport:
    """The result of one round. ``missed`` rows were trimmed before they were archived.

    ``postponed`` entries wait for the archive, ``other`` of them because it is not the one that
    Redis knows. What is ``refused`` it does not take. What is ``erased`` is of before its session
    was erased: it expires, and is not copied.
    """

    looked: int = 0
    missed: int = 0
    postponed: int = 0
    other: int = 0
    refused: int = 0
    erased: int = 0

    def __iadd__(self, other: Self) -> Self:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        return self


@dataclass(slots=True)
class CopyRound(Generic[ReportT]):
    """What a round has come to. ``settled`` says when each entry is due again; None for never.

    Those that are ``behind`` were due, and could not be archived.
    """

    report: ReportT
    settled: dict[bytes, int | None] = field(default_factory=dict[bytes, int | None])
    behind: set[bytes] = field(default_factory=set[bytes])

    def refuse(self, claim: WatchClaim) -> None:
        """Set aside what cannot be archived."""
        self.report.refused += 1
        self.settled[claim.entry] = TROUBLE_MS
        self.behind.add(claim.entry)

    def postpone(self, claim: WatchClaim, *, failures: int) -> None:
        """Leave what waits for an archive that has failed so often."""
        self.report.postponed += 1
        self.settled[claim.entry] = round(_AWAY_MS.after(failures))
        self.behind.add(claim.entry)


@dataclass(frozen=True, slots=True)
class DueCopy(Generic[CopyT]):
    """What is being archived, and the claim on its entry. The archive knows it by ``known_by``."""

    claim: WatchClaim
    copy: CopyT
    owner: str
    known_by: Hashable
    size: int


class ArchiverRounds(ABC, Generic[CopyT, ReportT]):
    """Archive what is due on some watch lists. ``limit`` bounds a round, for each shard.

    ``pace`` rests between the pieces of a round. By default it lets the loop run between them.
    """

    what: ClassVar[str]

    def __init__(
        self,
        archive: Archive,
        known: KnownArchive,
        lists: Sequence[WatchList],
        report: Callable[[], ReportT],
        *,
        limit: int,
        pace: Pace | None,
    ) -> None:
        self._archive = archive
        self._known = known
        self._lists = lists
        self._report = report
        self._limit = limit
        self._pace = pace or Pace()
        self._failures = 0
        self._said: tuple[type[ArchiveUnavailable] | None, float] = None, 0.0

    @property
    def full(self) -> int:
        """From how many entries on a round is a full one, with more to come."""
        return self._limit * WATCH_SHARDS // 2

    async def run_once(self) -> ReportT:
        """Archive what is due, once. Errors: BackendError, except ArchiveUnavailable.

        With an archive that is away it keeps what would expire, and postpones.
        """
        done = CopyRound(self._report())
        self._pace.begin()
        claims = await asyncio.gather(
            *(each.claim_due(limit=self._limit, hold_ms=HOLD_MS) for each in self._lists)
        )
        done.report.looked = sum(map(len, claims))
        if not done.report.looked:
            return done.report
        try:
            await self._known.ready()
            await self._pace.rest()
            await self._archive_all(claims, done)
            self._failures = 0
        except ArchiveUnavailable as error:
            self._say(error)
            self._failures += 1
            # It may have gone back to before it had tables, or be another one.
            self._known.forget()
            await self._keep(claims, done)
            if isinstance(error, OtherArchive):
                done.report.other += done.report.postponed
        finally:
            await self._settle(claims, done)
        return done.report

    def _say(self, error: ArchiveUnavailable) -> None:
        """Log what keeps all from being archived: once, and each hour what a person must settle."""
        kind, at = self._said
        other = isinstance(error, OtherArchive)
        again = type(error) is not kind or (other and monotonic() - at >= _SAY_AGAIN_S)
        if not self._failures or again:
            self._said = type(error), monotonic()
            level = logging.ERROR if other else logging.WARNING
            log.log(level, "%s; %ss stay in Redis", error, self.what)

    @abstractmethod
    async def _archive_all(
        self, claims: Sequence[Sequence[WatchClaim]], done: CopyRound[ReportT]
    ) -> None:
        """Read what was claimed on each list, and archive it."""

    @abstractmethod
    async def _keep(self, claims: Sequence[Sequence[WatchClaim]], done: CopyRound[ReportT]) -> None:
        """Keep from expiring what could not be archived, and postpone it."""

    @abstractmethod
    def _batch(self, copies: Sequence[CopyT]) -> ArchiveBatch: ...

    @abstractmethod
    def _others(self, verdict: ArchiveVerdict) -> Mapping[Any, str | None]:
        """Return what the archive has instead, by what it is known by."""

    @abstractmethod
    async def _stamps(self, some: Sequence[DueCopy[CopyT]]) -> Sequence[str | None]:
        """Return which state of each Redis has now."""

    @abstractmethod
    async def _mark(self, due: DueCopy[CopyT]) -> ReplyCode:
        """Mark as archived, and let expire, what is still as it was read."""

    @abstractmethod
    def _count(self, due: DueCopy[CopyT], report: ReportT) -> None: ...

    async def _hold_refused(self, due: DueCopy[CopyT]) -> None:
        """Keep from expiring what the archive refuses, unless reading it did so."""

    async def _without_erased(
        self,
        found: Sequence[DueCopy[CopyT]],
        erased: Mapping[str, int],
        done: CopyRound[ReportT],
    ) -> list[DueCopy[CopyT]]:
        """Leave out what is of before its session was erased: Redis may have gone back."""
        left: list[DueCopy[CopyT]] = []
        gone: list[DueCopy[CopyT]] = []
        for each in found:
            later = each.copy.born_us >= erased.get(each.owner, 0)
            (left if later else gone).append(each)
        # To be read it was kept from expiring. It is not to live longer for that.
        await asyncio.gather(*map(self._mark, gone))
        done.settled |= {each.claim.entry: None for each in gone}
        done.report.erased += len(gone)
        return left

    async def _archive_some(self, some: Sequence[DueCopy[CopyT]], done: CopyRound[ReportT]) -> None:
        batch = self._batch([each.copy for each in some])
        try:
            await self._archive.write(batch)
        except ArchiveUnavailable as error:
            if not error.refused:
                raise
            if len(some) > 1:
                for each in some:
                    await self._archive_some([each], done)
                return
            log.error("a %s cannot be archived: %s", self.what, error)  # noqa: TRY400 - it says all
            await self._hold_refused(some[0])
            done.refuse(some[0].claim)
            return
        await self._pace.rest()
        other = self._others(await self._archive.verify(batch))
        await self._pace.rest()
        there = [each for each in some if each.known_by not in other]
        if other:
            there += await self._correct([each for each in some if each.known_by in other], other)
        marked = await asyncio.gather(*map(self._mark, there))
        for each, word in zip(there, marked, strict=True):
            # One that has changed since is due again.
            if word is not ReplyCode.STALE:
                done.settled[each.claim.entry] = None
                self._count(each, done.report)

    async def _correct(
        self, some: Sequence[DueCopy[CopyT]], other: Mapping[Any, str | None]
    ) -> list[DueCopy[CopyT]]:
        """Replace what the archive has instead, if Redis still has what was read.

        After a rollback of the server it may be another one, and at a lower version.
        """
        same = [
            each
            for each, stamp in zip(some, await self._stamps(some), strict=True)
            if stamp == each.copy.stamp and other[each.known_by] is not None
        ]
        if not same:
            return []
        batch = self._batch([replace(each.copy, replaces=other[each.known_by]) for each in same])
        await self._archive.write(batch)
        left = self._others(await self._archive.verify(batch))
        for each in same:
            if each.known_by in left:
                # Another archiver has written meanwhile, or the archive changes what it gets.
                log.warning(
                    "%s is not in the archive as it was sent: it is sent again", self._title(each)
                )
        return [each for each in same if each.known_by not in left]

    @abstractmethod
    def _title(self, due: DueCopy[CopyT]) -> str:
        """Return what it is called in a log."""

    async def _settle(
        self,
        claims: Sequence[Sequence[WatchClaim]],
        done: CopyRound[ReportT],
    ) -> None:
        """Settle what was decided. What was not is due again when its claim runs out."""
        settled = done.settled
        for watch, claimed in zip(self._lists, claims, strict=True):
            await watch.settle(
                (each, settled[each.entry]) for each in claimed if each.entry in settled
            )
