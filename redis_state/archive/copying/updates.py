"""Copy the updates of sessions: what follows the archive's last row of each, in pages."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from redis_state.archive.copying.pace import Pace
from redis_state.archive.model import ArchiveBatch, ArchivedRow, SessionRows
from redis_state.archive.protocol import Archive
from redis_state.errors import CorruptState, CursorGap
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.pages import next_count
from redis_state.primitives.log.rows import Page
from redis_state.store import RedisStateStore
from redis_state.stores.base import ARCHIVE_HOLD_MS

log: logging.Logger = logging.getLogger(__name__)

# So many sessions at once, and of each so many rows: few at first, then as many as make 1 MB.
_TOGETHER = 8
_FIRST = 16
_PAGE = 500
Place = tuple[int, int]
_START: Place = (0, 0)
_NONE_ERASED: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True)
class CopiedUpdates:
    """What was copied: how many rows of each session.

    Of ``whole`` ones the archive has all rows up to the number of their last. ``missed`` counts
    rows that were trimmed before they were archived.
    """

    rows: Counter[str] = field(default_factory=Counter[str])
    missed: int = 0
    whole: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class _Read:
    """A page. ``last`` is its last row, written or not; ``end`` the number that it ends at."""

    found: SessionRows
    missed: int
    at_end: bool
    end: int
    last: Place | None = None


@dataclass(frozen=True, slots=True)
class _Position:
    """The last row of a session that the archive has, and the last one that was read."""

    written: Place | None
    read: Place | None
    erased_us: int


class UpdateCopies:
    """Copy the updates of sessions of one store to one archive. ``pace`` rests between pieces."""

    def __init__(
        self, store: RedisStateStore, archive: Archive, *, pace: Pace | None = None
    ) -> None:
        self._store = store
        self._pace = pace or Pace()
        self._archive = archive

    async def copy(
        self, last: Mapping[str, Place | None], erased: Mapping[str, int] = _NONE_ERASED
    ) -> CopiedUpdates:
        """Copy what follows the last row of each session, as it is when it is read.

        Rows of before a time at which their session was ``erased``, in us, are left out.

        Each page is verified before the next is read. A session whose page is not there as it was
        sent is left: another archiver has written it meanwhile. Errors: ArchiveUnavailable.
        """
        copied = CopiedUpdates()
        sessions = [(each, _Position(row, row, erased.get(each, 0))) for each, row in last.items()]
        for start in range(0, len(sessions), _TOGETHER):
            await self._copy(dict(sessions[start : start + _TOGETHER]), copied)
        return copied

    async def with_log(self, sessions: Sequence[str]) -> list[str]:
        """Return the sessions that have updates, or had some that were cleared."""
        exists, keys = self._store.transport.commands.exists, self._store.updates.keys
        there = await asyncio.gather(*(exists(keys(each).ids) for each in sessions))
        return [each for each, found in zip(sessions, there, strict=True) if found]

    async def hold(self, sessions: Iterable[str], *, least_ms: int) -> None:
        """Keep the updates of sessions from expiring, if they would within ``least_ms``."""
        await self._keep_rows(dict.fromkeys(sessions, 0), least_ms)

    async def let_expire(self, whole: Mapping[str, int]) -> None:
        """Release what is archived whole, unless more was appended: that is archived first."""
        await self._keep_rows(whole, 0)

    async def _keep_rows(self, sessions: Mapping[str, int], least_ms: int) -> None:
        scripts, keys = self._store.base.scripts, self._store.updates.keys

        async def keep(session_id: str, n: int) -> None:
            # A log that cannot be read: who copies it says so, and others are kept.
            with suppress(CorruptState):
                await scripts.keep_rows(
                    keys(session_id), least_ms=least_ms, n=n, hold_ms=ARCHIVE_HOLD_MS
                )

        await asyncio.gather(*(keep(*each) for each in sessions.items()))

    async def _copy(self, left: Mapping[str, _Position], copied: CopiedUpdates) -> None:
        count = _FIRST
        while left:
            pages = await asyncio.gather(*(self._read(*each, count) for each in left.items()))
            await self._pace.rest()
            read = {page.found.session_id: page for page in pages if page is not None}
            news = [
                page.found
                for page in read.values()
                if page.found.rows or page.found.lost_behind is not None
            ]
            other = await self._keep(news)
            following: dict[str, _Position] = {}
            for session_id, page in read.items():
                if session_id in other:
                    continue
                rows = page.found.rows
                copied.rows[session_id] += len(rows)
                copied.missed += page.missed
                if page.missed:
                    log.warning(
                        "%d updates of session %r were trimmed before they were archived",
                        page.missed,
                        session_id,
                    )
                if page.at_end:
                    copied.whole[session_id] = page.end
                else:
                    erased_us = left[session_id].erased_us
                    following[session_id] = _Position(page.found.last, page.last, erased_us)
            sizes = [len(row.data) for each in news for row in each.rows]
            left, count = following, next_count(sizes)

    async def _keep(self, news: Sequence[SessionRows]) -> frozenset[str]:
        if not news:
            return frozenset()
        batch = ArchiveBatch(sessions=news)
        await self._archive.write(batch)
        await self._pace.rest()
        other = (await self._archive.verify(batch)).sessions
        await self._pace.rest()
        return other

    async def _read(self, session_id: str, position: _Position, count: int) -> _Read | None:
        """Read a page; None if the log changes its history while it is read."""
        log, after = log_of(self._store, session_id), position.read
        lost_behind: Place | None = None
        try:
            try:
                cursor = None if after is None else f"{after[0]}-{after[1]}"
                page, missed = await log.read(after=cursor, count=count), 0
            except CursorGap as gap:
                end = log.place_of(await log.end()) or _START
                if gap.reason in ("ahead", "foreign") and await self._has(session_id, end):
                    # The server lost rows, or its clock has gone back: nothing follows.
                    found = SessionRows(session_id, position.written, ())
                    return _Read(found, 0, at_end=True, end=end[0])
                behind = log.place_of(gap.resume_after) or _START
                lost = gap.reason == "rewound" and await self._continues(session_id, behind)
                page, missed = await _read_behind(log, gap, count, rewound=lost)
                lost_behind = behind if lost else None
        except CursorGap:
            return None
        rows = [ArchivedRow(*row) for row in page.rows]
        if after is None and rows and not position.erased_us:
            missed = rows[0].n - 1
        last = (rows[-1].n, rows[-1].ms) if rows else after
        rows = [row for row in rows if row.ms * 1000 >= position.erased_us]
        found = SessionRows(session_id, position.written, rows, lost_behind)
        return _Read(found, missed, page.at_end, _number(page.cursor), last)

    async def _has(self, session_id: str, place: Place) -> bool:
        """Return whether the archive has a row. Then it has those of its log before it, too."""
        n, ms = place
        rows = await self._archive.rows(session_id, after=(n - 1, ms), count=1, over_gaps=True)
        return rows is not None and [each.place for each in rows] == [(ms, n)]

    async def _continues(self, session_id: str, place: Place) -> bool:
        """Return whether all that the archive has up to a row, and the next, is of that row's log.

        A log that began again in the past has its rows among those of an earlier one: numbers do
        not only rise. Then the log in Redis has lost nothing. It is rare, so that all is read.
        """
        last, after = _START, None
        while place != _START:
            found = await self._archive.rows(session_id, after=after, count=_PAGE, over_gaps=True)
            for row in found or ():
                if last[0] >= place[0]:
                    return last == place and row.n == last[0] + 1
                if row.n <= last[0]:
                    return False
                last = after = row.n, row.ms
            if not found:
                break
        return False


def log_of(store: RedisStateStore, session_id: str) -> Log:
    """Return the log of a session's updates, with cursors that name it."""
    updates = store.updates
    return Log(store.base.scripts, updates.keys(session_id), updates.bounds, named=True)


def _number(cursor: str) -> int:
    return int(cursor.partition("-")[0])


async def _read_behind(log: Log, gap: CursorGap, count: int, *, rewound: bool) -> tuple[Page, int]:
    """Read on behind a gap; also return how many rows it has.

    A log that has expired begins again with its first row. What the archive has is before it, or
    among its rows if the clock of the server has gone back: see `UpdateCopies`. Such a log is read
    whole: what is there already is not written again.
    """
    if gap.reason != "trimmed" and not rewound:
        return await log.read(count=count), 0
    return await log.read(after=gap.resume_after, count=count), gap.missed or 0
