"""Copy the audit events of traces: what follows the archive's last row of each log, in pages.

    the last row is there        what follows it is copied
    it was trimmed               what is kept is copied, and the rows between are counted as missed
    the log has another history  all that it keeps is copied: what is archived is refused by its
                                 place, time, number and fingerprint
    the archive has gone back    its last row is an earlier one, and what Redis still has follows
    the clock has gone back      the last row of no later time than the log's end is what counts

The place is read from the archive before each copy, and nowhere else. So no page is written before
all that comes before it: the archive has the beginning of a log, at any crash.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TypeVar

from redis_state.archive.copying.pace import Pace
from redis_state.archive.encoding import as_bytes, as_text
from redis_state.archive.model import ArchiveBatch, ArchivedRecord, RecordKind, RecordPlace
from redis_state.archive.protocol import Archive
from redis_state.errors import (
    ArchiveUnavailable,
    CommandRefused,
    CursorGap,
    NoConnection,
    RedisStateError,
    StoreFull,
)
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.pages import next_count
from redis_state.primitives.log.rows import Page
from redis_state.primitives.signal import Row
from redis_state.store import RedisStateStore
from redis_state.stores.base import ARCHIVE_HOLD_MS

T = TypeVar("T")

log: logging.Logger = logging.getLogger(__name__)

# So many traces at once, and of each so many rows: few at first, then as many as make 1 MB.
_TOGETHER = 8
_FIRST = 16
_FEW_TRIES = 3


@dataclass(slots=True)
class CopiedEvents:
    """What was copied. Of ``whole`` traces the archive has all rows up to their numbers.

    ``missed`` counts rows that were trimmed before they were archived. ``refused`` are traces with
    a row that the archive does not take.
    """

    rows: int = 0
    missed: int = 0
    erased: int = 0
    whole: dict[str, int] = field(default_factory=dict[str, int])
    refused: set[str] = field(default_factory=set[str])


@dataclass(frozen=True, slots=True)
class _Left:
    """How far a trace was read. ``after`` is None for a log that is read from its oldest row."""

    after: str | None
    last: RecordPlace | None


@dataclass(frozen=True, slots=True)
class _ReadEvents:
    rows: list[Row]
    missed: int
    at_end: bool
    end: int


class EventCopies:
    """Copy the audit events of one store to one archive. ``pace`` rests between pieces."""

    def __init__(
        self,
        store: RedisStateStore,
        archive: Archive,
        *,
        share_s: float,
        pace: Pace | None = None,
    ) -> None:
        """Copy for ``share_s`` seconds in each call, a part of the time that the claims last."""
        self._store = store
        self._pace = pace or Pace()
        self._archive = archive
        self._share_s = share_s

    async def copy(self, traces: Sequence[str], erased: Mapping[str, int]) -> CopiedEvents:
        """Copy what follows the last row of each trace, as it is when it is read.

        Rows of before a time at which their trace was ``erased``, in us, are left out. Each page is
        verified before the next is read. A trace whose page is not there as it was sent is left.
        So is the rest once the call's share of time has passed: a repetition continues there.
        Errors: ArchiveUnavailable, CommandRefused.
        """
        copied, ends_s = CopiedEvents(), monotonic() + self._share_s
        # Those that were left the last time are not always the last again.
        order = random.sample(traces, len(traces))
        last = await self._archive.last_records(RecordKind.EVENT, order)
        for start in range(0, len(order), _TOGETHER):
            some = order[start : start + _TOGETHER]
            if start and monotonic() >= ends_s:
                break
            begun = await asyncio.gather(
                *(_tried(each, self._begin(each, last.get(each)), copied) for each in some)
            )
            left = {trace: of for trace, of in zip(some, begun, strict=True) if of is not None}
            await self._copy(left, erased, copied, ends_s)
        return copied

    async def hold(self, trace_id: str) -> bool:
        """Keep a trace's log from expiring, if it has any row; return whether it has one."""
        return await self._keep_rows(trace_id, ARCHIVE_HOLD_MS // 2, 0)

    async def let_expire(self, trace_id: str, n: int) -> None:
        """Release a trace's log, if it ends with its ``n``-th row: it expires as it would have."""
        await self._keep_rows(trace_id, 0, n)

    async def _keep_rows(self, trace_id: str, least_ms: int, n: int) -> bool:
        scripts, keys = self._store.base.scripts, self._store.events.log(trace_id).keys
        _, there = await asyncio.gather(
            scripts.keep_rows(keys, least_ms=least_ms, n=n, hold_ms=ARCHIVE_HOLD_MS),
            self._store.transport.commands.exists(keys.rows),
        )
        return bool(there)

    async def _begin(self, trace_id: str, last: RecordPlace | None) -> _Left:
        """Return where to read on: behind the last row, if the log still has that very row."""
        if last is None:
            return _Left(None, None)
        events = self._store.events.log(trace_id)
        cursor = await _cursor_of(events, last)
        end = None if cursor is not None else events.place_of(await events.end())
        if end is None or last[0] <= end[1] * 1000:
            return _Left(cursor, last)
        # The log began again, on a server whose clock has gone back.
        before_us = end[1] * 1000 + 1
        earlier = await self._archive.last_records(
            RecordKind.EVENT, [trace_id], before_us=before_us
        )
        if trace_id not in earlier:
            return _Left(None, None)
        return _Left(await _cursor_of(events, earlier[trace_id]), earlier[trace_id])

    async def _copy(
        self,
        left: Mapping[str, _Left],
        erased: Mapping[str, int],
        copied: CopiedEvents,
        ends_s: float,
    ) -> None:
        count = _FIRST
        while left:
            pages = await asyncio.gather(
                *(
                    _tried(trace, _read(self._store.events.log(trace), of, count), copied)
                    for trace, of in left.items()
                )
            )
            await self._pace.rest()
            read = {trace: page for trace, page in zip(left, pages, strict=True) if page}
            news: dict[str, list[ArchivedRecord]] = {}
            for trace_id, page in read.items():
                since_us = erased.get(trace_id, 0)
                records = [_record(trace_id, row) for row in page.rows]
                news[trace_id] = [each for each in records if each.born_us >= since_us]
                copied.erased += len(records) - len(news[trace_id])
                if not since_us:
                    copied.missed += page.missed
            other = await self._keep(news, copied)
            await self._pace.rest()
            following: dict[str, _Left] = {}
            for trace_id, page in read.items():
                if trace_id in other:
                    continue
                copied.rows += len(news[trace_id])
                if page.at_end:
                    copied.whole[trace_id] = page.end
                elif page.rows:
                    row = page.rows[-1]
                    following[trace_id] = _Left(row.cursor, _record(trace_id, row).place)
            if monotonic() >= ends_s:
                return
            sizes = [len(each.data) for rows in news.values() for each in rows]
            left, count = following, next_count(sizes)

    async def _keep(
        self, news: Mapping[str, Sequence[ArchivedRecord]], copied: CopiedEvents
    ) -> set[str]:
        """Write and verify; return the traces that are not there as they were sent."""
        records = [record for rows in news.values() for record in rows]
        if not records:
            return set()
        batch = ArchiveBatch(records=records)
        try:
            await self._archive.write(batch)
        except ArchiveUnavailable as error:
            if not error.refused:
                raise
            if len([rows for rows in news.values() if rows]) == 1:
                log.error("events cannot be archived: %s", error)  # noqa: TRY400 - it says all
                copied.refused |= {trace_id for trace_id, rows in news.items() if rows}
                return {trace_id for trace_id, rows in news.items() if rows}
            refused = [await self._keep({trace: rows}, copied) for trace, rows in news.items()]
            return set[str]().union(*refused)
        await self._pace.rest()
        found = (await self._archive.verify(batch)).records
        if not found:
            return set()
        # The archive has the place with other bytes: Redis has what is read.
        replacing = [
            replace(record, replaces=found[record.known_by])
            for record in records
            if found.get(record.known_by) is not None
        ]
        await self._archive.write(ArchiveBatch(records=replacing))
        found = (await self._archive.verify(batch)).records
        other = {record.owner for record in records if record.known_by in found}
        for trace_id in other:
            # As with tasks: see `Archiver`.
            log.warning("events of trace %r are not in the archive as they were sent", trace_id)
        return other


async def _tried(trace_id: str, call: Awaitable[T], copied: CopiedEvents) -> T | None:
    """Await a call about one log. A log that cannot be read is refused, and the others continue.

    Errors: what concerns all logs: CommandRefused for a missing right, for one.
    """
    try:
        return await call
    except (ArchiveUnavailable, CommandRefused, NoConnection, StoreFull):
        raise
    except RedisStateError as error:
        log.error("events cannot be archived: %s", error)  # noqa: TRY400 - the text says all
        copied.refused.add(trace_id)
        return None


async def _cursor_of(events: Log, last: RecordPlace) -> str | None:
    """Return the cursor after an archived row, if the log still has that very row."""
    born_us, n, key = last
    cursor = events.cursor_at(n, born_us // 1000)
    # Another row may have its place, after a rollback.
    return cursor if key and await events.find(as_bytes(key)) == cursor else None


async def _read(events: Log, left: _Left, count: int) -> _ReadEvents:
    """Read a page, and say how many rows before it were trimmed before they were archived."""
    after, last = left.after, left.last
    for _ in range(_FEW_TRIES):
        try:
            page = await events.read(after=after, count=count)
        except CursorGap:
            # Trimmed, or of another history: what is kept is read.
            after = None
            continue
        end = int(page.cursor.partition("-")[0])
        return _ReadEvents(page.rows, _missed(page, after, last), page.at_end, end)
    return _ReadEvents([], 0, at_end=False, end=0)


def _missed(page: Page, after: str | None, last: RecordPlace | None) -> int:
    if after is not None or not page.rows:
        return 0
    first = page.rows[0]
    if last is None:
        return first.n - 1
    # A log that began again, or that lost rows, has numbers of its own.
    later = first.n > last[1] and first.ms * 1000 >= last[0]
    return first.n - 1 - last[1] if later else 0


def _record(trace_id: str, row: Row) -> ArchivedRecord:
    at_us = row.ms * 1000
    return ArchivedRecord(
        RecordKind.EVENT,
        trace_id,
        as_text(row.id),
        born_us=at_us,
        at_us=at_us,
        data=row.data,
        n=row.n,
    )
