"""Find the tasks that ended before anything was archived, by the index of tasks."""

from __future__ import annotations

import asyncio

from redis_state.archive.waiting import ArchiveList
from redis_state.store import RedisStateStore
from redis_state.transport.keys import WATCH_SHARDS

_PAGE = 200
_ENDED = "cfx"


async def backfill(store: RedisStateStore) -> int:
    """Put all ended tasks that the index lists on the archive's list; return their number.

    Those that are archived are taken off it when they are looked at. It may be repeated, also after
    a crash, and while a pool works.
    """
    return sum(await asyncio.gather(*(_shard(store, shard) for shard in range(WATCH_SHARDS))))


async def _shard(store: RedisStateStore, shard: int) -> int:
    waiting, keys = ArchiveList(store), store.base.keys.task_index(shard)
    low, found = b"[", 0
    while True:
        reply = await store.base.scripts.find_tasks(
            keys,
            kind="*",
            value=b"",
            statuses=_ENDED,
            newest=False,
            low=low,
            high=b"(\xff",
            size=_PAGE,
            most=_PAGE,
            wanted=(),
        )
        more, last, *listed = reply.facts
        named = list(zip(listed[2::5], listed[3::5], strict=True))
        await asyncio.gather(*(waiting.enlist(_text(s), _text(t)) for s, t in named))
        found += len(named)
        if not more:
            return found
        low = b"(" + last


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")
