"""Retention in PostgreSQL: expired months are dropped whole, the rest is deleted in pieces.

A month of one namespace may hold another's rows. It is dropped only if it has none, or no rows at
all, which is known while it is locked. What cannot be locked soon is left to a later call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from redis_state.archive.model import RecordKind
from redis_state.archive.postgres.calls import LONG_S
from redis_state.archive.retention import RetentionReport
from redis_state.postgres.connection import PostgresConnection


@dataclass(frozen=True, slots=True)
class _Rows:
    """A class's rows: their table, by which column one expires, their kind in a shared table."""

    what: str
    table: str
    column: LiteralString
    kind: RecordKind | None = None

    def own(self, namespace: str) -> sql.Composed:
        """Write which rows of the table are those of a namespace."""
        own = sql.SQL("namespace = {}").format(sql.Literal(namespace))
        if self.kind is None:
            return own
        return own + sql.SQL(" AND kind = {}").format(sql.Literal(self.kind.value))


_ROWS: Final = (
    _Rows("tasks", "tasks", "ended_at"),
    _Rows("updates", "updates", "at"),
    *(_Rows(kind.what, "records", "at", kind) for kind in RecordKind),
)
CLASSES: Final = (*(rows.what for rows in _ROWS), "sessions")
# So many rows in a transaction, and in a call.
_PIECE, _MOST = 2_000, 20_000
_BUSY = ("55P03", "57014")
# Another process has dropped it.
_GONE = "42P01"

# From how many rows on a partition is not counted.
_LARGE = 1_000_000
_ESTIMATE: Final = "SELECT reltuples::bigint FROM pg_class WHERE oid = %s::regclass"
_MONTH = re.compile(r"[a-z]+_(\d{4})_(\d\d)")
_YEAR = 12

_PARTS: Final = """
SELECT part.relname FROM pg_inherits AS tree
JOIN pg_class AS part ON part.oid = tree.inhrelid
WHERE tree.inhparent = %s::regclass ORDER BY part.relname
"""
_SESSIONS: Final = """
FROM redis_state.sessions AS old WHERE old.namespace = %s AND old.last_at < %s
AND NOT EXISTS (SELECT FROM redis_state.tasks AS task
    WHERE task.namespace = old.namespace AND task.session_id = old.session_id)
AND NOT EXISTS (SELECT FROM redis_state.updates AS kept
    WHERE kept.namespace = old.namespace AND kept.session_id = old.session_id)
"""
_COUNT_SESSIONS: Final = f"SELECT count(*) {_SESSIONS}".encode()
_DELETE_SESSIONS: Final = f"""
DELETE FROM redis_state.sessions WHERE ctid = ANY(ARRAY(SELECT old.ctid {_SESSIONS} LIMIT %s))
""".encode()  # noqa: S608 - of the text above


