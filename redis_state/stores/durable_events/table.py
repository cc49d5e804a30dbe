"""The rows of audit events in PostgreSQL: written once per id, read in the order of the saves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection

from redis_state.postgres.text import id_text, long_ids
from redis_state.primitives.signal import Row
from redis_state.serialization import codec
from redis_state.serialization.rows import unpack

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PAGE, _PAGE_BYTES = 500, 8 << 20
# So many rows are removed in one transaction.
PIECE: Final = 1_000
# So many are counted in one call, and what is of the same moment as the last of them.
COUNTED: Final = 50_000

_INSERT: Final = """
INSERT INTO redis_state_events.events
    (namespace, trace_id, event_id, ts, kind, node_name, node_id, data, saved_at, long_ids)
SELECT %s, trace_id, event_id, ts, kind, node_name, node_id, data,
    coalesce(saved_at, clock_timestamp()), long_ids::json
FROM unnest(%s::text[], %s::text[], %s::float8[], %s::text[], %s::text[], %s::text[],
    %s::bytea[], %s::timestamptz[], %s::text[]) WITH ORDINALITY AS new
    (trace_id, event_id, ts, kind, node_name, node_id, data, saved_at, long_ids, place)
ORDER BY place
ON CONFLICT DO NOTHING
RETURNING trace_id, event_id
"""
# A page ends with the row that makes it as large as it may be.
_READ: Final = """
SELECT n, saved_at, event_id, data FROM (
    SELECT *, sum(octet_length(data)) OVER (ORDER BY n) - octet_length(data) AS before FROM (
        SELECT n, saved_at, event_id, data FROM redis_state_events.events
        WHERE namespace = %s AND trace_id = %s AND n > %s ORDER BY n LIMIT %s
    ) AS page
) AS sized WHERE before < %s ORDER BY n
"""
_COUNT: Final = """
SELECT count(*) FROM redis_state_events.events WHERE namespace = %s AND trace_id = ANY(%s)
"""
_PLACES: Final = """
SELECT trace_id, last_n, last_ms, clears FROM redis_state_events.traces
WHERE namespace = %s AND trace_id = ANY(%s)
"""
_NEW_TRACES: Final = """
INSERT INTO redis_state_events.traces (namespace, trace_id)
SELECT %s, unnest(%s::text[]) ON CONFLICT DO NOTHING
"""
_LOCK_TRACES: Final = f"{_PLACES} ORDER BY trace_id FOR UPDATE"
_MOVE: Final = """
UPDATE redis_state_events.traces AS kept SET last_n = new.n, last_ms = new.ms, cleared_at = NULL
FROM unnest(%s::text[], %s::bigint[], %s::bigint[]) AS new (trace_id, n, ms)
WHERE kept.namespace = %s AND kept.trace_id = new.trace_id
"""
# A row that moves events meanwhile must not bring them back: it knows another count of clears.
_CLEAR: Final = """
INSERT INTO redis_state_events.traces (namespace, trace_id, clears, cleared_at)
VALUES (%s, %s, 1, now()) ON CONFLICT (namespace, trace_id) DO UPDATE
SET last_n = 0, last_ms = 0, clears = traces.clears + 1, cleared_at = now()
"""
_DELETE: Final = "DELETE FROM redis_state_events.events WHERE namespace = %s AND trace_id = %s"
_FORGET_CLEARS: Final = """
DELETE FROM redis_state_events.traces
WHERE namespace = %s AND cleared_at < now() - interval '1 day'
"""
# Each piece commits by itself. What another process removes at the same time is left to it.
_OLD: Final = "FROM redis_state_events.events WHERE namespace = %s AND saved_at < now() - %s"
_COUNT_OLD: Final = f"""
SELECT count(*), max(saved_at) FROM redis_state_events.events
WHERE namespace = %s AND saved_at > %s AND saved_at <= (SELECT max(saved_at) FROM (
    SELECT saved_at {_OLD} AND saved_at > %s ORDER BY saved_at LIMIT %s) AS piece)
""".encode()  # noqa: S608 - of the text above
_DELETE_OLD: Final = f"""
DELETE FROM redis_state_events.events WHERE ctid = ANY(ARRAY(
    SELECT ctid {_OLD} ORDER BY saved_at LIMIT %s FOR UPDATE SKIP LOCKED))
""".encode()  # noqa: S608 - of the text above
_DELETE_OLD_TRACES: Final = """
DELETE FROM redis_state_events.traces WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM redis_state_events.traces AS old
    WHERE namespace = %s AND last_ms < 1000 * extract(epoch FROM now() - %s) AND NOT EXISTS (
        SELECT FROM redis_state_events.events AS kept
        WHERE kept.namespace = old.namespace AND kept.trace_id = old.trace_id)
    AND (cleared_at IS NULL OR cleared_at < now() - interval '1 day')
    ORDER BY last_ms LIMIT %s FOR UPDATE SKIP LOCKED))
"""


class NewEvent(NamedTuple):
    """An event to be written: its trace, its fingerprint, its row, and when Redis got it."""

    trace_id: str
    id: bytes
    data: bytes
    ms: int | None = None


class KeptPlace(NamedTuple):
    """The last row of a trace's log that PostgreSQL has, and how often the trace was cleared."""

    n: int = 0
    ms: int = 0
    clears: int = 0


@dataclass(frozen=True, slots=True)
class TraceRows:
    """Rows of one trace that follow ``after``, and the place that they lead to."""

    trace_id: str
    after: KeptPlace
    rows: Sequence[Row]
    to: tuple[int, int]


