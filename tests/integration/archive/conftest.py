"""An archive for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

pytest.importorskip("psycopg", reason="needs the postgres extra")

from redis_state import RedisStateStore, Settings
from redis_state.archive.postgres.archive import PostgresArchive
from tests.support.servers.postgres import OwnPostgres


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
