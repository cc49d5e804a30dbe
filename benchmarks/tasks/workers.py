"""Several worker processes: what they get done together, against one."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import ExitStack

from benchmarks.driver import Contender
from benchmarks.report import Row, row
from benchmarks.runner import Run
from benchmarks.tasks.pool import NAMESPACE
from benchmarks.tasks.throughput import start_engine
from redis_state import RedisStateStore
from redis_state.worker.queue.queue import Queue

_MANY = 4
_DEADLINE_S = 60.0


def measure_workers(run: Run) -> list[Row]:
    """Measure one worker and four in turn, over the time in which all of them have work."""
    count = 3000 if run.quick else 8000
    found: dict[int, list[float]] = {1: [], _MANY: []}
    with ExitStack() as stack:
        engines = [
            stack.enter_context(start_engine("ours", run.server.url)) for _ in range(_MANY + 1)
        ]
        for number in range(1 if run.quick else 3):
            run.tell(f"{_MANY} workers, repeat {number + 1}")
            for workers, rates in found.items():
                engines[0].ask({"do": "submit", "handler": "noop", "count": count})
                rates.append(_rate(run, engines[1 : workers + 1]))
                run.server.flush()
    cores = os.cpu_count() or 1
    pairs = zip(found[_MANY], found[1], strict=True)
    shared = statistics.median(many / one for many, one in pairs)
    measure = f"no-op tasks, {_MANY} worker processes, {cores} cores"
    enough = cores > _MANY
    note = "" if enough else f"{_MANY} workers and the server share {cores} cores: not judged"
    value = statistics.median(found[_MANY])
    bar = (3.0, 3.6) if enough else None
    return [row(measure, value, "tasks/s", peer="1 process", ratio=shared, bar=bar, note=note)]


def _rate(run: Run, engines: list[Contender]) -> float:
    for engine in engines:
        engine.ask({"do": "serve"})
    asyncio.run(_until_done(run))
    times: list[list[float]] = [engine.ask({"do": "stop"})["times"] for engine in engines]
    if not all(times):
        raise RuntimeError("a worker got no task")
    begin, end = max(each[0] for each in times), min(each[-1] for each in times)
    if end <= begin:
        raise RuntimeError("the workers did not work at the same time")
    return sum(begin <= at < end for each in times for at in each) / (end - begin)


async def _until_done(run: Run) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    async with RedisStateStore.from_url(run.server.url, namespace=NAMESPACE) as store:
        queue = Queue(store)
        while True:
            backlog = await queue.backlog()
            if not backlog.waiting and not backlog.claimed:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{backlog.waiting} tasks wait after {_DEADLINE_S:g} s")
            await asyncio.sleep(0.02)
