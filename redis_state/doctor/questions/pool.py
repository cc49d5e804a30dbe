"""The questions to the pool: its queue, the versions it serves, sweepers, schedules."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from redis_state.doctor.finding import Finding, Found, Verdict, answered
from redis_state.errors import ConfigError
from redis_state.primitives.watchlist.watchlist import Band, WatchList
from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.transport.clock import ms_of

if TYPE_CHECKING:
    from redis_state.worker.queue.queue import Queue

_LONG_WAIT_S = 600.0
# Workers look at schedules once a second.
_OVERDUE_S = 60.0
# They sweep as often. What is only checked, and what has ended, may wait behind repairs.
_LATE_S = {Band.REPAIR: 60.0, Band.CHECK: 600.0, Band.ENDED: 600.0}
_LATE = {
    Band.REPAIR: ("may need a repair", "what dead workers ran is not taken over in time"),
    Band.CHECK: ("is only checked", "the job of a task that a queue has lost is missing for long"),
    Band.ENDED: ("has ended", "the watch list grows"),
}


def queue_settings(settings: Settings) -> Settings | None:
    """Return the settings of the queue's own server, if it has one. Errors: ConfigError."""
    try:
        from redis_state.worker.queue.server import queue_server  # noqa: PLC0415 - needs the extra
    except ImportError:
        return None
    return queue_server(settings)


@asynccontextmanager
async def pool_queue(store: RedisStateStore) -> AsyncGenerator[Queue | None]:
    """Open the pool's queue; None without the extra, and for a store that has no pool."""
    try:
        from redis_state.worker.queue.queue import Queue  # noqa: PLC0415 - needs the extra

        queue = Queue(store)
    except (ImportError, ConfigError):  # the second for a server of one store's own
        yield None
        return
    try:
        yield queue
    finally:
        await queue.aclose()


async def queue_findings(store: RedisStateStore) -> Found:
    """Compare what is in each queue with the workers that take its tasks. Errors: NoConnection."""
    async with pool_queue(store) as queue:
        if queue is not None:
            async for each in answered(queue.name, "queue", _queues(store, queue)):
                yield each


async def _queues(store: RedisStateStore, queue: Queue) -> Found:
    from redis_state.worker.queue.control import Queues  # noqa: PLC0415 - needs the extra

    for info in await Queues(store, queue).list():
        says = f"{info.waiting} tasks wait, {info.workers} workers take them"
        if info.waiting and not info.workers:
            do = "start `redis-state worker`; look whether it uses this address and namespace"
            yield Finding(info.name, "queue", Verdict.FINDING, says, "nobody runs these tasks", do)
        elif info.waiting and info.oldest_s > _LONG_WAIT_S:
            says = f"{says}; the first since {info.oldest_s / 60:.0f} minutes"
            means, do = "the pool is too small", "add workers, or raise max_tasks or a limit"
            if info.paused:
                means, do = "the queue is paused", "redis-state queues resume, with its name"
            yield Finding(info.name, "queue", Verdict.FINDING, says, means, do)
        else:
            yield Finding(info.name, "queue", Verdict.SOUND, says)


async def version_findings(store: RedisStateStore) -> Found:
    """Ask whether tasks wait for a version of their handler that no worker serves.

    Errors: NoConnection.
    """
    async with pool_queue(store) as queue:
        if queue is not None:
            async for each in answered(queue.name, "versions", _versions(store, queue)):
                yield each


async def _versions(store: RedisStateStore, queue: Queue) -> Found:
    from redis_state.worker.client.unserved import list_unserved  # noqa: PLC0415 - as above

    for one in await list_unserved(store, queue, limit=0):
        if not one.workers:
            version = "" if one.version is None else f"version {one.version!r} of "
            says = f"{one.waiting} tasks wait for {version}handler {one.handler!r}"
            means, do = "no live worker of the queue has it", "start a worker that has it"
            yield Finding(one.queue, "versions", Verdict.FINDING, says, means, do)


async def sweep_findings(store: RedisStateStore) -> Found:
    """Ask whether sweepers inspect in time what is due, if there is any. Errors: NoConnection."""
    place = str(store.transport.address)
    async for each in answered(place, "sweeping", _sweeping(store, place)):
        yield each


async def _sweeping(store: RedisStateStore, place: str) -> Found:
    overdue = await WatchList(store.base.scripts, store.base.keys).overdue_by_band()
    late = [band for band in overdue if overdue[band] > _LATE_S[band]]
    for band in late:
        what, means = _LATE[band]
        says = f"a task that {what} has been due for {overdue[band] / 60:.0f} minutes"
        do = "look whether workers run, and for `sweeping fails` in their logs; or add workers"
        yield Finding(place, "sweeping", Verdict.FINDING, says, means, do)
    if overdue and not late:
        yield Finding(place, "sweeping", Verdict.SOUND, "workers inspect all tasks that are due")


async def schedule_findings(store: RedisStateStore) -> Found:
    """Ask whether a worker looks at the schedules that are due, if there are any.

    Errors: NoConnection.
    """
    place = str(store.transport.address)
    async for each in answered(place, "schedules", _schedules(store, place)):
        yield each


async def _schedules(store: RedisStateStore, place: str) -> Found:
    commands, due = store.transport.commands, store.base.keys.schedules_due()
    first: list[bytes] = await commands.zrange_scored(due, 0, 0)
    now_ms = ms_of(await commands.time())
    if not first:
        return
    overdue_s = (now_ms - float(first[1])) / 1000
    if overdue_s > _OVERDUE_S:
        says = f"one has been due for {overdue_s / 60:.0f} minutes"
        means, do = "nobody submits their tasks", "start a worker that has schedules switched on"
        yield Finding(place, "schedules", Verdict.FINDING, says, means, do)
    else:
        yield Finding(place, "schedules", Verdict.SOUND, "workers look at all that are due")
