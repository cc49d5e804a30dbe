"""The archiver of records: of all classes that are neither tasks nor updates.

    a record is there      it is copied at its version, verified and marked
    it is marked           at this version it is archived: its entry is removed
    it is gone             likewise: it was deleted, or never saved
    its class is unknown   a newer version has put it on the list: its entry stays for that one
    it cannot be read      it is set aside for an hour, and counted as refused
    the archive is away    what would expire within a day is kept, and the entry is postponed

Every step may be repeated, by any process: see `ArchiverRounds`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from redis_state.archive.copying.events import EventCopies
from redis_state.archive.copying.pace import Pace
from redis_state.archive.copying.rounds import (
    AGAIN_MS,
    HOLD_MS,
    TROUBLE_MS,
    ArchiverRounds,
    CopyRound,
    DueCopy,
    RoundReport,
)
from redis_state.archive.copying.sizes import in_slices
from redis_state.archive.copying.sources import RecordReader
from redis_state.archive.erased import of_sessions, scope_of, session_scope
from redis_state.archive.identity import KnownArchive
from redis_state.archive.model import (
    ArchiveBatch,
    ArchivedRecord,
    ArchiveVerdict,
    RecordKey,
    RecordKind,
)
from redis_state.archive.protocol import Archive
from redis_state.errors import CommandRefused, NoConnection, RedisStateError, StoreFull
from redis_state.primitives.watchlist.watchlist import WatchClaim
from redis_state.scripts import ReplyCode
from redis_state.store import RedisStateStore
from redis_state.stores.archive_list import RecordList, record_of_entry

log: logging.Logger = logging.getLogger(__name__)

# A newer worker is to find the entries that this version does not know.
_UNKNOWN_MS = 60_000
# So many records are read together.
_TOGETHER = 16

# Of these no one record is the cause: a right is missing, or the server is away or full.
_OF_ALL = (CommandRefused, NoConnection, StoreFull)

Named = tuple[RecordKind, str, str]


@dataclass(slots=True)
class RecordReport(RoundReport):
    """The result of one round. ``copied`` counts by class what was archived.

    ``unknown`` ones are of a class that a newer version has, and are left to it.
    """

    copied: Counter[str] = field(default_factory=Counter[str])
    unknown: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """Return all counts by name."""
        names = [each.name for each in fields(self) if each.name != "copied"]
        return dict(self.copied) | {name: getattr(self, name) for name in names}


_Due = DueCopy[ArchivedRecord]
_Done = CopyRound[RecordReport]


class RecordArchiver(ArchiverRounds[ArchivedRecord, RecordReport]):
    """Archive the records that are due.

    A log of events that takes longer than ``share_s`` seconds is continued by a later round.
    """

    what = "record"

    def __init__(
        self,
        store: RedisStateStore,
        archive: Archive,
        *,
        limit: int = 8,
        share_s: float = HOLD_MS / 4000,
        pace: Pace | None = None,
    ) -> None:
        watch = RecordList(store.base).watch
        known = KnownArchive(store, archive)
        super().__init__(archive, known, [watch], RecordReport, limit=limit, pace=pace)
        self._reader = RecordReader(store)
        self._events = EventCopies(store, archive, share_s=share_s, pace=self._pace)

    async def _archive_all(self, claims: Sequence[Sequence[WatchClaim]], done: _Done) -> None:
        (claimed,) = claims
        traces = {each: trace for each in claimed if (trace := _trace_of(each)) is not None}
        if traces:
            await self._archive_events(traces, done)
        records = [each for each in claimed if each not in traces]
        for start in range(0, len(records), _TOGETHER):
            found = await self._read(records[start : start + _TOGETHER], done)
            await self._pace.rest()
            if not found:
                continue
            owners = sorted({each.owner for each in found})
            marks = await self._archive.erased([session_scope(each) for each in owners])
            erased = of_sessions(marks, owners)
            left = await self._without_erased(found, erased, done)
            for some in in_slices(left, lambda each: each.size):
                await self._archive_some(some, done)
                await self._pace.rest()

    async def _archive_events(self, traces: Mapping[WatchClaim, str], done: _Done) -> None:
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
                None if n is not None else TROUBLE_MS if refused else AGAIN_MS
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
                done.settled[claim.entry] = TROUBLE_MS

    async def _read(self, claims: Sequence[WatchClaim], done: _Done) -> list[_Due]:
        async def one(claim: WatchClaim) -> _Due | None:
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
            done.settled[claim.entry] = AGAIN_MS
            return DueCopy(claim, record, owner, record.known_by, len(record.data))

        found = await asyncio.gather(*map(one, claims))
        return [each for each in found if each is not None]

    def _set_aside(self, claim: WatchClaim, kind: RecordKind, problem: str, done: _Done) -> None:
        log.error("a %s cannot be archived: %s", kind, problem)
        done.refuse(claim)

    def _unknown_ms(self, claim: WatchClaim, done: _Done) -> int | None:
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

    def _batch(self, copies: Sequence[ArchivedRecord]) -> ArchiveBatch:
        return ArchiveBatch(records=copies)

    def _others(self, verdict: ArchiveVerdict) -> Mapping[RecordKey, str | None]:
        return verdict.records

    async def _stamps(self, some: Sequence[_Due]) -> list[str | None]:
        found = await asyncio.gather(
            *(
                self._reader.read(each.copy.kind, each.owner, each.copy.key, whole=False)
                for each in some
            )
        )
        return [None if now is None else now.stamp for now in found]

    async def _mark(self, due: _Due) -> ReplyCode:
        return await self._reader.mark(due.copy)

    def _count(self, due: _Due, report: RecordReport) -> None:
        report.copied[due.copy.kind.what] += 1

    def _title(self, due: _Due) -> str:
        return f"one of the {due.copy.kind.what} of {due.owner!r}"

    async def _keep(self, claims: Sequence[Sequence[WatchClaim]], done: _Done) -> None:
        left = [each for each in claims[0] if done.settled.get(each.entry, 0) is not None]

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
            done.postpone(claim, failures=self._failures)

        await asyncio.gather(*map(one, left))

    async def _is_kept(self, trace: str | None, named: Named | None) -> bool:
        """Keep what a claim stands for from expiring; return whether it is there."""
        if trace is not None:
            return await self._events.hold(trace)
        return named is not None and await self._reader.read(*named, whole=False) is not None


def _trace_of(claim: WatchClaim) -> str | None:
    """Return the trace whose events a claim stands for, or None."""
    match record_of_entry(claim.entry):
        case ("event", str(trace_id), ""):
            return trace_id
        case _:
            return None
