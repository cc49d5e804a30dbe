"""Redis is restored from a backup: what PostgreSQL has stays, once, and what follows is moved."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")

import psycopg
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.models import StoredEvent
from redis_state.stores.durable_events.store import DurableEventStore
from redis_state.testing import eventually
from tests.support.servers.changes.rollback import Rollback
from tests.support.servers.faults import short_directory
from tests.support.servers.postgres import OwnPostgres

pytestmark = pytest.mark.slow


def event(n: int) -> StoredEvent:
    return StoredEvent("trace", float(n), "k", f"n{n}", None, {"n": n})


async def moved(store: RedisStateStore) -> None:
    events = store.events
    assert isinstance(events, DurableEventStore)

    async def empty() -> bool:
        await events.flush()
        return (await events.backlog()).traces == 0

    await eventually(empty, "PostgreSQL has all events", timeout_s=60)


async def test_a_redis_restored_from_a_backup_twice_loses_and_doubles_nothing_that_was_moved(
    delayed: Settings, postgres: OwnPostgres
) -> None:
    with short_directory() as directory:
        server = Rollback(directory)
        await server.start()
        try:
            own = {"url": SecretStr(server.url), "call_timeout_s": 30.0}
            async with RedisStateStore(delayed.model_copy(update=own)) as store:
                for n in range(5):
                    await store.save_event(event(n))
                await moved(store)
                await store.save_event(event(5))
                await server.mark()
                for n in range(6, 12):
                    await store.save_event(event(n))
                await moved(store)
                await server.go_back()
                assert await store.load_history("trace") == [event(n) for n in range(12)]
                # More than the backup lacks: numbers are given again, and go beyond.
                for n in range(12, 30):
                    await store.save_event(event(n))
                await moved(store)
                await server.go_back()
                await store.save_event(event(30))
                await moved(store)
                assert await store.load_history("trace") == [event(n) for n in range(31)]
        finally:
            await server.stop()
    with psycopg.connect(postgres.url) as beside:
        found = beside.execute(
            "SELECT node_name FROM redis_state_events.events WHERE namespace = %s ORDER BY n",
            [delayed.namespace],
        )
        assert [name for (name,) in found] == [f"n{n}" for n in range(31)]
