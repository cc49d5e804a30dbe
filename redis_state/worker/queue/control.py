"""Queues for who operates them: what waits, what runs; pause, resume, limits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

from redis_state import limits
from redis_state.store import RedisStateStore
from redis_state.worker.observe.registry import WorkerRegistry, count_serving
from redis_state.worker.queue.access import DEFAULT_QUEUE
from redis_state.worker.queue.backlog import Backlog, QueueKeyInfo, list_keys
from redis_state.worker.queue.limits import (
    KEEP,
    Keep,
    QueueInfo,
    Rate,
    named_key,
    read_limits,
    settings_of,
)
from redis_state.worker.queue.queue import Queue

# Queues that are read at once.
_AT_ONCE = 16


class Queues:
    """The queues of a namespace. Every change holds for all workers at once, and is safe to repeat.

    What runs is not stopped by a limit or a pause: no more is begun. The promise is exact: no two
    workers ever begin one task too many, and what a dead worker held is free again with its lease.
    arq's own runner knows no limits.
    """

    def __init__(self, store: RedisStateStore, queue: Queue) -> None:
        self._store = store
        self._queue = queue
        self._registry = WorkerRegistry(store)

    async def get(self, name: str) -> QueueInfo:
        """Return what waits in a queue, what runs, and its limits. An unknown one is empty."""
        found, serving = await asyncio.gather(self._queue.backlog(_checked(name)), self._serving())
        return self._info(name, found, serving)

    async def list(self) -> Sequence[QueueInfo]:
        """List the queues that live workers serve, the default one, and all that have tasks."""
        serving = await self._serving()
        found = await read_backlogs(self._queue, {*serving, DEFAULT_QUEUE, self._queue.name})
        return [self._info(*each, serving) for each in sorted(found.items())]

    async def keys(self, name: str, *, limit: int = 100) -> Sequence[QueueKeyInfo]:
        """List who waits in a queue and who runs, by key: those with the most waiting tasks first.

        It reads every key of the queue. Errors: InvalidField.
        """
        keys, most = self._queue.keys(_checked(name)), limits.count("limit", limit)
        return await list_keys(self._store, self._queue.scripts, keys, limit=most)

    async def pause(self, name: str) -> None:
        """Begin no more tasks of a queue, until `resume`."""
        await self._set(name, {"paused": b"1"})

    async def resume(self, name: str) -> None:
        """Begin tasks of a queue again."""
        await self._set(name, {"paused": b""})

    async def limit(
        self,
        name: str,
        *,
        running: int | Keep | None = KEEP,
        per_key: int | Keep | None = KEEP,
        rate: Rate | Keep | None = KEEP,
    ) -> None:
        """Set how many tasks of a queue run, how many of one key, and how often those may start.

        None takes a limit away; what is not given stays. Keys take turns, so none starves.
        Errors: InvalidField.
        """
        await self._set(name, settings_of(running=running, per_key=per_key, rate=rate))

    async def limit_key(
        self,
        name: str,
        limit_key: str,
        *,
        running: int | Keep | None = KEEP,
        rate: Rate | Keep | None = KEEP,
    ) -> None:
        """Set what holds for one key in place of the queue's limits. Errors: InvalidField."""
        its = named_key(limit_key)
        names = (f"limit:{its}", "", f"rate:{its}")
        await self._set(name, settings_of(running=running, per_key=KEEP, rate=rate, names=names))

    async def _serving(self) -> Counter[str]:
        return count_serving(await self._registry.list())

    def _info(self, name: str, found: Backlog, serving: Counter[str]) -> QueueInfo:
        return QueueInfo(
            name,
            found.waiting,
            found.later,
            found.claimed,
            found.oldest_s,
            serving[name],
            **read_limits(found.settings),
        )

    async def _set(self, name: str, settings: dict[str, bytes]) -> None:
        if settings:
            await self._queue.scripts.set_flow(self._queue.keys(_checked(name)), settings)


async def read_backlogs(
    queue: Queue, always: Iterable[str], *, most: int | None = None
) -> dict[str, Backlog]:
    """Read what is in these queues and in the ``most`` others with the most tasks, or all others.

    Errors: BackendError.
    """
    asked = set(always)
    names = sorted(asked | await queue.names.list())
    found = await _read(queue, names, ages=False)
    others = [name for name in names if name not in asked and found[name].tasks]
    others.sort(key=lambda name: found[name].tasks, reverse=True)
    kept = {name: found[name] for name in [*asked, *others[:most]]}
    # An age costs far more than a count, and only what waits has one.
    waiting = [name for name, backlog in kept.items() if backlog.waiting]
    return kept | await _read(queue, waiting, ages=True)


async def _read(queue: Queue, names: Sequence[str], *, ages: bool) -> dict[str, Backlog]:
    """Read what is in some queues, a few of them at once: what else the server does comes first."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def read(name: str) -> Backlog:
        async with gate:
            return await queue.backlog(name, ages=ages)

    return dict(zip(names, await asyncio.gather(*map(read, names)), strict=True))


def _checked(name: str) -> str:
    return limits.name("queue", name)
