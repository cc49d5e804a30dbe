"""What the index of tasks says of sessions and of attributes, to its end."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from redis_state.store import RedisStateStore
from redis_state.transport.keys import WATCH_SHARDS

_PAGE = 200
_ALL = "prwcfx"


class IndexedName(NamedTuple):
    """A task that the index lists, and what it knows of it."""

    session_id: str
    task_id: str
    stamp: str


async def listed_under(store: RedisStateStore, kind: str, value: bytes) -> list[IndexedName]:
    """Return the tasks that are listed under a value: ``s`` a session's, ``a`` an attribute's."""
    shards = (_shard(store, shard, kind, value) for shard in range(WATCH_SHARDS))
    return [each for found in await asyncio.gather(*shards) for each in found]


async def _shard(store: RedisStateStore, shard: int, kind: str, value: bytes) -> list[IndexedName]:
    keys, low, found = store.base.keys.task_index(shard), b"[", list[IndexedName]()
    while True:
        reply = await store.base.scripts.find_tasks(
            keys,
            kind=kind,
            value=value,
            statuses=_ALL,
            newest=False,
            low=low,
            high=b"(\xff",
            size=_PAGE,
            most=_PAGE,
            wanted=(),
        )
        more, last, *listed = reply.facts
        named = zip(listed[2::5], listed[3::5], listed[1::5], strict=True)
        found += [IndexedName(*map(_text, each)) for each in named]
        if not more:
            return found
        low = b"(" + last


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")
