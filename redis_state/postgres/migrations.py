"""How tables come to be: each migration of a schema is applied once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection, sql

# Of all advisory locks of a database those of this library: the bytes of "redis_st".
LOCK = 0x7265_6469_735F_7374


async def apply_migrations(
    connection: AsyncConnection[Any], schema: str, migrations: Sequence[str]
) -> int:
    """Make a schema's tables, unless they are there; return the version. One transaction.

    Processes that come together wait for the first of them. A crash leaves nothing of it. With all
    tables there it only reads.
    """
    done = await applied_version(connection, schema)
    if done >= len(migrations):
        return done
    table = sql.Identifier(schema, "migrations")
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0")
        await connection.execute("SET LOCAL lock_timeout = 0")
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        await connection.execute(
            sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))
        )
        await connection.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} "
                "(version int PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
            ).format(table)
        )
        done = await applied_version(connection, schema)
        for version, statements in enumerate(migrations[done:], start=done + 1):
            await connection.execute(statements.encode())
            await connection.execute(
                sql.SQL("INSERT INTO {} (version) VALUES (%s)").format(table), [version]
            )
        return max(done, len(migrations))


async def applied_version(connection: AsyncConnection[Any], schema: str) -> int:
    """Return how many migrations of a schema are applied; 0 if it is not there."""
    found = await connection.execute("SELECT to_regclass(%s)", [f"{schema}.migrations"])
    if await found.fetchone() == (None,):
        return 0
    found = await connection.execute(
        sql.SQL("SELECT coalesce(max(version), 0) FROM {}").format(
            sql.Identifier(schema, "migrations")
        )
    )
    row = await found.fetchone()
    return int(row[0]) if row else 0
