"""The archiver of records: copies each that waits, verifies it, marks it, and lets it expire.

    a record is there      it is copied at its version, verified and marked
    it is marked           at this version it is archived: its entry is removed
    it is gone             likewise: it was deleted, or never saved
    its class is unknown   a newer version has put it on the list: its entry stays for that one
    it cannot be read      it is set aside for an hour, and counted as refused
    the archive is away    what would expire within a day is kept, and the entry is postponed

Every step may be repeated, by any process: the archive knows a record by its birth and its version.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from redis_state.archive.copying.events import EventCopies
from redis_state.archive.copying.pace import Pace
from redis_state.archive.copying.sizes import backoff_ms, in_slices
from redis_state.archive.copying.sources import RecordReader
from redis_state.archive.erased import scope_of
from redis_state.archive.model import ArchiveBatch, ArchivedRecord, RecordKey, RecordKind
from redis_state.archive.protocol import Archive
from redis_state.errors import (
    ArchiveUnavailable,
    CommandRefused,
    NoConnection,
    RedisStateError,
    StoreFull,
)
from redis_state.primitives.watchlist import WatchClaim
from redis_state.store import RedisStateStore
from redis_state.stores.archive_list import RecordList, record_of_entry
from redis_state.transport.keys import WATCH_SHARDS

log: logging.Logger = logging.getLogger(__name__)

_HOLD_MS = 120_000
_AGAIN_MS, _TROUBLE_MS = 1_000, 3_600_000
# A newer worker is to find the entries that this version does not know.
_UNKNOWN_MS = 60_000
# So many records are read together.
_TOGETHER = 16

# Of these no one record is the cause: a right is missing, or the server is away or full.
_OF_ALL = (CommandRefused, NoConnection, StoreFull)

Named = tuple[RecordKind, str, str]


@dataclass(slots=True)
class RecordReport:
    """The result of one round. ``copied`` counts by class what was archived.

    ``postponed`` records wait for the archive; ``refused`` ones it does not take; ``erased`` ones
    are of before their session was erased, and are not copied. ``missed`` events were trimmed
    before they were archived. ``unknown`` ones are of a class that a newer version has, and are
    left to it.
    """

    looked: int = 0
    copied: Counter[str] = field(default_factory=Counter[str])
    postponed: int = 0
    refused: int = 0
    erased: int = 0
    missed: int = 0
    unknown: int = 0

    def __iadd__(self, other: RecordReport) -> Self:
        self.looked += other.looked
        self.copied += other.copied
        self.postponed += other.postponed
        self.refused += other.refused
        self.erased += other.erased
        self.missed += other.missed
        self.unknown += other.unknown
        return self

    @property
    def counts(self) -> dict[str, int]:
        """Return all counts by name."""
        return dict(self.copied) | {
            "looked": self.looked,
            "postponed": self.postponed,
            "refused": self.refused,
            "erased": self.erased,
            "missed": self.missed,
            "unknown": self.unknown,
        }


@dataclass(frozen=True, slots=True)
class _DueRecord:
    claim: WatchClaim
    named: Named
    record: ArchivedRecord


@dataclass(slots=True)
class _Round:
    report: RecordReport
    settled: dict[bytes, int | None] = field(default_factory=dict[bytes, int | None])


class RecordArchiver:
    """Archive the records that are due. ``limit`` bounds a round, for each shard.

    A log of events that takes longer than ``share_s`` seconds is continued by a later round.
    ``pace`` rests between the pieces of a round. By default it lets the loop run between them.
    """

    def __init__(
        self,
        store: RedisStateStore,
        archive: Archive,
        *,
        limit: int = 8,
        share_s: float = _HOLD_MS / 4000,
        pace: Pace | None = None,
    ) -> None:
        self._archive = archive
        self._limit = limit
        self._list = RecordList(store.base)
        self._reader = RecordReader(store)
        self._pace = pace or Pace()
        self._events = EventCopies(store, archive, share_s=share_s, pace=self._pace)
        self._failures = 0
        self._prepared = False

    @property
    def full(self) -> int:
        """From how many entries on a round is a full one, with more to come."""
        return self._limit * WATCH_SHARDS // 2

    async def run_once(self) -> RecordReport:
        """Archive what is due, once. Errors: BackendError, except ArchiveUnavailable.

        With an archive that is away it keeps what would expire, and postpones.
        """
        done = _Round(RecordReport())
        self._pace.begin()
        claims = await self._list.watch.claim_due(limit=self._limit, hold_ms=_HOLD_MS)
        done.report.looked = len(claims)
        if not claims:
            return done.report
        try:
            await self._archive_all(claims, done)
            self._failures = 0
        except ArchiveUnavailable as error:
            if not self._failures:
                log.warning("%s; records stay in Redis", error)
            self._failures += 1
            # It may have gone back to before it had tables.
            self._prepared = False
            await self._keep(claims, done)
        finally:
            await self._settle(claims, done.settled)
        return done.report

    async def _archive_all(self, claims: Sequence[WatchClaim], done: _Round) -> None:
        if not self._prepared:
            await self._archive.prepare()
            self._prepared = True
        await self._pace.rest()
        traces = {each: trace for each in claims if (trace := _trace_of(each)) is not None}
        if traces:
            await self._archive_events(traces, done)
        records = [each for each in claims if each not in traces]
        for start in range(0, len(records), _TOGETHER):
            found = await self._read(records[start : start + _TOGETHER], done)
            await self._pace.rest()
            left = await self._not_erased(found, done)
            for some in in_slices(left, lambda each: len(each.record.data)):
                await self._archive_some(some, done)
                await self._pace.rest()

    async def _archive_events(self, traces: Mapping[WatchClaim, str], done: _Round) -> None:
        """Copy the events of traces. A trace that was copied whole is looked at once more."""
        scopes = {trace: scope_of(RecordKind.EVENT, trace) for trace in traces.values()}
        marks = await self._archive.erased(sorted(scopes.values()))
        erased = {trace: marks[scope] for trace, scope in scopes.items() if scope in marks}
        copied = await self._events.copy(sorted(scopes), erased)
        done.report.copied.update({RecordKind.EVENT.what: copied.rows} if copied.rows else {})
        done.report.erased += copied.erased
        done.report.missed += copied.missed
        done.report.refused += len(copied.refused)
        if copied.missed:
            log.warning("%d events were trimmed before they were archived", copied.missed)
        for claim, trace in traces.items():
            n, refused = copied.whole.get(trace), trace in copied.refused
            done.settled[claim.entry] = (
                None if n is not None else _TROUBLE_MS if refused else _AGAIN_MS
            )
            try:
                # Of others what is held stays so: not all of their rows are archived.
                if refused:
                    await self._events.hold(trace)
                elif n is not None:
                    await self._events.let_expire(trace, n)
            except _OF_ALL:
                raise
            except RedisStateError:
                # A log that cannot be read: that was logged, and it is refused.
                done.settled[claim.entry] = _TROUBLE_MS

    async def _read(self, claims: Sequence[WatchClaim], done: _Round) -> list[_DueRecord]:
        async def one(claim: WatchClaim) -> _DueRecord | None:
            named = self._named(claim)
            if named is None:
                done.settled[claim.entry] = self._unknown_ms(claim, done)
                return None
            try:
                found = await self._reader.read(*named, whole=True)
            except _OF_ALL:
                raise
            except RedisStateError as error:
                self._set_aside(claim, named[0], str(error), done)
                return None
            if found is None:
                done.settled[claim.entry] = None
                return None
            kind, owner, key = named
            try:
                record = self._reader.sources[kind].record(owner, key, found)
            except (ValueError, KeyError) as error:
                # Its text may quote what is stored.
                self._set_aside(claim, kind, type(error).__name__, done)
                return None
            done.settled[claim.entry] = _AGAIN_MS
            return _DueRecord(claim, named, record)

        found = await asyncio.gather(*map(one, claims))
        return [each for each in found if each is not None]

    def _set_aside(self, claim: WatchClaim, kind: RecordKind, problem: str, done: _Round) -> None:
        log.error("a %s cannot be archived: %s", kind, problem)
        done.report.refused += 1
        done.settled[claim.entry] = _TROUBLE_MS

    def _unknown_ms(self, claim: WatchClaim, done: _Round) -> int | None:
        """Return when an entry that this version does not know is due; None if it is none."""
        if record_of_entry(claim.entry) is None:
            return None
        done.report.unknown += 1
        return _UNKNOWN_MS

    def _named(self, claim: WatchClaim) -> Named | None:
        found = record_of_entry(claim.entry)
        if found is None:
            return None
        kind, owner, key = found
        known = next((each for each in self._reader.sources if each.value == kind), None)
        return None if known is None else (known, owner, key)

    async def _not_erased(self, found: Sequence[_DueRecord], done: _Round) -> list[_DueRecord]:
        """Leave out what is of before its session was erased: Redis may have gone back."""
        if not found:
            return []
        erased = await self._archive.erased(sorted({each.record.owner for each in found}))
        left: list[_DueRecord] = []
        gone: list[_DueRecord] = []
        for each in found:
            later = each.record.born_us >= erased.get(each.record.owner, 0)
            (left if later else gone).append(each)
        # To be read it was kept from expiring. It is not to live longer for that.
        await asyncio.gather(*(self._reader.mark(each.record) for each in gone))
        done.settled |= {each.claim.entry: None for each in gone}
        done.report.erased += len(gone)
        return left

    async def _archive_some(self, some: Sequence[_DueRecord], done: _Round) -> None:
        batch = ArchiveBatch(records=[each.record for each in some])
        try:
            await self._archive.write(batch)
        except ArchiveUnavailable as error:
            if not error.refused:
                raise
            if len(some) > 1:
                for each in some:
                    await self._archive_some([each], done)
                return
            log.error("a record cannot be archived: %s", error)  # noqa: TRY400 - the text says all
            done.report.refused += 1
            done.settled[some[0].claim.entry] = _TROUBLE_MS
            return
        await self._pace.rest()
        other = (await self._archive.verify(batch)).records
        await self._pace.rest()
        there = [each for each in some if each.record.known_by not in other]
        if other:
            there += await self._correct(
                [each for each in some if each.record.known_by in other], other
            )
        marked = await asyncio.gather(*(self._reader.mark(each.record) for each in there))
        for each, same in zip(there, marked, strict=True):
            # One that has changed since is due again.
            if same:
                done.report.copied[each.record.kind.what] += 1
                done.settled[each.claim.entry] = None

    async def _correct(
        self, some: Sequence[_DueRecord], other: Mapping[RecordKey, str | None]
    ) -> list[_DueRecord]:
        """Replace what the archive has instead, if Redis still has what was read.

        After a rollback of the server a record may be another one, and at a lower version.
        """
        found = await asyncio.gather(
            *(self._reader.read(*each.named, whole=False) for each in some)
        )
        same = [
            each
            for each, now in zip(some, found, strict=True)
            if now is not None
            and now.stamp == each.record.stamp
            and other[each.record.known_by] is not None
        ]
        if not same:
            return []
        batch = ArchiveBatch(
            records=[replace(each.record, replaces=other[each.record.known_by]) for each in same]
        )
        await self._archive.write(batch)
        left = (await self._archive.verify(batch)).records
        for kind, owner, *_ in left:
            # As with tasks: see `Archiver`.
            log.warning(
                "one of the %s of %r is not in the archive as it was sent: it is sent again",
                kind.what,
                owner,
            )
        return [each for each in same if each.record.known_by not in left]

    async def _keep(self, claims: Sequence[WatchClaim], done: _Round) -> None:
        """Keep from expiring what could not be archived, and postpone it."""
        left = [each for each in claims if done.settled.get(each.entry, 0) is not None]

        async def one(claim: WatchClaim) -> None:
            trace, named = _trace_of(claim), self._named(claim)
            if trace is None and named is None:
                done.settled[claim.entry] = self._unknown_ms(claim, done)
                return
            try:
                there = await self._is_kept(trace, named)
            except _OF_ALL:
                raise
            except RedisStateError as error:
                kind = named[0] if named is not None else RecordKind.EVENT
                self._set_aside(claim, kind, str(error), done)
                return
            if not there:
                done.settled[claim.entry] = None
                return
            done.settled[claim.entry] = backoff_ms(self._failures)
            done.report.postponed += 1

        await asyncio.gather(*map(one, left))

    async def _is_kept(self, trace: str | None, named: Named | None) -> bool:
        """Keep what a claim stands for from expiring; return whether it is there."""
        if trace is not None:
            return await self._events.hold(trace)
        return named is not None and await self._reader.read(*named, whole=False) is not None

    async def _settle(
        self, claims: Sequence[WatchClaim], settled: Mapping[bytes, int | None]
    ) -> None:
        """Settle what was decided. What was not is due again when its claim runs out."""
        await self._list.watch.settle(
            (each, settled[each.entry]) for each in claims if each.entry in settled
        )


def _trace_of(claim: WatchClaim) -> str | None:
    """Return the trace whose events a claim stands for, or None."""
    match record_of_entry(claim.entry):
        case ("event", str(trace_id), ""):
            return trace_id
        case _:
            return None
