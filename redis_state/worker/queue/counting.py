"""What a worker knows of all queues of its namespace, also of those that no worker serves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from time import monotonic

from redis_state.store import RedisStateStore
from redis_state.worker.observe.registry import WorkerRegistry, count_serving
from redis_state.worker.observe.stats import SHOWN_PERIODS, WorkerStats
from redis_state.worker.queue.control import read_backlogs
from redis_state.worker.queue.queue import Queue

_COUNT_EVERY_S = 30.0
_SHOWN_S = SHOWN_PERIODS * _COUNT_EVERY_S
# Each is a label. Beside those that the worker serves, those with the most tasks are counted.
_MOST = 200


async def count_queues_regularly(
    store: RedisStateStore, queue: Queue, stats: WorkerStats, serves: Sequence[str]
) -> None:
    """Count what is in the queues, and their workers, until cancelled. Errors: BackendError."""
    registry = WorkerRegistry(store)
    while True:
        began_s = monotonic()
        workers = await registry.list()
        serving = count_serving(workers)
        found = await read_backlogs(queue, serves, most=_MOST)
        # Workers that started together do not count together. However many queues there are, a
        # worker counts for a tenth of the time at most. All of a pool list it ten times a second.
        rest_s = _COUNT_EVERY_S * random.uniform(0.5, 1.0)
        rest_s = max(rest_s, 0.1 * len(workers), 9 * (monotonic() - began_s))
        shown_s = max(_SHOWN_S, SHOWN_PERIODS * rest_s)
        stats.queues.put(found, for_s=shown_s)
        # By workers without metrics too: their queues are served.
        stats.queue_workers.put({name: serving[name] for name in found}, for_s=shown_s)
        await asyncio.sleep(rest_s)
