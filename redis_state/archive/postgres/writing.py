"""Write a batch: its months in transactions of their own, then all of it in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import AsyncCursor

from redis_state.archive.encoding import moment_of_ms, moment_of_us
from redis_state.archive.model import ArchiveBatch, ArchivedRecord, ArchivedTask, SessionRows
from redis_state.archive.postgres import statements as sqls
from redis_state.archive.postgres.rows import ms_of, record_values, row_values, task_values
from redis_state.archive.postgres.schema import make_months, month_of
from redis_state.postgres.connection import PostgresConnection
from redis_state.postgres.text import id_text, long_ids, plain_text

_NONE = (0, 0)


class MadeMonths:
    """The months whose partitions this process has found or made for a namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._made: set[tuple[str, tuple[int, int]]] = set()

    async def make(self, connection: PostgresConnection, batch: ArchiveBatch) -> None:
        """Make the months of a batch, in transactions of their own: other processes see them."""
        wanted = {("tasks", month_of(moment_of_us(task.born_us))) for task in batch.tasks} | {
            ("updates", month_of(moment_of_ms(row.ms)))
            for rows in batch.sessions
            for row in rows.rows
        }
        wanted |= {("records", month_of(moment_of_us(each.born_us))) for each in batch.records}
        missing = wanted - self._made
        for table in sorted({table for table, _ in missing}):
            months = {month for of, month in missing if of == table}
            async with connection.settled():
                await make_months(connection, table, months, namespace=self._namespace)
        self._made |= missing

    def forget(self) -> None:
        """Make each again: another process may have dropped it."""
        self._made.clear()


async def write_batch(
    cursor: AsyncCursor[Any],
    namespace: str,
    batch: ArchiveBatch,
) -> None:
    """Write a batch within a transaction, sessions in the order of their ids."""
    for rows in sorted(batch.sessions, key=lambda each: id_text(each.session_id)):
        await _write_rows(cursor, namespace, rows)
    await _write_tasks(cursor, namespace, batch.tasks)
    await _write_records(cursor, namespace, batch.records)


async def _write_rows(cursor: AsyncCursor[Any], namespace: str, rows: SessionRows) -> None:
    session = [namespace, id_text(rows.session_id)]
    await cursor.execute(sqls.NEW_SESSION, [*session, long_ids(rows.session_id)])
    await cursor.execute(sqls.LOCK_SESSION, session)
    found: Any = await cursor.fetchone()
    if found is None or (found[1], ms_of(found[0])) != (rows.after or _NONE):
        return
    if rows.lost_behind is not None:
        n, ms = rows.lost_behind
        await cursor.execute(sqls.LOSE_ROWS, [*session, moment_of_ms(ms), n])
    if rows.rows:
        values = [row_values(namespace, rows.session_id, row) for row in rows.rows]
        await cursor.executemany(sqls.INSERT_ROW, values)
    if rows.last is not None:
        n, ms = rows.last
        await cursor.execute(sqls.MOVE_SESSION, [moment_of_ms(ms), n, *session])


async def _write_tasks(
    cursor: AsyncCursor[Any],
    namespace: str,
    tasks: Sequence[ArchivedTask],
) -> None:
    if not tasks:
        return
    values = [
        [*task_values(namespace, task), *_replaced(task.replaces)]
        for task in sorted(tasks, key=lambda each: each.key)
    ]
    await cursor.executemany(sqls.INSERT_TASK, values)


async def _write_records(
    cursor: AsyncCursor[Any], namespace: str, records: Sequence[ArchivedRecord]
) -> None:
    if not records:
        return
    values = [
        [*record_values(namespace, each), *_replaced(each.replaces)]
        for each in sorted(records, key=lambda each: each.known_by)
    ]
    await cursor.executemany(sqls.INSERT_RECORD, values)


def _replaced(stamp: str | None) -> tuple[int | None, str | None]:
    """Return version and write of a stamp, None for none."""
    if stamp is None:
        return None, None
    version, _, write = stamp.partition(" ")
    return int(version), plain_text(write)
