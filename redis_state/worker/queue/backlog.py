"""What waits in a queue, for how long, and under which keys."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis_state.scripts import Scripts
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import IN_TURN
from redis_state.transport.key_groups import QueueKeys
from redis_state.transport.key_text import unescape
from redis_state.worker.observe.stats import QueueCounts
from redis_state.worker.queue.jobs.job import seniority_ms, task_of
from redis_state.worker.queue.limits import BACKFILL, OTHER_KEY

# The job that is due for longest is looked for among so many of the first jobs, and among as many
# of the first jobs of so many keys.
_OLDEST_OF = 32
_KEYS = 256


@dataclass(frozen=True, slots=True)
class Backlog(QueueCounts):
    """What is in a queue, and its limits as they are kept.

    The oldest job is looked for among the first 32 without a key, and the first ones of 256 keys.
    """

    settings: list[bytes]

    @property
    def tasks(self) -> int:
        """How many tasks the queue has."""
        return self.waiting + self.later + self.claimed


@dataclass(frozen=True, slots=True)
class QueueKeyInfo:
    """A key of a queue: how many of its tasks wait and run.

    Tasks that run in turn have their session as ``in_turn``, others their ``limit_key``; the
    other of both is None. Tasks with both wait under their session, and run under both. Those of a
    backfill that run one at a time have the ``limit_key`` ``backfill:<schedule_id>``, and no limit
    is for it. ``oldest_s`` is how long the next of them has been due, 0 if none waits. What is put
    off, or waits for a version of its handler, is not counted.
    """

    limit_key: str | None
    in_turn: str | None
    waiting: int
    running: int
    oldest_s: float


async def read_backlog(
    store: RedisStateStore, scripts: Scripts, keys: QueueKeys, *, ages: bool
) -> Backlog:
    """Return what waits in a queue. Errors: BackendUnavailable.

    Without ``ages`` it is far cheaper, and ``oldest_s`` is 0.
    """
    most, most_keys = (_OLDEST_OF, _KEYS) if ages else (0, 0)
    reply = await scripts.look_queue(keys, most=most, most_keys=most_keys)
    now, waiting, later, claimed, settings, first = reply.facts
    age_s = await oldest_s(store, int(now), first)
    return Backlog(waiting, later, claimed, age_s, settings)


async def oldest_s(store: RedisStateStore, now_ms: int, first: Sequence[bytes]) -> float:
    """Return how long the oldest of some jobs has been due, without what its priority adds.

    ``first`` has their ids and places in turn. Errors: BackendUnavailable.
    """
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


async def list_keys(
    store: RedisStateStore, scripts: Scripts, keys: QueueKeys, *, limit: int
) -> list[QueueKeyInfo]:
    """List the keys with the most waiting tasks, then with the most running ones.

    It reads every key of the queue, 256 at a time. Errors: BackendUnavailable.
    """
    found: dict[bytes, tuple[int, list[Any]]] = {}
    # A key whose tasks all run is only in the second list.
    for listed in (keys.keyed, keys.holders):
        last: bytes | None = b""
        while last is not None:
            reply = await scripts.look_keys(listed, keys, after=last, most=_KEYS)
            now, last, *facts = reply.facts
            for at in range(0, len(facts), 5):
                found[facts[at]] = int(now), facts[at + 1 : at + 5]
            last = last or None
    most = sorted(found.items(), key=lambda item: (-item[1][1][0], -item[1][1][1], item[0]))
    chosen = most[:limit]
    return await asyncio.gather(*(_info(store, key, *read) for key, read in chosen))


async def _info(
    store: RedisStateStore, key: bytes, now_ms: int, facts: Sequence[Any]
) -> QueueKeyInfo:
    waiting, running, *first = facts
    kind, name = key.decode()[: len(OTHER_KEY)], unescape(key.decode()[len(OTHER_KEY) :])
    return QueueKeyInfo(
        limit_key=name if kind == OTHER_KEY else f"backfill:{name}" if kind == BACKFILL else None,
        in_turn=name if kind == IN_TURN else None,
        waiting=waiting,
        running=running,
        oldest_s=await oldest_s(store, now_ms, first) if waiting else 0.0,
    )
