"""Compare what was written with what the server has, by count and by digest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import AsyncCursor

from redis_state.archive.encoding import moment_of_ms, moment_of_us
from redis_state.archive.model import (
    ArchivedRecord,
    ArchivedTask,
    RecordKey,
    SessionRows,
    rows_digest,
)
from redis_state.archive.postgres import statements as sqls
from redis_state.postgres.text import id_text, plain_text, text_of


async def verify_tasks(
    cursor: AsyncCursor[Any], namespace: str, tasks: Sequence[ArchivedTask]
) -> dict[tuple[str, str, int], str | None]:
    """Return the tasks that are not there as they are, each with the stamp that is."""
    if not tasks:
        return {}
    named = {
        (id_text(task.session_id), id_text(task.task_id), moment_of_us(task.born_us)): task
        for task in tasks
    }
    await cursor.execute(sqls.TASK_DIGESTS, [*map(list, zip(*named, strict=True)), namespace])
    other: dict[tuple[str, str, int], str | None] = {task.key: None for task in tasks}
    for session, task_id, born, version, write, digest in await cursor.fetchall():
        task = named[session, task_id, born]
        if digest == task.digest():
            del other[task.key]
        else:
            other[task.key] = f"{version} {write}"
    return other


async def verify_rows(
    cursor: AsyncCursor[Any], namespace: str, sessions: Sequence[SessionRows]
) -> frozenset[str]:
    """Return the sessions whose rows are not all there as they are."""
    other: set[str] = set()
    for each in sessions:
        if not each.rows:
            continue
        places = [
            [moment_of_ms(row.ms) for row in each.rows],
            [row.n for row in each.rows],
        ]
        await cursor.execute(sqls.ROW_DIGESTS, [*places, namespace, id_text(each.session_id)])
        count, digest = await cursor.fetchone() or (0, "")
        if count != len(each.rows) or digest != rows_digest(each.rows):
            other.add(each.session_id)
    return frozenset(other)


async def verify_records(
    cursor: AsyncCursor[Any], namespace: str, records: Sequence[ArchivedRecord]
) -> dict[RecordKey, str | None]:
    """Return the records that are not there as they are, each with the stamp that is."""
    if not records:
        return {}
    named = {
        (
            record.kind.value,
            id_text(record.owner),
            moment_of_us(record.born_us),
            record.n,
            id_text(record.key),
        ): record
        for record in records
    }
    await cursor.execute(sqls.RECORD_DIGESTS, [*map(list, zip(*named, strict=True)), namespace])
    other: dict[RecordKey, str | None] = {record.known_by: None for record in records}
    for *known_by, version, write, digest in await cursor.fetchall():
        record = named[tuple(known_by)]
        same = (version, write) == (record.version, plain_text(record.write))
        if same and digest == record.digest():
            del other[record.known_by]
        else:
            other[record.known_by] = f"{version} {text_of(write)}"
    return other