class EventTable:
    """The table of one namespace. Each method is work for a connection, and may be repeated."""

    def __init__(self, namespace: str) -> None:
        self._namespace = id_text(namespace)

    async def insert(
        self, events: Sequence[NewEvent], connection: AsyncConnection[Any]
    ) -> set[tuple[str, bytes]]:
        """Write events in their order, skipping those that are there; return which were new."""
        columns = [list(column) for column in zip(*map(_columns, events), strict=True)]
        found = await connection.execute(_INSERT, [self._namespace, *columns])
        named = {id_text(event.trace_id): event.trace_id for event in events}
        return {(named[trace], written.encode()) for trace, written in await found.fetchall()}

    async def read(
        self, trace_id: str, after: int, connection: AsyncConnection[Any]
    ) -> tuple[list[Row], bool]:
        """Read rows of a trace in the order they were written, and whether there may be more."""
        of = [self._namespace, id_text(trace_id), after, _PAGE, _PAGE_BYTES]
        found = await connection.execute(_READ, of)
        rows = [
            Row(n, (at - _EPOCH) // timedelta(milliseconds=1), written.encode(), None, bytes(data))
            for n, at, written, data in await found.fetchall()
        ]
        size = sum(len(row.data) for row in rows)
        return rows, len(rows) == _PAGE or size >= _PAGE_BYTES

    async def count(self, traces: Collection[str], connection: AsyncConnection[Any]) -> int:
        """Count the events of traces."""
        found = await connection.execute(_COUNT, [self._namespace, [*map(id_text, traces)]])
        row: Any = await found.fetchone()
        return int(row[0])

    async def places(
        self, traces: Sequence[str], connection: AsyncConnection[Any]
    ) -> Mapping[str, KeptPlace]:
        """Return how far the logs of traces are written."""
        named = {id_text(each): each for each in traces}
        found = await connection.execute(_PLACES, [self._namespace, list(named)])
        there = {named[trace]: KeptPlace(*place) for trace, *place in await found.fetchall()}
        return {each: there.get(each, KeptPlace()) for each in traces}

    async def move(
        self, traces: Sequence[TraceRows], connection: AsyncConnection[Any]
    ) -> tuple[set[str], int]:
        """Write the rows of traces that are still where the reader found them, in one transaction.

        Return these traces, and how many events were new.
        """
        named = {id_text(each.trace_id): each for each in traces}
        async with connection.transaction():
            await connection.execute(_NEW_TRACES, [self._namespace, sorted(named)])
            found = await connection.execute(_LOCK_TRACES, [self._namespace, sorted(named)])
            places = {trace: KeptPlace(*place) for trace, *place in await found.fetchall()}
            same = {name: of for name, of in named.items() if places.get(name) == of.after}
            if not same:
                return set(), 0
            events = [
                NewEvent(of.trace_id, row.id, row.data, row.ms)
                for of in same.values()
                for row in of.rows
            ]
            new = await self.insert(events, connection) if events else ()
            to = [of.to for of in same.values()]
            await connection.execute(
                _MOVE, [list(same), [n for n, _ in to], [ms for _, ms in to], self._namespace]
            )
            return {of.trace_id for of in same.values()}, len(new)

    async def clear(self, trace_id: str, connection: AsyncConnection[Any]) -> None:
        """Erase a trace's events. What was read before and is not written yet stays out."""
        of = [self._namespace, id_text(trace_id)]
        async with connection.transaction():
            await connection.execute(_CLEAR, of)
            await connection.execute(_DELETE, of)
            await connection.execute(_FORGET_CLEARS, [self._namespace])

    async def count_old(
        self, keep: timedelta, after: datetime, connection: AsyncConnection[Any]
    ) -> tuple[int, datetime | None]:
        """Count the first `COUNTED` events, and some, that were saved longer ago, after a moment.

        Return the moment of the last of them, too; None if there is none.
        """
        of = [self._namespace, after, self._namespace, keep, after, COUNTED]
        found = await connection.execute(_COUNT_OLD, of)
        row: Any = await found.fetchone()
        return int(row[0]), row[1]

    async def remove_old(self, keep: timedelta, connection: AsyncConnection[Any]) -> int:
        """Remove `PIECE` events at most that were saved longer ago; return how many."""
        done = await connection.execute(_DELETE_OLD, [self._namespace, keep, PIECE])
        return done.rowcount

    async def remove_old_traces(self, keep: timedelta, connection: AsyncConnection[Any]) -> int:
        """Remove the places of logs of traces without events whose last row is older.

        `PIECE` at most; return how many. Redis must not have these logs any more.
        """
        done = await connection.execute(_DELETE_OLD_TRACES, [self._namespace, keep, PIECE])
        return done.rowcount

    async def clear_all(self, connection: AsyncConnection[Any]) -> None:
        """Erase all of the namespace."""
        async with connection.transaction():
            for table in ("events", "traces"):
                statement = f"DELETE FROM redis_state_events.{table} WHERE namespace = %s"  # noqa: S608
                await connection.execute(statement.encode(), [self._namespace])


def _columns(event: NewEvent) -> tuple[Any, ...]:
    """Write an event as its columns. One that cannot be read has its bytes alone."""
    try:
        _, ts, kind, node_name, node_id, _ = unpack(event.data, 6)
        moment = float(ts)
    except (codec.DecodeError, ValueError, TypeError, OverflowError):
        moment, kind, node_name, node_id = None, None, None, None
    at = None if event.ms is None else _EPOCH + timedelta(milliseconds=event.ms)
    names = [_name(kind), _name(node_name), _name(node_id)]
    written = [id_text(event.trace_id), event.id.decode("ascii", "backslashreplace"), moment]
    return (*written, *names, event.data, at, long_ids(event.trace_id))


def _name(value: object) -> str | None:
    return id_text(value) if isinstance(value, str) else None
