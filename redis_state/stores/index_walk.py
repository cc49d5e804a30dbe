"""Walk over what the index of tasks lists, to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

from redis_state.scripts import Scripts
from redis_state.stores.base import Base
from redis_state.transport.key_groups import TaskIndexKeys
from redis_state.transport.keys import WATCH_SHARDS

_PAGE = 200
_ALL = "prwcfx"


class IndexedName(NamedTuple):
    """A task that the index lists, and what it knows of it."""

    session_id: str
    task_id: str
    stamp: str


async def listed_under(base: Base, kind: str, value: bytes) -> list[IndexedName]:
    """Return the tasks that are listed under a value: ``s`` a session's, ``a`` an attribute's."""

    async def of_shard(shard: int) -> list[IndexedName]:
        pages = walk_index(base.scripts, base.keys.task_index(shard), kind=kind, value=value)
        return [each async for page in pages for each in page]

    found = await asyncio.gather(*map(of_shard, range(WATCH_SHARDS)))
    return [each for some in found for each in some]


async def walk_index(
    scripts: Scripts,
    keys: TaskIndexKeys,
    *,
    kind: str = "*",
    value: bytes = b"",
    statuses: str = _ALL,
) -> AsyncGenerator[list[IndexedName]]:
    """Yield the tasks of one shard, a page at a time, the oldest first.

    What is listed meanwhile may be left out. ``statuses`` are letters of `task_index.LETTERS`.
    """
    low = b"["
    while True:
        reply = await scripts.find_tasks(
            keys,
            kind=kind,
            value=value,
            statuses=statuses,
            newest=False,
            low=low,
            high=b"(\xff",
            size=_PAGE,
            most=_PAGE,
            wanted=(),
        )
        more, last, *listed = reply.facts
        named = zip(listed[2::5], listed[3::5], listed[1::5], strict=True)
        yield [IndexedName(*map(_text, each)) for each in named]
        if not more:
            return
        low = b"(" + last


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")
