"""Find the tasks that ended before anything was archived, by the index of tasks."""

from __future__ import annotations

import asyncio

from redis_state.archive.waiting import ArchiveList
from redis_state.store import RedisStateStore
from redis_state.transport.keys import WATCH_SHARDS

_PAGE = 200
_ENDED = "cfx"


async def backfill(store: RedisStateStore, *, again: bool = False) -> int:
    """Put all ended tasks that the index lists on the archive's list; return their number.

    Those that are archived are taken off it when they are looked at. With ``again`` their marks are
    removed first: an archive that went back to an earlier state may lack them. It may be repeated,
    also after a crash, and while a pool works.
    """
    shards = (_shard(store, shard, again=again) for shard in range(WATCH_SHARDS))
    return sum(await asyncio.gather(*shards))


async def _shard(store: RedisStateStore, shard: int, *, again: bool) -> int:
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
        named = [(_text(s), _text(t)) for s, t in zip(listed[2::5], listed[3::5], strict=True)]
        if again:
            records = [store.tasks.keys(*task).task for task in named]
            await asyncio.gather(*(store.base.scripts.hdel(key, "archived") for key in records))
        await asyncio.gather(*(waiting.enlist(*task) for task in named))
        found += len(named)
        if not more:
            return found
        low = b"(" + last


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")
