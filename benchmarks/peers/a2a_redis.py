"""a2a-redis: the A2A SDK's tasks in Redis. Needs the environment of the A2A peers."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.measure import Operation
from benchmarks.peers.a2a import operations


async def prepare(url: str) -> dict[str, Operation]:
    """Give the operations of its task store."""
    redis: Any = importlib.import_module("redis.asyncio")
    store: Any = importlib.import_module("a2a_redis").RedisTaskStore
    return operations(store(redis.Redis.from_url(url, max_connections=128)))
