"""Tables that take longer to be made than a call may: they are made once, and to the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")

from psycopg import AsyncConnection
from pydantic import SecretStr

from redis_state import BackendUnavailable, CommandRefused
from redis_state.postgres.link import PostgresLink
from redis_state.testing import eventually
from tests.support.servers.postgres import OwnPostgres

_HELD = 77_001
_WHO = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = %s"


async def makers(beside: AsyncConnection[Any]) -> list[tuple[Any, ...]]:
    return await (await beside.execute(_WHO, [_HELD])).fetchall()


async def test_tables_that_take_longer_than_a_call_are_made_once(postgres: OwnPostgres) -> None:
    link = PostgresLink(
        SecretStr(postgres.url),
        address="postgresql://server",
        schema="redis_state_of_slow",
        migrations=(
            f"SELECT pg_advisory_xact_lock({_HELD}); CREATE TABLE redis_state_of_slow.t (n int)",
        ),
        call_timeout_s=3,
    )
    async with await AsyncConnection.connect(postgres.url, autocommit=True) as beside:
        await beside.execute("DROP SCHEMA IF EXISTS redis_state_of_slow CASCADE")
        await beside.execute("SELECT pg_advisory_lock(%s)", [_HELD])
        preparing = asyncio.ensure_future(link.prepare())
        await eventually(lambda: makers(beside), "the tables are being made")
        first = await makers(beside)
        with pytest.raises(BackendUnavailable, match="its tables are being made"):
            await link.run(lambda connection: connection.execute("SELECT 1"))
        assert await makers(beside) == first
        assert not preparing.done()
        await beside.execute("SELECT pg_advisory_unlock(%s)", [_HELD])
        await preparing
        await link.run(lambda connection: connection.execute("TABLE redis_state_of_slow.t"))
        await link.aclose()


async def test_a_link_that_is_closed_leaves_no_half_made_tables(postgres: OwnPostgres) -> None:
    schema = "redis_state_of_closed"
    link = PostgresLink(
        SecretStr(postgres.url),
        address="postgresql://server",
        schema=schema,
        migrations=(f"SELECT pg_advisory_xact_lock({_HELD})",),
        call_timeout_s=60,
    )
    async with await AsyncConnection.connect(postgres.url, autocommit=True) as beside:
        await beside.execute("SELECT pg_advisory_lock(%s)", [_HELD])
        preparing = asyncio.ensure_future(link.prepare())
        await eventually(lambda: makers(beside), "the tables are being made")
        await link.aclose()
        with pytest.raises(BackendUnavailable, match="is closed"):
            await preparing
        await beside.execute("SELECT pg_advisory_unlock(%s)", [_HELD])
        found = await beside.execute("SELECT to_regnamespace(%s)", [schema])
        assert await found.fetchone() == (None,)


async def test_tables_that_cannot_be_made_are_refused_though_it_took_longer_than_a_call(
    postgres: OwnPostgres,
) -> None:
    link = PostgresLink(
        SecretStr(postgres.url),
        address="postgresql://server",
        schema="redis_state_of_broken",
        migrations=(f"SELECT pg_advisory_xact_lock({_HELD}); SELECT 1 / 0",),
        call_timeout_s=1,
    )
    async with await AsyncConnection.connect(postgres.url, autocommit=True) as beside:
        await beside.execute("SELECT pg_advisory_lock(%s)", [_HELD])
        preparing = asyncio.ensure_future(link.prepare())
        await eventually(lambda: makers(beside), "the tables are being made")
        with pytest.raises(BackendUnavailable, match="its tables are being made"):
            await link.run(lambda connection: connection.execute("SELECT 1"))
        await beside.execute("SELECT pg_advisory_unlock(%s)", [_HELD])
        with pytest.raises(CommandRefused, match="DivisionByZero"):
            await preparing
        await link.aclose()
