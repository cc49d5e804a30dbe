"""The tables, and how they come to be: each migration is applied once.

Everything stands in the schema ``redis_state``. Tasks and records are partitioned by the month of
their creation, updates by the month in which they were appended. Times are of Redis' server.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from psycopg import AsyncConnection, sql

# Of all advisory locks of a database those of this library: the bytes of "redis_st".
_LOCK = 0x7265_6469_735F_7374

_YEAR = 12

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE redis_state.tasks (
        namespace text NOT NULL,
        session_id text NOT NULL,
        task_id text NOT NULL,
        born timestamptz NOT NULL,
        version bigint NOT NULL,
        write text NOT NULL,
        status text NOT NULL,
        handler text NOT NULL,
        queue text,
        trace_id text,
        parent text,
        created_at timestamptz NOT NULL,
        ended_at timestamptz NOT NULL,
        attributes json NOT NULL,
        record json NOT NULL,
        journal json NOT NULL,
        long_ids json,
        archived_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (namespace, session_id, task_id, born)
    ) PARTITION BY RANGE (born);
    CREATE INDEX tasks_by_end ON redis_state.tasks (namespace, ended_at);
    CREATE INDEX tasks_by_status ON redis_state.tasks (namespace, status, ended_at);
    CREATE INDEX tasks_by_handler ON redis_state.tasks (namespace, handler, ended_at);
    CREATE INDEX tasks_by_trace ON redis_state.tasks (namespace, trace_id);
    CREATE TABLE redis_state.updates (
        namespace text NOT NULL,
        session_id text NOT NULL,
        at timestamptz NOT NULL,
        n bigint NOT NULL,
        task_id text NOT NULL,
        row_id text NOT NULL,
        data bytea NOT NULL,
        lost boolean NOT NULL DEFAULT false,
        long_ids json,
        PRIMARY KEY (namespace, session_id, at, n)
    ) PARTITION BY RANGE (at);
    CREATE INDEX updates_by_task ON redis_state.updates (namespace, session_id, task_id, at, n);
    CREATE TABLE redis_state.sessions (
        namespace text NOT NULL,
        session_id text NOT NULL,
        last_at timestamptz NOT NULL,
        last_n bigint NOT NULL,
        long_ids json,
        PRIMARY KEY (namespace, session_id)
    );
    """,
    """
    CREATE TABLE redis_state.records (
        namespace text NOT NULL,
        kind text NOT NULL,
        owner text NOT NULL,
        key text COLLATE "C" NOT NULL,
        born timestamptz NOT NULL,
        n bigint NOT NULL,
        version bigint NOT NULL,
        write text NOT NULL,
        at timestamptz NOT NULL,
        data bytea NOT NULL,
        long_ids json,
        archived_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (namespace, kind, owner, born, n, key)
    ) PARTITION BY RANGE (born);
    CREATE INDEX records_by_key ON redis_state.records (namespace, kind, owner, key);
    CREATE INDEX records_by_time ON redis_state.records (namespace, kind, at);
    """,
    # The order of creation, and which months there were: one without its partition was dropped.
    r"""
    CREATE INDEX tasks_by_creation ON redis_state.tasks (namespace, created_at);
    CREATE INDEX tasks_by_session ON redis_state.tasks (namespace, session_id, created_at);
    CREATE INDEX tasks_of_handler ON redis_state.tasks (namespace, handler, created_at);
    CREATE TABLE redis_state.months (name text PRIMARY KEY);
    INSERT INTO redis_state.months (name)
        SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid
        WHERE inhparent = 'redis_state.updates'::regclass;
    """,
    """
    CREATE TABLE redis_state.erasures (
        namespace text NOT NULL,
        session_digest bytea NOT NULL,
        before timestamptz NOT NULL,
        erased_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (namespace, session_digest)
    );
    """,
)

_NOTE_MONTH = "INSERT INTO redis_state.months (name) VALUES (%s) ON CONFLICT DO NOTHING"
# A partition that is detached is dropped as well.
_DROPPED = """
SELECT 1 FROM redis_state.months WHERE name COLLATE "C" >= %s AND name COLLATE "C" < %s
AND NOT EXISTS (
    SELECT 1 FROM pg_inherits JOIN pg_class ON oid = inhrelid
    WHERE inhparent = 'redis_state.updates'::regclass AND relname = months.name)
LIMIT 1
"""


async def migrate(connection: AsyncConnection[Any]) -> int:
    """Make the tables, unless they are there; return the version. One transaction.

    Processes that come together wait for the first of them. A crash leaves nothing of it. With all
    tables there it only reads. An index of large tables takes as long as it takes.
    """
    if await is_migrated(connection):
        return len(MIGRATIONS)
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0")
        await connection.execute("SET LOCAL lock_timeout = 0")
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        await connection.execute("CREATE SCHEMA IF NOT EXISTS redis_state")
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS redis_state.migrations "
            "(version int PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        done = await _version(connection)
        for version, statements in enumerate(MIGRATIONS[done:], start=done + 1):
            await connection.execute(statements.encode())
            await connection.execute(
                "INSERT INTO redis_state.migrations (version) VALUES (%s)", [version]
            )
        return max(done, len(MIGRATIONS))


async def is_migrated(connection: AsyncConnection[Any]) -> bool:
    """Return whether all tables are there, as this version of the library has them."""
    found = await connection.execute("SELECT to_regclass('redis_state.migrations')")
    return await found.fetchone() != (None,) and await _version(connection) >= len(MIGRATIONS)


async def _version(connection: AsyncConnection[Any]) -> int:
    found = await connection.execute("SELECT coalesce(max(version), 0) FROM redis_state.migrations")
    row = await found.fetchone()
    return int(row[0]) if row else 0


def month_of(moment: datetime) -> tuple[int, int]:
    """Return the month whose partition has a moment."""
    at = moment.astimezone(UTC)
    return at.year, at.month


async def make_months(
    connection: AsyncConnection[Any], table: str, months: Iterable[tuple[int, int]]
) -> None:
    """Make the partitions of months, unless they are there. One transaction for all."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        for year, month in sorted(set(months)):
            following = (year + month // _YEAR, month % _YEAR + 1)
            await connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} PARTITION OF {} FOR VALUES FROM ({}) TO ({})"
                ).format(
                    sql.Identifier("redis_state", _name_of(table, year, month)),
                    sql.Identifier("redis_state", table),
                    sql.Literal(f"{year:04d}-{month:02d}-01 00:00:00+00"),
                    sql.Literal(f"{following[0]:04d}-{following[1]:02d}-01 00:00:00+00"),
                )
            )
            if table == "updates":
                await connection.execute(_NOTE_MONTH, [_name_of(table, year, month)])


async def is_dropped(connection: AsyncConnection[Any], begin: datetime, end: datetime) -> bool:
    """Return whether a month of updates was dropped that is between two moments or has the first.

    Of a month that was made again only what was written since is there: it counts as kept.
    """
    found = await connection.execute(
        _DROPPED, [_name_of("updates", *month_of(begin)), _name_of("updates", *month_of(end))]
    )
    return await found.fetchone() is not None


def _name_of(table: str, year: int, month: int) -> str:
    return f"{table}_{year:04d}_{month:02d}"
