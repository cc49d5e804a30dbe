"""What the fixtures of `redis_state.testing` give."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from pydantic import SecretStr

from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.testing import leaked_keys


@asynccontextmanager
async def open_store(url: str) -> AsyncGenerator[RedisStateStore]:
    """Give a store with a namespace of its own, and check that no key in it would stay for ever."""
    settings = Settings(url=SecretStr(url), namespace=f"test-{uuid.uuid4().hex[:12]}")
    async with RedisStateStore(settings) as store:
        yield store
    assert not await leaked_keys(settings), "keys without a lifetime"
