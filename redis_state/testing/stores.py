"""What the fixtures of `redis_state.testing` give."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from pydantic import SecretStr

from redis_state.embedded.own_settings import ALONE
from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.testing import leaked_keys


def own_settings(url: str, namespace: str, **options: Any) -> Settings:
    """Make settings of a test's own server: no variable leads to another server, or its data."""
    chosen: dict[str, Any] = {**ALONE, **options, "url": SecretStr(url), "namespace": namespace}
    return Settings(**chosen)


@asynccontextmanager
async def open_store(url: str) -> AsyncGenerator[RedisStateStore]:
    """Give a store with a namespace of its own, and check that no key in it would stay for ever."""
    settings = own_settings(url, f"test-{uuid.uuid4().hex[:12]}")
    async with RedisStateStore(settings) as store:
        yield store
    assert not await leaked_keys(settings), "keys without a lifetime"
