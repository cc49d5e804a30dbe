"""The fixtures that pytest finds through `redis_state.testing`."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from pydantic import SecretStr

from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.testing import leaked_keys
from redis_state.transport.embedded import EmbeddedServer, start_embedded


@pytest.fixture(scope="session")
def redis_state_server() -> Iterator[EmbeddedServer]:
    """Run one real server for the tests of this process."""
    with start_embedded(None) as server:
        yield server


@pytest.fixture
async def redis_state_store(
    redis_state_server: EmbeddedServer,
) -> AsyncIterator[RedisStateStore]:
    """Give a store with a namespace of its own, and check that no key in it would stay for ever."""
    settings = Settings(
        url=SecretStr(redis_state_server.url), namespace=f"test-{uuid.uuid4().hex[:12]}"
    )
    async with RedisStateStore(settings) as store:
        yield store
    assert not await leaked_keys(settings), "keys without a lifetime"
