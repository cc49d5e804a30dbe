"""The store with a loop that is kept awake for the reply to a lone call."""

from __future__ import annotations

from benchmarks.measure import Operation
from benchmarks.peers.ours import operations
from redis_state import RedisStateStore


async def prepare(url: str) -> dict[str, Operation]:
    """Give the operations on a store of its own namespace."""
    return operations(RedisStateStore.from_url(url, namespace="busy", busy_poll_us=100))
