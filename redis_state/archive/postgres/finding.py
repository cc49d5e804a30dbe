"""Find archived tasks in the order of their creation, or of their ends.

First which they are, by an index, then the records. The server reads by namespace and time, and by
session, by handler or by one status if one is named: each has an index. By their ends the tasks of
a session are sorted: a page costs what the session has. The other filters are compared here. So
many tasks are read for a page and no more, however rare what is wanted is: but all of a microsecond
that has more, in slices. Only their places show which of these come first.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg import AsyncConnection

from redis_state.archive.encoding import ID_BYTES, TIME_BYTES, moment_of_us, place_us, task_place
from redis_state.archive.model import ArchivedTask
from redis_state.archive.postgres.rows import task_of
from redis_state.archive.queries import ArchivedPage, ArchiveListing
from redis_state.models import TaskStatus
from redis_state.postgres.text import id_of, id_text

# So many tasks are read for one that may be returned, and at least so many for a page.
_READ_FOR_ONE, _LEAST = 4, 400
# So many of one microsecond are read at once.
_SLICE = 1_000
# A page has so many bytes of records or rows, and what begins before. It is decoded in slices, and
# other tasks of the loop run between them.
PAGE_BYTES, _SLICE_BYTES = 4 << 20, 1 << 18
# The last id of a microsecond: of listings with the oldest first, and with the newest first.
_LAST_ID = (b"\xff" * ID_BYTES, b"\0" * ID_BYTES)

_WANTED: Final = """
SELECT session_id, task_id, long_ids, born, {at}, created_at, status, handler, attributes::text
FROM redis_state.tasks WHERE {conditions}
"""
_PLACES: Final = f"{_WANTED} ORDER BY {{at}} {{direction}} LIMIT %s"
# Of an id that was used again the last task alone. Behind so many bytes the record is null.
_RECORDS: Final = """
SELECT session_id, task_id, long_ids, CASE WHEN size - own < %s THEN record END, '{}', place FROM (
SELECT kept.session_id, kept.task_id, kept.long_ids, kept.record::text AS record, place,
    octet_length(kept.record::text) AS own,
    sum(octet_length(kept.record::text)) OVER (ORDER BY place) AS size
FROM unnest(%s::text[], %s::text[], %s::timestamptz[])
    WITH ORDINALITY AS wanted (session_id, task_id, born, place)
JOIN redis_state.tasks AS kept ON kept.namespace = %s AND kept.session_id = wanted.session_id
    AND kept.task_id = wanted.task_id AND kept.born = wanted.born
WHERE NOT EXISTS (
    SELECT 1 FROM redis_state.tasks AS later
    WHERE later.namespace = %s AND later.session_id = wanted.session_id
        AND later.task_id = wanted.task_id AND later.born > wanted.born)
) AS found ORDER BY place
"""


@dataclass(frozen=True, slots=True)
class _Placed:
    place: bytes
    key: tuple[str, str, datetime]
    wanted: bool


async def find_tasks(
    connection: AsyncConnection[Any], namespace: str, listing: ArchiveListing
) -> ArchivedPage:
    """See `Archive.find`. Two reads: a task that ends again in between is as that end has it."""
    most = max(_LEAST, listing.limit * _READ_FOR_ONE)
    conditions, values = _conditions(namespace, listing)
    statement = _PLACES.format(
        at=_column(listing),
        conditions=" AND ".join(conditions),
        direction="DESC" if listing.newest_first else "ASC",
    )
    found = await connection.execute(statement.encode(), [*values, most])
    rows = await found.fetchall()
    end: bytes | None = None
    if len(rows) < most:
        wanted = _wanted(rows, listing)
    else:
        # More may be of the last microsecond: the next page begins with it.
        whole = [row for row in rows if row[4] != rows[-1][4]]
        if whole:
            wanted = _wanted(whole, listing)
        else:
            wanted = await _wanted_of_moment(connection, namespace, listing, rows[-1][4])
        end = _behind_moment((whole or rows)[-1][4], newest=listing.newest_first)
    chosen = wanted[: listing.limit]
    if len(wanted) > len(chosen) or (end is not None and len(chosen) == listing.limit):
        end = chosen[-1].place
    tasks, fit = await _records(connection, namespace, [each.key for each in chosen])
    if fit < len(chosen):
        end = chosen[fit - 1].place
    # One that ended again in between has another place.
    places = {each.place for each in chosen}
    return ArchivedPage(
        sorted(
            (
                task
                for task in tasks
                if _matches(task, listing) and listing.place_of(task) in places
            ),
            key=listing.place_of,
            reverse=listing.newest_first,
        ),
        end,
    )


def _wanted(rows: Iterable[Any], listing: ArchiveListing) -> list[_Placed]:
    """Return the places of what is wanted, in the order of the listing."""
    placed = (_placed(row, listing) for row in rows)
    return sorted(
        (each for each in placed if each.wanted and listing.reaches(each.place)),
        key=lambda each: each.place,
        reverse=listing.newest_first,
    )


async def _wanted_of_moment(
    connection: AsyncConnection[Any], namespace: str, listing: ArchiveListing, at: datetime
) -> list[_Placed]:
    """Return the first of what is wanted of one microsecond, and one more if there is one."""
    conditions, values = _conditions(namespace, listing)
    column = _column(listing)
    same = " AND ".join([*conditions, f"{column} = %s"])
    statement = _WANTED.format(at=column, conditions=same)
    first: list[_Placed] = []
    async with connection.transaction(), connection.cursor(name="of_a_moment") as cursor:
        await cursor.execute(statement.encode(), [*values, at])
        while rows := await cursor.fetchmany(_SLICE):
            first = sorted(
                [*first, *_wanted(rows, listing)],
                key=lambda each: each.place,
                reverse=listing.newest_first,
            )[: listing.limit + 1]
    return first


def _conditions(namespace: str, listing: ArchiveListing) -> tuple[list[str], list[Any]]:
    """Write what an index knows as conditions and their values."""
    found: list[tuple[str, Any]] = [("namespace = %s", namespace)]
    if listing.session_id is not None:
        found.append(("session_id = %s", id_text(listing.session_id)))
    elif listing.handler is not None:
        found.append(("handler = %s", id_text(listing.handler)))
    elif len(listing.statuses) == 1:
        # Of several the index gives no order.
        found.append(("status = %s", listing.statuses[0].value))
    column, (since, before) = _column(listing), listing.bounds
    if since is not None:
        found.append((f"{column} >= %s", since))
    if before is not None:
        found.append((f"{column} < %s", before))
    onward, back = ("<", ">") if listing.newest_first else (">", "<")
    if listing.after is not None:
        # All of a microsecond's places were read: the next one begins behind it.
        done = listing.after[TIME_BYTES:] == _LAST_ID[listing.newest_first]
        sign = onward if done else f"{onward}="
        found.append((f"{column} {sign} %s", moment_of_us(place_us(listing.after))))
    if listing.until is not None:
        found.append((f"{column} {back}= %s", moment_of_us(place_us(listing.until))))
    return [text for text, _ in found], [value for _, value in found]


def _column(listing: ArchiveListing) -> str:
    return "ended_at" if listing.by_end else "created_at"


def _placed(row: Any, listing: ArchiveListing) -> _Placed:
    session, task, whole, born, at, created_at, status, handler, attributes = row
    session_id, task_id = id_of(session, whole, 0), id_of(task, whole, 1)
    wanted = listing.was_made(created_at) and listing.matches(
        session_id=session_id,
        # A long one is shortened: its record tells whether it is the one.
        handler=handler if listing.handler is None else _same_text(handler, listing.handler),
        status=TaskStatus(status),
        attributes=json.loads(attributes) if listing.attributes else {},
    )
    return _Placed(task_place(session_id, task_id, at), (session, task, born), wanted)


def _same_text(column: str, wanted: str) -> str:
    """Return what is wanted if a column has it, else what the column has."""
    return wanted if column == id_text(wanted) else f"{column}\0"


async def _records(
    connection: AsyncConnection[Any], namespace: str, keys: Sequence[tuple[str, str, datetime]]
) -> tuple[list[ArchivedTask], int]:
    """Return the tasks of the first keys, and of how many keys: the others make the page large."""
    if not keys:
        return [], 0
    columns = [list(column) for column in zip(*keys, strict=True)]
    found = await connection.execute(_RECORDS, [PAGE_BYTES, *columns, namespace, namespace])
    tasks, undone = list[ArchivedTask](), 0
    for *row, place in await found.fetchall():
        if row[3] is None:
            return tasks, place - 1
        tasks.append(task_of(row))
        undone += len(row[3])
        if undone >= _SLICE_BYTES:
            undone = 0
            await asyncio.sleep(0)
    return tasks, len(keys)


def _matches(task: ArchivedTask, listing: ArchiveListing) -> bool:
    return listing.matches(
        session_id=task.session_id,
        handler=task.handler,
        status=task.status,
        attributes=task.attributes,
    )


def _behind_moment(at: datetime, *, newest: bool) -> bytes:
    """Return the last place that a microsecond can have, in the order of a listing."""
    return task_place("", "", at)[:TIME_BYTES] + _LAST_ID[newest]
