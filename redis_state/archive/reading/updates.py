"""Read a session's updates through: the archive and Redis as one log, with the same cursors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from redis_state import limits
from redis_state.archive.copying.updates import log_of
from redis_state.archive.model import ArchivedRow
from redis_state.archive.protocol import Archive
from redis_state.errors import CursorGap
from redis_state.models import StateUpdate
from redis_state.primitives.log.log import Log
from redis_state.primitives.signal import Row
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.session_log import Entry, EntryPage

_START = (0, 0)
# The last moment that a date has.
_LATEST_MS = 253_402_300_799_999
# Updates are decoded in slices, and other tasks of the loop run between them.
_SLICE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class _Wanted:
    log: Log
    session_id: str
    limit: int
    task_id: str | None


class UpdateReader:
    """Read the updates of a store's sessions, of the archive where Redis has them no more."""

    def __init__(self, store: RedisStateStore, archive: Archive) -> None:
        self._store = store
        self._archive = archive

    async def page(
        self, session_id: str, *, after: str | None, limit: int, task_id: str | None
    ) -> EntryPage[StateUpdate]:
        """Read a page. See `ArchiveReader.updates`."""
        limits.count("limit", limit)
        wanted = _Wanted(log_of(self._store, session_id), session_id, limit, task_id)
        if after is None:
            page = await self._archived(wanted, None)
            return page or await self._live(wanted, None)
        place = wanted.log.place_of(after)
        if place is not None and place[1] > _LATEST_MS:
            # No row has such a time.
            start = wanted.log.cursor_at(*_START)
            raise CursorGap(after, reason="foreign", missed=None, resume_after=start)
        if place is not None and place[0] == 0 and place != _START:
            # The beginning of a log that began again. Redis may have a later one.
            page = await self._archived(wanted, place)
            return page or await self._live(wanted, after)
        try:
            return await self._live(wanted, after)
        except CursorGap as gap:
            if place is None:
                raise
            page = await self._archived(wanted, place, gap)
            return page or await self._behind(wanted, place, gap)

    async def _live(self, wanted: _Wanted, after: str | None) -> EntryPage[StateUpdate]:
        return await self._store.updates.page(
            wanted.session_id, after=after, limit=wanted.limit, task_id=wanted.task_id
        )

    async def _archived(
        self, wanted: _Wanted, place: tuple[int, int] | None, gap: CursorGap | None = None
    ) -> EntryPage[StateUpdate] | None:
        """Return a page of the archive; None if it has nothing there. Errors: CursorGap.

        ``gap`` is what Redis says of the place.
        """
        after = None if place == _START else place
        rows = await self._archive.rows(wanted.session_id, after=after, count=wanted.limit)
        if rows is None and place is not None and (gap is None or gap.reason != "rewound"):
            await self._raise_dropped(wanted, place)
        if not rows:
            return None
        log, whole = wanted.log, _up_to_gap(rows, None if place is None else place[0])
        if not whole:
            n, ms = place or _START
            raise CursorGap(
                log.cursor_at(n, ms),
                reason="trimmed",
                # Rows of before the clock went back may be among later ones.
                missed=rows[0].n - 1 - n if rows[0].n > n else None,
                # There is no such row. What follows it has the next number.
                resume_after=log.cursor_at(rows[0].n - 1, rows[0].ms),
            )
        entries, undone = list[Entry[StateUpdate]](), 0
        for row in whole:
            if wanted.task_id not in (None, row.topic):
                continue
            value = self._update_of(wanted.session_id, row)
            if value is not None:
                entries.append(Entry(log.cursor_at(row.n, row.ms), value, row.data))
            undone += len(row.data)
            if undone >= _SLICE_BYTES:
                undone = 0
                await asyncio.sleep(0)
        return EntryPage(entries, log.cursor_at(whole[-1].n, whole[-1].ms), at_end=False)

    async def _raise_dropped(self, wanted: _Wanted, place: tuple[int, int]) -> None:
        """Errors: CursorGap if the archive has rows behind those that it has not any more."""
        kept = await self._archive.rows(wanted.session_id, after=place, count=1, over_gaps=True)
        if kept:
            raise CursorGap(
                wanted.log.cursor_at(*place),
                reason="trimmed",
                missed=None,
                resume_after=wanted.log.cursor_at(kept[0].n - 1, kept[0].ms),
            )

    async def _behind(
        self, wanted: _Wanted, place: tuple[int, int], gap: CursorGap
    ) -> EntryPage[StateUpdate]:
        """Read on in Redis behind the archive's last row, if the log has expired since.

        Then it is empty, or began again with its first row.
        """
        last = (await self._archive.last_rows([wanted.session_id])).get(wanted.session_id)
        if last != place or gap.reason not in ("ahead", "foreign"):
            raise gap
        head = await wanted.log.read(count=1)
        if not head.rows:
            return EntryPage([], wanted.log.cursor_at(*place), at_end=True)
        if head.rows[0].n != 1 or head.rows[0].ms < place[1]:
            raise gap
        return await self._live(wanted, None)

    def _update_of(self, session_id: str, row: ArchivedRow) -> StateUpdate | None:
        read = partial(self._store.updates.read, session_id)
        stored = Row(row.n, row.ms, row.id, row.topic, row.data)
        return self._store.base.read_row(session_id, "update", stored, read)


def _up_to_gap(rows: Sequence[ArchivedRow], before: int | None) -> Sequence[ArchivedRow]:
    """Return the rows that follow one another. A log that began again begins with number 1."""
    expected = before
    for place, row in enumerate(rows):
        if expected is not None and row.n not in (expected + 1, 1):
            return rows[:place]
        expected = row.n
    return rows
