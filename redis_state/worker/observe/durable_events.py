"""What a worker knows of the audit events that PostgreSQL does not have yet."""

from __future__ import annotations

import asyncio

from redis_state.store import RedisStateStore
from redis_state.stores.durable_events.waiting import EventList
from redis_state.worker.observe.stats import WorkerStats

_COUNT_EVERY_S = 15.0


async def count_events_regularly(store: RedisStateStore, stats: WorkerStats) -> None:
    """Count what waits, until cancelled; the store moves what is due. Errors: BackendError."""
    store.events.begin()
    waiting = EventList(store.base)
    while True:
        backlog = await waiting.backlog()
        stats.event_backlog = backlog.traces, backlog.oldest_s
        await asyncio.sleep(_COUNT_EVERY_S)
