"""What a transaction holds that a pooler makes of a call: no locks that others wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import LiteralString

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")

import psycopg

from redis_state import Settings
from redis_state.archive.model import ArchiveBatch, ArchivedRow, SessionRows
from redis_state.archive.postgres import erasing
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.testing import eventually
from tests.support.servers.postgres import OwnPostgres
from tests.support.servers.proxies.pgbouncer import PgBouncer

# A month that no other test writes.
_MONTH = datetime(2031, 5, 5, tzinfo=UTC)
_WAITS: LiteralString = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
_DROP: LiteralString = "DROP TABLE IF EXISTS redis_state.updates_2031_05"

_ISOLATED: LiteralString = (
    "ALTER DATABASE postgres SET default_transaction_isolation = 'repeatable read'"
)
_NOT_ISOLATED: LiteralString = "ALTER DATABASE postgres RESET default_transaction_isolation"
# The month of the test lies before it.
_MARK: LiteralString = """
INSERT INTO redis_state.erasures (namespace, session_digest, before) VALUES (%s, %s, '2040-01-01')
"""


def _rows(session_id: str) -> ArchiveBatch:
    row = ArchivedRow(1, round(_MONTH.timestamp() * 1000), b"x", "t", b"1")
    return ArchiveBatch(sessions=[SessionRows(session_id, None, [row])])


def _lock_of(settings: Settings, session_id: str) -> int:
    return erasing._lock(erasing._digest(settings.namespace, session_id))  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
async def pooled(settings: Settings, pooler: PgBouncer) -> AsyncIterator[PostgresArchive]:
    """Give an archive through the pooler."""
    opened = PostgresArchive(pooler.url, namespace=settings.namespace)
    await opened.prepare()
    yield opened
    await opened.aclose()


@pytest.fixture
def beside(postgres: OwnPostgres, pooled: PostgresArchive) -> Iterator[psycopg.Connection]:
    """Give a connection without the pooler. The month is not there."""
    del pooled
    with psycopg.connect(postgres.url, autocommit=True) as opened:
        opened.execute(_DROP)
        yield opened
        opened.execute(_DROP)


async def _is_waiting(beside: psycopg.Connection) -> bool:
    return beside.execute(_WAITS).fetchone() == (1,)


async def test_a_writer_of_a_new_month_that_waits_for_a_session_keeps_no_reader_waiting(
    settings: Settings, postgres: OwnPostgres, pooled: PostgresArchive, beside: psycopg.Connection
) -> None:
    reader = PostgresArchive(postgres.url, namespace=settings.namespace, timeout_s=5)
    with beside.transaction():
        # As an erasure of the session does.
        beside.execute("SELECT pg_advisory_xact_lock(%s)", [_lock_of(settings, "s")])
        writing = asyncio.create_task(pooled.write(_rows("s")))
        await eventually(lambda: _is_waiting(beside), "the writer waits", timeout_s=30)
        assert await reader.rows("s", after=None, count=1) == []
    await writing
    found = await reader.rows("s", after=None, count=1)
    assert found is not None
    assert len(found) == 1
    await reader.aclose()


async def test_a_write_that_was_cancelled_leaves_the_next_one_its_month(
    settings: Settings, pooled: PostgresArchive, beside: psycopg.Connection
) -> None:
    with beside.transaction():
        beside.execute("SELECT pg_advisory_xact_lock(%s)", [_lock_of(settings, "s")])
        writing = asyncio.create_task(pooled.write(_rows("s")))
        await eventually(lambda: _is_waiting(beside), "the writer waits", timeout_s=30)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    await pooled.write(_rows("other"))
    found = await pooled.rows("other", after=None, count=1)
    assert found is not None
    assert len(found) == 1


@pytest.mark.parametrize("over_pooler", [True, False])
async def test_a_writer_sees_an_erasure_that_it_waited_for_whatever_the_default_isolation_is(
    settings: Settings,
    postgres: OwnPostgres,
    pooler: PgBouncer,
    beside: psycopg.Connection,
    *,
    over_pooler: bool,
) -> None:
    beside.execute(_ISOLATED)
    # Its connections are opened with the default of now.
    pooler.kill()
    pooler.start()
    url = pooler.url if over_pooler else postgres.url
    archive = PostgresArchive(url, namespace=settings.namespace)
    try:
        with beside.transaction():
            beside.execute("SELECT pg_advisory_xact_lock(%s)", [_lock_of(settings, "s")])
            writing = asyncio.create_task(archive.write(_rows("s")))
            await eventually(lambda: _is_waiting(beside), "the writer waits", timeout_s=30)
            beside.execute(
                _MARK,
                [settings.namespace, erasing._digest(settings.namespace, "s")],  # pyright: ignore[reportPrivateUsage]
            )
        await writing
        assert await archive.rows("s", after=None, count=1) == []
    finally:
        beside.execute(_NOT_ISOLATED)
        await archive.aclose()