class Retaining:
    """One call of `retain`: what it may still remove, and what it did."""

    def __init__(
        self,
        connection: PostgresConnection,
        namespace: str,
        *,
        dry_run: bool,
        report: RetentionReport,
    ) -> None:
        # With what a try before has removed, which was ended for another transaction's sake.
        self.report: RetentionReport = report
        self._connection = connection
        self._namespace = namespace
        self._dry_run = dry_run
        self._left = _MOST

    async def run(self, before: Mapping[str, datetime]) -> None:
        """Remove what has expired: tasks and updates first, then sessions that have neither."""
        self.report.left, self.report.more = {}, False
        for rows in _ROWS:
            if rows.what in before:
                self.report.add(rows.what, 0)
                await self._rows(rows, before[rows.what])
        if "sessions" in before:
            self.report.add("sessions", 0)
            await self._sessions(before["sessions"])

    async def _rows(self, rows: _Rows, before: datetime) -> None:
        async with self._connection.settled():
            found = await self._connection.execute(_PARTS, [f"redis_state.{rows.table}"])
            parts = await found.fetchall()
        for (name,) in parts:
            part = sql.Identifier("redis_state", name)
            over = sql.SQL("{} < {}").format(sql.Identifier(rows.column), sql.Literal(before))
            if self._left <= 0:
                self.report.more = True
                return
            try:
                async with self._connection.settled():
                    dropped = await self._dropped(rows, name, part, before)
                if not dropped:
                    await self._deleted(rows, part, over)
            except psycopg.Error as error:
                if error.sqlstate not in (*_BUSY, _GONE):
                    raise
                if error.sqlstate in _BUSY:
                    self.report.left[name] = "is in use: a later round removes it"

    async def _dropped(
        self, rows: _Rows, name: str, part: sql.Identifier, before: datetime
    ) -> bool:
        """Drop a partition if all of it has expired, and is of this namespace.

        Index lookups decide, however large it is. Only a month of ours is dropped.
        """
        ends = _end_of(name)
        if ends is None or ends > before:
            return False
        # Without the lock first: most partitions have something that stays.
        if await self._has_what_stays(rows, part, before):
            return False
        async with self._connection.transaction():
            if not self._dry_run:
                await self._connection.execute("SET LOCAL lock_timeout = '2s'")
                await self._connection.execute(
                    sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(part)
                )
                if await self._has_what_stays(rows, part, before):
                    return False
            count = await self._count(name, part)
            if not self._dry_run:
                await self._connection.execute(sql.SQL("DROP TABLE {}").format(part))
        self.report.add(rows.what, count, partitions=1)
        return True

    async def _has_what_stays(self, rows: _Rows, part: sql.Identifier, before: datetime) -> bool:
        own = sql.Literal(self._namespace)
        column = sql.Identifier(rows.column)
        stays = sql.SQL("SELECT min(namespace) <> {0} OR max(namespace) <> {0} FROM {1}").format(
            own, part
        )
        found: Any = await (await self._connection.execute(stays)).fetchone()
        if found[0] is None:
            # Of no rows: deleted in pieces. A writer that has just made it makes it again.
            return False
        if found[0] or rows.table == "updates":
            # All updates of a month are of before its end.
            return bool(found[0])
        if rows.kind is not None:
            other = sql.SQL(
                "SELECT min(kind) <> {0} OR max(kind) <> {0} FROM {1} WHERE namespace = {2}"
            ).format(sql.Literal(rows.kind.value), part, own)
            found = await (await self._connection.execute(other)).fetchone()
            if found[0]:
                return True
        last = sql.SQL("SELECT max({}) FROM {} WHERE {}").format(
            column, part, rows.own(self._namespace)
        )
        found = await (await self._connection.execute(last)).fetchone()
        return found[0] is not None and found[0] >= before

    async def _count(self, name: str, part: sql.Identifier) -> int:
        """Count the rows of a partition; of a large one return the server's estimate."""
        about = await self._connection.execute(_ESTIMATE, [f'redis_state."{name}"'])
        estimate: Any = await about.fetchone()
        if estimate[0] > _LARGE:
            return int(estimate[0])
        counted = await self._connection.execute(sql.SQL("SELECT count(*) FROM {}").format(part))
        row: Any = await counted.fetchone()
        return int(row[0])

    async def _deleted(self, rows: _Rows, part: sql.Identifier, over: sql.Composed) -> None:
        wanted = sql.SQL("FROM {} WHERE {} AND {}").format(part, rows.own(self._namespace), over)
        if self._dry_run:
            counting = sql.SQL("SELECT count(*) {}").format(wanted)
            async with self._connection.long(LONG_S):
                row: Any = await (await self._connection.execute(counting)).fetchone()
            self.report.add(rows.what, row[0])
            return
        while self._left > 0:
            piece = min(_PIECE, self._left)
            deleting = sql.SQL(
                "DELETE FROM {} WHERE ctid = ANY(ARRAY(SELECT ctid {} LIMIT {}))"
            ).format(part, wanted, sql.Literal(piece))
            async with self._connection.settled():
                done = await self._connection.execute(deleting)
            self._left -= done.rowcount
            self.report.add(rows.what, done.rowcount)
            if done.rowcount < piece:
                return
        self.report.more = True

    async def _sessions(self, before: datetime) -> None:
        values = [self._namespace, before]
        if self._dry_run:
            async with self._connection.long(LONG_S):
                counted = await self._connection.execute(_COUNT_SESSIONS, values)
                row: Any = await counted.fetchone()
            self.report.add("sessions", row[0])
            return
        if self._left <= 0:
            self.report.more = True
            return
        async with self._connection.long(LONG_S):
            done = await self._connection.execute(_DELETE_SESSIONS, [*values, self._left])
        self.report.more |= done.rowcount >= self._left
        self.report.add("sessions", done.rowcount)


def _end_of(name: str) -> datetime | None:
    """Return the end of the month of a partition, by its name; None for one of another kind."""
    found = _MONTH.fullmatch(name)
    if found is None:
        return None
    year, month = int(found[1]), int(found[2])
    return datetime(year + month // _YEAR, month % _YEAR + 1, 1, tzinfo=UTC)
