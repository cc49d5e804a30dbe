"""Handlers of tasks under test, and what one waits for while they run."""

from __future__ import annotations

import asyncio
from typing import NoReturn

from redis_state import RedisStateStore
from redis_state.worker import TaskContext
from tests.support.processes.pools import (
    queued,
    updates_of,
    watched,
)

# A finished task leaves the watch list after its lease.
SOON_S = 3.0


async def forever(ctx: TaskContext) -> NoReturn:
    """Publish progress, and then run until cancelled."""
    await ctx.progress("begun")
    await asyncio.Event().wait()
    raise AssertionError


async def is_idle(store: RedisStateStore) -> bool:
    """Return whether the queue and the watch list are empty."""
    return not await queued(store) and not await watched(store)


async def answer(_: TaskContext) -> int:
    """Return 42 at once."""
    return 42


async def has_begun(store: RedisStateStore, task: str) -> bool:
    """Return whether a task has published progress."""
    return any(update.update_type.value == "PROGRESS" for update in await updates_of(store, task))


async def is_off_queue(store: RedisStateStore) -> bool:
    """Return whether the queue is empty."""
    return not await queued(store)


async def forget_watched(store: RedisStateStore) -> None:
    """Remove every entry of the watch list, as a server that lost it."""
    for shard in range(16):
        key = store.base.keys.watch(shard)
        await store.transport.sender.send("DEL", key, repeatable=True)
