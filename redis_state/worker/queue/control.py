"""Queues for who operates them: what waits, what runs; pause, resume, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from redis_state.errors import InvalidField
from redis_state.worker.observe.registry import WorkerRegistry
from redis_state.worker.queue.limits import (
    KEEP,
    Keep,
    QueueInfo,
    Rate,
    named_key,
    read_limits,
    settings_of,
)
from redis_state.worker.queue.queue import DEFAULT_QUEUE, Queue


class Queues:
    """The queues of a namespace. Every change holds for all workers at once, and is safe to repeat.

    What runs is not stopped by a limit or a pause: no more is begun. The promise is exact: no two
    workers ever begin one task too many, and what a dead worker held is free again with its lease.
    arq's own runner knows no limits.
    """

    def __init__(self, queue: Queue, registry: WorkerRegistry) -> None:
        self._queue = queue
        self._registry = registry

    async def get(self, name: str) -> QueueInfo:
        """Return what waits in a queue, what runs, and its limits. An unknown one is empty."""
        found = await self._queue.backlog(_checked(name))
        return QueueInfo(
            name,
            found.waiting,
            found.later,
            found.claimed,
            found.oldest_s,
            **read_limits(found.settings),
        )

    async def list(self) -> Sequence[QueueInfo]:
        """List the queues that live workers serve, and the default one."""
        served = {name for info in await self._registry.list() for name in info.queues}
        names = sorted(served | {DEFAULT_QUEUE, self._queue.name})
        return await asyncio.gather(*map(self.get, names))

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
        key: str,
        *,
        running: int | Keep | None = KEEP,
        rate: Rate | Keep | None = KEEP,
    ) -> None:
        """Set what holds for one key in place of the queue's limits. Errors: InvalidField."""
        its = named_key(key)
        names = (f"limit:{its}", "", f"rate:{its}")
        await self._set(name, settings_of(running=running, per_key=KEEP, rate=rate, names=names))

    async def _set(self, name: str, settings: dict[str, bytes]) -> None:
        if settings:
            await self._queue.scripts.set_flow(self._queue.keys(_checked(name)), settings)


def _checked(name: str) -> str:
    if name == "":
        raise InvalidField("queue", "needs a name")
    return name
