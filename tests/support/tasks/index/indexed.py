"""Tasks that only the index of tasks knows, as many as one wants."""

from __future__ import annotations

import asyncio
import random

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.scripts import IndexedTask
from redis_state.stores.task_index import TaskIndex, indexed_move
from tests.support.scripts.replies import HOUR

_OLD_US = 1_000_000_000


async def fill(store: RedisStateStore, first: int, behind: int) -> None:
    """List tasks of all statuses, older than real ones. They end in the order of their creation."""
    index = TaskIndex(store.base.scripts, store.base.keys)
    chance = random.Random(7)
    for start in range(first, behind, 500):
        await asyncio.gather(
            *(
                index.put(_made_up(number, chance.choice(list(TaskStatus))))
                for number in range(start, min(start + 500, behind))
            )
        )


def _made_up(number: int, status: TaskStatus) -> IndexedTask:
    us = _OLD_US + number
    move = indexed_move(b"%d" % number, status, version=1, write="w", ttl_ms=HOUR, updated_us=us)
    return move._replace(
        created=us,
        session=f"many-{number % 1000}",
        task=str(number),
        handler="h",
        attributes=[b"n=%d" % (number % 100_000 + 100)],
    )
