"""The audit events of a trace, of the archive and of Redis together, in pages.

what is archived   comes first, in the order of its places
what Redis has     follows the last row that is archived; what is archived is left out
an event that a server lost and got again   has two places, and comes at the first one
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from redis_state.archive.encoding import as_bytes, as_text
from redis_state.archive.model import ArchivedRecord, RecordKind, RecordPlace
from redis_state.archive.protocol import Archive
from redis_state.errors import CursorGap
from redis_state.models import StoredEvent
from redis_state.primitives.signal import Row
from redis_state.store import RedisStateStore

# A page ends once it has so many bytes. From Redis few rows are read at first.
_PAGE_BYTES, _FIRST = 4 << 20, 4
# Of so many histories of a log the last numbers are remembered.
_HISTORIES = 16
_TRIES = 3


@dataclass(frozen=True, slots=True)
class EventCursor:
    """How far a trace was read: in the archive, and behind that in Redis.

    ``numbers`` are the last ones of each history that its log had.
    """

    archived: RecordPlace | None = None
    live: RecordPlace | None = None
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EventHistory:
    """A page of a trace's events, in the order of its log; an empty one is the end.

    ``missed`` counts rows of its log before them, and behind the page before, that nobody has any
    more: they were trimmed, or had expired, before they were archived, or were removed from the
    archive. The next page begins ``after`` the ``cursor``.
    """

    events: Sequence[StoredEvent]
    missed: int
    cursor: EventCursor


async def read_history(
    store: RedisStateStore,
    archive: Archive,
    trace_id: str,
    *,
    after: EventCursor | None = None,
    limit: int = 100,
) -> EventHistory:
    """Read a page of up to ``limit`` events of a trace, of some 4 MiB or one event."""
    reading = _Reading(store, archive, trace_id, after or EventCursor())
    events: list[StoredEvent] = []
    size = 0
    while len(events) < limit and size < _PAGE_BYTES:
        rows = await reading.read(limit - len(events))
        if rows is None:
            break
        events += store.base.read_rows(trace_id, "event", rows, store.events.read)
        size += sum(len(row.data) for row in rows)
    return EventHistory(events, reading.missed, reading.cursor)


class _Reading:
    """The reading of one page."""

    def __init__(
        self, store: RedisStateStore, archive: Archive, trace_id: str, cursor: EventCursor
    ) -> None:
        self.cursor: EventCursor = cursor
        self.missed: int = 0
        self._archive = archive
        self._trace_id = trace_id
        self._log = store.events.log(trace_id)
        self._count = _FIRST

    async def read(self, limit: int) -> list[Row] | None:
        """Read on; return what is new, perhaps nothing. None at the end."""
        records = await self._archived(limit)
        if not records:
            live = await self._live(min(limit, self._count))
            # What left Redis meanwhile was archived before.
            records = await self._archived(limit)
            if not records:
                return await self._new_of_live(live)
        places = await self._archive.first_places(
            RecordKind.EVENT, self._trace_id, {each.key for each in records}
        )
        was_read = self.cursor.live
        new = [each for each in records if was_read is None or each.place > was_read]
        rows = [row_of(each) for each in new if places.get(each.key, each.place) == each.place]
        self._count_missed(each.n for each in new)
        self.cursor = replace(self.cursor, archived=records[-1].place)
        return rows

    async def _archived(self, limit: int) -> Sequence[ArchivedRecord]:
        after = self.cursor.archived
        return await self._archive.records(
            RecordKind.EVENT, self._trace_id, after=after, limit=limit
        )

    async def _live(self, count: int) -> Sequence[Row]:
        """Read what follows in Redis: all that it keeps, if it does not have the last row."""
        last, after = self.cursor.live or self.cursor.archived, None
        if last is not None:
            place = self._log.cursor_at(last[1], last[0] // 1000)
            # Another row may have its place, after a rollback.
            is_there = bool(last[2]) and await self._log.find(as_bytes(last[2])) == place
            after = place if is_there else None
        for _ in range(_TRIES):
            try:
                return (await self._log.read(after=after, count=count)).rows
            except CursorGap:
                # Trimmed meanwhile: what is kept is read.
                after = None
        return []

    async def _new_of_live(self, rows: Sequence[Row]) -> list[Row] | None:
        if not rows:
            return None
        keys = {as_text(row.id) for row in rows}
        places = await self._archive.first_places(RecordKind.EVENT, self._trace_id, keys)
        # What is archived meanwhile is behind that place: it was not read there, and is new.
        archived = self.cursor.archived
        passed = {
            key: place
            for key, place in places.items()
            if archived is not None and place <= archived
        }
        self._count_missed(row.n for row in rows if passed.get(as_text(row.id)) != _place(row))
        self.cursor = replace(self.cursor, live=_place(rows[-1]))
        size = sum(len(row.data) for row in rows)
        self._count = max(1, min(500, (1 << 20) * len(rows) // max(size, 1)))
        return [row for row in rows if as_text(row.id) not in passed]

    def _count_missed(self, numbers: Iterable[int]) -> None:
        """Count the numbers that are not there. Rows of several histories may be among another.

        A log that began again begins with 1. One that lost rows gives lower numbers again.
        """
        last = list(self.cursor.numbers)
        for n in numbers:
            before = max((each for each in last if each < n), default=None)
            if before is not None:
                self.missed += n - 1 - before
                last.remove(before)
            elif not last:
                self.missed += n - 1
            last.append(n)
        self.cursor = replace(self.cursor, numbers=tuple(last[-_HISTORIES:]))


def row_of(record: ArchivedRecord) -> Row:
    """Return an archived event as the row of its log."""
    return Row(record.n, record.born_us // 1000, as_bytes(record.key), None, record.data)


def _place(row: Row) -> RecordPlace:
    return row.ms * 1000, row.n, as_text(row.id)
