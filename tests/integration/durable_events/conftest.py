"""Settings and stores whose audit events are in PostgreSQL, in both modes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

pytest.importorskip("psycopg", reason="needs the postgres extra")

from redis_state import RedisStateStore, Settings
from redis_state.stores.durable_events.store import DurableEventStore
from tests.support.servers.postgres import OwnPostgres

MODES = ("sync", "delayed")


@pytest.fixture(params=MODES)
def durable(settings: Settings, postgres: OwnPostgres, request: pytest.FixtureRequest) -> Settings:
    """Give the test's settings, with its events in PostgreSQL, in each mode."""
    named = {"durable_events": SecretStr(postgres.url), "durable_events_mode": request.param}
    return settings.model_copy(update=named)


@pytest.fixture
def synced(settings: Settings, postgres: OwnPostgres) -> Settings:
    """Give the test's settings, with its events in PostgreSQL at once."""
    return settings.model_copy(update={"durable_events": SecretStr(postgres.url)})


@pytest.fixture
def delayed(settings: Settings, postgres: OwnPostgres) -> Settings:
    """Give the test's settings, with its events in PostgreSQL after a while."""
    named = {"durable_events": SecretStr(postgres.url), "durable_events_mode": "delayed"}
    return settings.model_copy(update=named)


@pytest.fixture
async def kept(durable: Settings) -> AsyncIterator[RedisStateStore]:
    """Give a store in each mode."""
    async with RedisStateStore(durable) as opened:
        assert isinstance(opened.events, DurableEventStore)
        # On a busy machine that takes longer than a call may.
        await opened.events.prepare()
        yield opened
