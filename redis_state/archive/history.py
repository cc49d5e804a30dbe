"""The audit events of a trace, of the archive and of Redis together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from redis_state.archive.model import ArchivedRecord, RecordKind
from redis_state.archive.protocol import Archive
from redis_state.models import StoredEvent
from redis_state.primitives.signal import Row
from redis_state.store import RedisStateStore

_PAGE = 500


@dataclass(frozen=True, slots=True)
class EventHistory:
    """A trace's events, by time. ``missed`` counts rows of its log that nobody has any more.

    They were trimmed, or had expired, before they were archived, or were removed from the archive.
    """

    events: Sequence[StoredEvent]
    missed: int


async def read_history(store: RedisStateStore, archive: Archive, trace_id: str) -> EventHistory:
    """Read the events of a trace, of Redis first: what leaves it meanwhile was archived."""
    live = await store.events.log(trace_id).read_all()
    archived = [row_of(record) for record in await archived_events(archive, trace_id)]
    rows = sorted({(row.ms, row.n, row.id): row for row in (*archived, *live)}.items())
    ordered = [row for _, row in rows]
    # What a server lost and got again has two places, and is one event.
    once = {row.id or row.cursor.encode(): row for row in reversed(ordered)}
    first = [row for row in ordered if once[row.id or row.cursor.encode()] is row]
    return EventHistory(store.events.in_time(trace_id, first), _missed(ordered))


async def archived_events(archive: Archive, trace_id: str) -> list[ArchivedRecord]:
    """Return all archived events of a trace, in the order of their places."""
    found: list[ArchivedRecord] = []
    while True:
        after = found[-1].place if found else None
        page = await archive.records(RecordKind.EVENT, trace_id, after=after, limit=_PAGE)
        if not page:
            return found
        found += page


def row_of(record: ArchivedRecord) -> Row:
    """Return an archived event as the row of its log."""
    written = record.key.encode("utf-8", "surrogateescape")
    return Row(record.n, record.born_us // 1000, written, None, record.data)


def _missed(rows: Iterable[Row]) -> int:
    """Count the numbers between rows. A log that began again, or lost rows, has lower ones."""
    missed = before = 0
    for row in rows:
        missed += max(row.n - 1 - before, 0)
        before = row.n
    return missed
