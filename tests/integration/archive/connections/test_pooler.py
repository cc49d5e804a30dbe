"""PostgreSQL behind a pooler that lends each transaction another connection of few."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

import psycopg
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.queries import ArchiveListing
from redis_state.archive.waiting import ArchiveList
from redis_state.models import StoredEvent
from redis_state.stores.durable_events.store import DurableEventStore
from redis_state.testing import eventually
from tests.support.processes.pools import SESSION
from tests.support.servers.postgres import OwnPostgres
from tests.support.servers.proxies.pgbouncer import PgBouncer
from tests.support.tasks.archived.archives import (
    archive_all,
    archived,
    archived_rows,
    ended,
    expected,
    live_rows,
)

_SHOW: LiteralString = """
SELECT pg_backend_pid(), current_setting('statement_timeout'), current_setting('lock_timeout'),
    current_setting('TimeZone'), current_setting('synchronous_commit')
"""
# As for data that may be lost. What we write may not.
_CARELESS: LiteralString = "ALTER DATABASE postgres SET synchronous_commit = off"
_CAREFUL: LiteralString = "ALTER DATABASE postgres RESET synchronous_commit"
_WITNESS: LiteralString = """
CREATE TABLE witness (how text);
CREATE FUNCTION saw() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.witness VALUES (current_setting('synchronous_commit'));
    RETURN NULL;
END $$;
CREATE TRIGGER saw AFTER INSERT ON redis_state.tasks EXECUTE FUNCTION saw();
"""
_FORGET_WITNESS: LiteralString = """
DROP TRIGGER saw ON redis_state.tasks; DROP FUNCTION saw; DROP TABLE witness
"""


@pytest.fixture
def archive_url(postgres: OwnPostgres) -> str:
    """Give the URL of the archive."""
    return postgres.url


@pytest.fixture
async def pooled(
    archive: PostgresArchive, archiving: Settings, pooler: PgBouncer
) -> AsyncIterator[PostgresArchive]:
    """Give the test's archive through the pooler."""
    opened = PostgresArchive(pooler.url, namespace=archiving.namespace)
    await opened.prepare()
    yield opened
    await opened.aclose()


async def _due(store: RedisStateStore) -> str:
    """Have a task end that is to be archived."""
    task = await ended(store)
    await ArchiveList(store).enlist(SESSION, task)
    return task


async def _settings(url: str) -> list[Any]:
    """Ask for settings on each of the pooler's connections, which are busy at the same time."""
    async with (
        await psycopg.AsyncConnection.connect(url) as one,
        await psycopg.AsyncConnection.connect(url) as other,
    ):
        found: list[Any] = []
        for connection in (one, other):
            asked = await connection.execute(_SHOW)
            found.append(await asked.fetchone())
    assert found[0][0] != found[1][0]
    return [each[1:] for each in found]


async def test_what_has_ended_is_archived_read_found_and_erased(
    live: RedisStateStore, pooled: PostgresArchive
) -> None:
    tasks = [await _due(live) for _ in range(25)]
    want = await expected(live, *tasks)
    await archive_all(live, pooled)
    assert await archived(pooled) == want
    for _ in range(8):
        assert await archived_rows(pooled) == await live_rows(live)
        assert len((await pooled.find(ArchiveListing(limit=100))).tasks) == 25
        assert (await pooled.status()).tasks == 25
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    report = await pooled.retain({"tasks": tomorrow, "updates": tomorrow, "sessions": tomorrow})
    assert not report.more
    assert (await pooled.status()).tasks == 0
    assert await pooled.forget(SESSION) is None


async def test_archives_and_others_share_connections_and_leave_them_as_they_were(
    live: RedisStateStore, pooled: PostgresArchive, pooler: PgBouncer, archiving: Settings
) -> None:
    before = await _settings(pooler.url)
    task = await _due(live)
    want = await expected(live, task)
    await archive_all(live, pooled)
    others = [PostgresArchive(pooler.url, namespace=archiving.namespace) for _ in range(40)]
    try:
        # So often that each would prepare its statements, under names that others use too.
        for _ in range(8):
            assert await asyncio.gather(*map(archived, others)) == [want] * 40
    finally:
        await asyncio.gather(*(each.aclose() for each in others))
    assert await _settings(pooler.url) == before


async def test_a_commit_is_on_the_disk_though_the_database_does_not_ask_for_it(
    live: RedisStateStore, archive: PostgresArchive, postgres: OwnPostgres, archiving: Settings
) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as beside:
        beside.execute(_CARELESS)
        beside.execute(_WITNESS)
        pooler = PgBouncer(postgres)
        pooler.start()
        pooled = PostgresArchive(pooler.url, namespace=archiving.namespace)
        try:
            assert {each[-1] for each in await _settings(pooler.url)} == {"off"}
            await _due(live)
            await archive_all(live, pooled)
            assert beside.execute("SELECT DISTINCT how FROM witness").fetchall() == [("on",)]
        finally:
            await pooled.aclose()
            pooler.close()
            beside.execute(_FORGET_WITNESS)
            beside.execute(_CAREFUL)


async def test_a_pooler_that_is_killed_or_whose_connections_are_ended_delays(
    live: RedisStateStore, pooled: PostgresArchive, pooler: PgBouncer, postgres: OwnPostgres
) -> None:
    tasks = [await _due(live)]
    await archive_all(live, pooled)
    pooler.kill()
    tasks.append(await _due(live))
    with pytest.raises(AssertionError, match="still wait"):
        await archive_all(live, pooled)
    pooler.start()
    await archive_all(live, pooled)
    ended_by_hand = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> %s"
    with psycopg.connect(postgres.url, autocommit=True) as beside:
        assert beside.execute(ended_by_hand, [beside.info.backend_pid]).fetchall()
    tasks.append(await _due(live))
    await archive_all(live, pooled)
    assert await archived(pooled) == await expected(live, *tasks)


@pytest.mark.parametrize("mode", ["sync", "delayed"])
async def test_audit_events_of_forty_callers_are_kept_once_and_in_order(
    settings: Settings, postgres: OwnPostgres, pooler: PgBouncer, mode: str
) -> None:
    named = {"durable_events": SecretStr(pooler.url), "durable_events_mode": mode}
    durable = settings.model_copy(update=named)
    async with RedisStateStore(durable) as store, RedisStateStore(durable) as other:

        async def call(name: str) -> None:
            for n in range(10):
                saver = store if n % 2 else other
                await saver.save_event(StoredEvent("trace", 1.0, "k", name, None, {"n": n}))

        await asyncio.gather(*(call(f"c{n}") for n in range(40)))
        events = store.events
        assert isinstance(events, DurableEventStore)

        async def moved() -> bool:
            return (await events.backlog()).traces == 0

        await eventually(moved, "PostgreSQL has all events", timeout_s=60)
        found = await other.load_history("trace")
        assert len(found) == 40 * 10
        for name in (f"c{n}" for n in range(40)):
            kept = [each.payload["n"] for each in found if each.node_name == name]
            assert kept == list(range(10))
