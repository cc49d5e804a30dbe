"""The loop that sweeps for as long as its worker runs."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import asdict

from redis_state.errors import BackendError, NoConnection
from redis_state.store import RedisStateStore
from redis_state.worker.observe.stats import WorkerStats
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.queue_history import QueueHistory
from redis_state.worker.recovery.report import SweepReport
from redis_state.worker.recovery.sweeper import Sweeper
from redis_state.worker.tasks.transitions import MAX_CRASHES

log: logging.Logger = logging.getLogger(__name__)

# Delay before the next sweep when the last batch was full.
_NEXT_S = 0.03


async def sweep_regularly(
    store: RedisStateStore,
    *,
    queues: Sequence[str],
    lease_s: float,
    max_crashes: int = MAX_CRASHES,
    stats: WorkerStats | None = None,
    often: bool = False,
    claiming: Queue | None = None,
    archiving: bool = False,
) -> None:
    """Sweep until cancelled. Any trouble with the servers is survived."""
    jobs = Queue(store, name=queues[0])
    history = QueueHistory(store, jobs, picking=often)
    sweeper = Sweeper(
        store,
        jobs,
        lease_ms=round(lease_s * 1000),
        max_crashes=max_crashes,
        queues=queues,
        often=often,
        claiming=claiming,
        history=history,
        archiving=archiving,
    )
    # Each is logged once until a round has gone well: on a cluster those of several nodes.
    failing = set[str]()
    try:
        while True:
            report = SweepReport()
            try:
                report = await sweeper.run_once()
                await history.run_once()
                failing.clear()
            except Exception as error:
                trouble = error.address if isinstance(error, NoConnection) else type(error).__name__
                if trouble not in failing:
                    unknown = None if isinstance(error, BackendError) else error
                    log.warning("sweeping fails, trying again: %s", error, exc_info=unknown)
                failing.add(trouble)
            if stats is not None:
                stats.swept.update(asdict(report))
            pause_s = _NEXT_S if report.looked >= sweeper.full else sweeper.pause_s
            # Workers that began together need not sweep together.
            await asyncio.sleep(pause_s * random.uniform(0.75, 1.25))
    finally:
        await jobs.aclose()
