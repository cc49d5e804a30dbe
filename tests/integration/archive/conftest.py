"""A PostgreSQL for all tests of one process, and an archive in it for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from pydantic import SecretStr

pytest.importorskip("psycopg", reason="needs the postgres extra")

from redis_state import RedisStateStore, Settings
from redis_state.archive.postgres.archive import PostgresArchive
from tests.support.servers.postgres import OwnPostgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[OwnPostgres]:
    """Start a server for the test process."""
    server = OwnPostgres()
    server.start()
    yield server
    server.close()


@pytest.fixture
def archiving(settings: Settings, postgres: OwnPostgres) -> Settings:
    """Give the test's settings with an archive."""
    return settings.model_copy(update={"archive_url": SecretStr(postgres.url)})


@pytest.fixture
async def archive(archiving: Settings, postgres: OwnPostgres) -> AsyncIterator[PostgresArchive]:
    """Give the test's archive, with its tables."""
    opened = PostgresArchive(postgres.url, namespace=archiving.namespace)
    await opened.prepare()
    yield opened
    await opened.aclose()


@pytest.fixture
async def live(archiving: Settings) -> AsyncIterator[RedisStateStore]:
    """Give a store that archives."""
    async with RedisStateStore(archiving) as opened:
        yield opened
