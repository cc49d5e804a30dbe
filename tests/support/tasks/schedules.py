"""Schedules as tests need them: due at once, looked at by a runner of this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from redis_state import RedisStateStore
from redis_state.scripts import raw
from redis_state.worker import Schedule
from redis_state.worker.queue.queue import Queue
from redis_state.worker.schedules.runner import ScheduleRunner
from tests.support.processes.pools import SESSION, queue_of
from tests.support.scripts.replies import ask

MINUTE_MS = 60_000


def hourly(schedule_id: str = "s", **options: Any) -> Schedule:
    """Make a schedule with an occurrence each hour, which no test comes by in time."""
    given: dict[str, Any] = {"handler": "who", "session_id": SESSION, "every": timedelta(hours=1)}
    return Schedule(schedule_id=schedule_id, **given | options)


@asynccontextmanager
async def running(store: RedisStateStore) -> AsyncGenerator[ScheduleRunner, None]:
    """Give a runner on the test's queue, which looks when it is told to."""
    queue = Queue(store, name=queue_of(store.settings))
    try:
        yield ScheduleRunner(store, queue)
    finally:
        await queue.aclose()


async def settled_before(
    store: RedisStateStore, schedule_id: str = "s", *, hours: int = 1, ms: int = 0
) -> None:
    """Let a schedule be settled up to so long before it is, and due for a look."""
    by_ms = hours * 60 * MINUTE_MS + ms
    await ask(store.base.scripts, "HINCRBY", store.base.keys.schedule(schedule_id), "after", -by_ms)
    await look_now(store, schedule_id)


async def look_now(store: RedisStateStore, schedule_id: str = "s") -> None:
    """Let a schedule be due for a look."""
    due = store.base.keys.schedules_due()
    await ask(store.base.scripts, "ZADD", due, 1, raw(schedule_id))


async def looked_at_in_ms(store: RedisStateStore, now_ms: int, schedule_id: str = "s") -> float:
    """Tell in how many ms a schedule is looked at."""
    due = store.base.keys.schedules_due()
    return float(await ask(store.base.scripts, "ZSCORE", due, raw(schedule_id))) - now_ms
