"""What a worker does for the audit events in PostgreSQL: it counts what PostgreSQL does not have
yet, and removes what is too old.
"""

from __future__ import annotations

import asyncio

from redis_state.store import RedisStateStore
from redis_state.stores.durable_events.waiting import EventList
from redis_state.worker.observe.stats import SHOWN_PERIODS, WorkerStats

_COUNT_EVERY_S = 15.0
_SHOWN_S = SHOWN_PERIODS * _COUNT_EVERY_S
_RETAIN_EVERY_S = 3600.0


async def count_events_regularly(store: RedisStateStore, stats: WorkerStats) -> None:
    """Count what waits, until cancelled; the store moves what is due. Errors: BackendError."""
    store.events.begin()
    waiting = EventList(store.base)
    while True:
        backlog = await waiting.backlog()
        stats.event_backlog.put((backlog.traces, backlog.oldest_s), for_s=_SHOWN_S)
        await asyncio.sleep(_COUNT_EVERY_S)


async def retain_events_regularly(store: RedisStateStore) -> None:
    """Remove what is older than `durable_events_retention`, until cancelled. Errors: BackendError.

    Each worker does: what another one has removed costs a look at an index.
    """
    while True:
        await store.events.retain()
        await asyncio.sleep(_RETAIN_EVERY_S)
