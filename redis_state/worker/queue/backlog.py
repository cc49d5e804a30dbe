"""What waits in a queue, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from redis_state.scripts import Scripts
from redis_state.store import RedisStateStore
from redis_state.transport.key_groups import QueueKeys
from redis_state.worker.queue.job import seniority_ms, task_of

# Among so many of the first jobs the one that is due for longest is looked for.
_OLDEST_OF = 32


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many jobs are due in a queue, are put off, are claimed; its limits as they are kept.

    ``oldest_s`` is for how long the oldest of the first 32 without a key has been due.
    """

    waiting: int
    later: int
    claimed: int
    oldest_s: float
    settings: list[bytes]


async def read_backlog(store: RedisStateStore, scripts: Scripts, keys: QueueKeys) -> Backlog:
    """Return what waits in a queue. Errors: BackendUnavailable."""
    reply = await scripts.look_queue(keys, most=_OLDEST_OF)
    now, waiting, later, claimed, settings, first = reply.facts
    oldest_s = await _oldest_s(store, int(now), first)
    return Backlog(waiting, later, claimed, oldest_s, settings)


async def _oldest_s(store: RedisStateStore, now_ms: int, first: Sequence[bytes]) -> float:
    """Return how long the oldest of some jobs has been due, without what its priority adds."""
    tasks: list[tuple[str, str]] = []
    places: list[float] = []
    for job_id, place in zip(first[::2], first[1::2], strict=True):
        with suppress(ValueError):
            if (named := task_of(job_id)) is not None:
                tasks.append((named.session_id, named.task_id))
                places.append(float(place))
    keys, commands = store.base.keys, store.transport.commands
    found = await asyncio.gather(*(commands.hget(keys.task(*task), "priority") for task in tasks))
    ages_ms = (
        now_ms - place - seniority_ms(int(priority or 0))
        for place, priority in zip(places, found, strict=True)
    )
    return max([0.0, *ages_ms]) / 1000
