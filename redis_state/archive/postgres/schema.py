"""The tables, and how they come to be: each migration is applied once.

Everything stands in the schema ``redis_state``. Tasks and records are partitioned by the month of
their creation, updates by the month in which they were appended. Times are of Redis' server.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from psycopg import AsyncConnection, sql

from redis_state.postgres.migrations import LOCK, applied_version, apply_migrations

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
    # Which sessions have a trace.
    """
    CREATE INDEX trajectories_by_trace ON redis_state.records (namespace, key)
        WHERE kind = 'trajectory';
    """,
    # Which sessions may have expired, and the order of creation of one status.
    """
    CREATE INDEX sessions_by_time ON redis_state.sessions (namespace, last_at);
    CREATE INDEX tasks_of_status ON redis_state.tasks (namespace, status, created_at);
    """,
    # Which namespace had rows in a month. Without one any may have: that is not known.
    """
    ALTER TABLE redis_state.months ADD COLUMN namespace text NOT NULL DEFAULT '';
    ALTER TABLE redis_state.months DROP CONSTRAINT months_pkey, ADD PRIMARY KEY (name, namespace);
    """,
    # Which archive it is: one row.
    """
    CREATE TABLE redis_state.identity (
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        id text NOT NULL,
        made_at timestamptz NOT NULL DEFAULT now()
    );
    """,
)

_KEEP_IDENTITY = "INSERT INTO redis_state.identity (id) VALUES (%s) ON CONFLICT DO NOTHING"

_NOTE_MONTH = """
INSERT INTO redis_state.months (name, namespace) VALUES (%s, %s) ON CONFLICT DO NOTHING
"""
# A partition that is detached is dropped as well.
_DROPPED = """
SELECT 1 FROM redis_state.months WHERE name COLLATE "C" >= %s AND name COLLATE "C" < %s
AND namespace IN (%s, '') AND NOT EXISTS (
    SELECT 1 FROM pg_inherits JOIN pg_class ON oid = inhrelid
    WHERE inhparent = 'redis_state.updates'::regclass AND relname = months.name)
LIMIT 1
"""


async def migrate(connection: AsyncConnection[Any]) -> int:
    """Make the archive's tables, unless they are there; return the version. One transaction.

    With all tables there it only reads. An index of large tables takes as long as it takes.
    """
    version = await apply_migrations(connection, "redis_state", MIGRATIONS)
    if await identity(connection) is None:
        # Of processes that come together the first one's stays.
        await connection.execute(_KEEP_IDENTITY, [secrets.token_hex(16)])
    return version


async def is_migrated(connection: AsyncConnection[Any]) -> bool:
    """Return whether all tables and the id are there, as this version of the library has them."""
    if await applied_version(connection, "redis_state") < len(MIGRATIONS):
        return False
    return await identity(connection) is not None


async def identity(connection: AsyncConnection[Any]) -> str | None:
    """Return the id of the archive; None if it has none."""
    found = await connection.execute("SELECT to_regclass('redis_state.identity')")
    if await found.fetchone() == (None,):
        return None
    found = await connection.execute("SELECT id FROM redis_state.identity")
    row = await found.fetchone()
    return None if row is None else str(row[0])


def month_of(moment: datetime) -> tuple[int, int]:
    """Return the month whose partition has a moment."""
    at = moment.astimezone(UTC)
    return at.year, at.month


async def make_months(
    connection: AsyncConnection[Any],
    table: str,
    months: Iterable[tuple[int, int]],
    *,
    namespace: str,
) -> None:
    """Make the partitions of months for a namespace, unless they are there. One transaction.

    A table is made beside the others and then attached: that waits for no query and holds up none.
    """
    parent = sql.Identifier("redis_state", table)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        for year, month in sorted(set(months)):
            name = _name_of(table, year, month)
            found = await connection.execute("SELECT to_regclass(%s)", [f"redis_state.{name}"])
            if await found.fetchone() == (None,):
                part, bounds = sql.Identifier("redis_state", name), _bounds_of(year, month)
                await connection.execute(
                    sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL)").format(part, parent)
                )
                await connection.execute(
                    sql.SQL(
                        "ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})"
                    ).format(parent, part, *bounds)
                )
            if table == "updates":
                await connection.execute(_NOTE_MONTH, [name, namespace])


def _bounds_of(year: int, month: int) -> tuple[sql.Literal, sql.Literal]:
    following = (year + month // _YEAR, month % _YEAR + 1)
    first, end = (f"{y:04d}-{m:02d}-01 00:00:00+00" for y, m in ((year, month), following))
    return sql.Literal(first), sql.Literal(end)


async def is_dropped(
    connection: AsyncConnection[Any], namespace: str, begin: datetime, end: datetime
) -> bool:
    """Return whether a month of updates was dropped that is between two moments or has the first.

    It is one that may have had rows of the namespace.

    Of a month that was made again only what was written since is there: it counts as kept.
    """
    names = [_name_of("updates", *month_of(each)) for each in (begin, end)]
    found = await connection.execute(_DROPPED, [*names, namespace])
    return await found.fetchone() is not None


def _name_of(table: str, year: int, month: int) -> str:
    return f"{table}_{year:04d}_{month:02d}"
