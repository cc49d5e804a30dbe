"""Find the tasks that ended before anything was archived, by the index of tasks."""

from __future__ import annotations

import asyncio

from redis_state.archive.waiting import ArchiveList
from redis_state.store import RedisStateStore
from redis_state.stores.index_walk import walk_index
from redis_state.transport.keys import WATCH_SHARDS

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
    waiting, scripts, found = ArchiveList(store), store.base.scripts, 0
    keys = store.base.keys.task_index(shard)
    async for page in walk_index(scripts, keys, statuses=_ENDED):
        if again:
            records = [store.tasks.keys(each.session_id, each.task_id).task for each in page]
            await asyncio.gather(*(scripts.hdel(key, "archived") for key in records))
        await asyncio.gather(*(waiting.enlist(each.session_id, each.task_id) for each in page))
        found += len(page)
    return found
