"""The figures of an empty store beside those of one that is full of tasks.

The tasks of a full store wait since yesterday, and are in the index and on the watch list as their
pool has left them: each is inspected within the hour. A smaller store than the promised one has
them inspected in a shorter time, so that as many are due in a second.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import statistics
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.driver import Contender
from benchmarks.measure import percentile
from benchmarks.report import Row, row
from benchmarks.runner import Run
from benchmarks.server import BenchServer
from benchmarks.tasks.paused import delays
from benchmarks.tasks.planting import SESSION, TASK, Template, plant, sample
from benchmarks.tasks.pool import NAMESPACE, reviewed
from benchmarks.tasks.process import CALLERS
from benchmarks.tasks.takeover import kill_workers
from benchmarks.tasks.throughput import Drained, drain_once, ratio, start_engine
from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus
from redis_state.primitives.watchlist.watchlist import check_after
from redis_state.scripts import IndexedTask
from redis_state.settings import make_settings
from redis_state.stores.task_index import TaskIndex, indexed_record
from redis_state.transport.keys import WATCH_SHARDS, Keys
from redis_state.worker import AgentWorker, TaskClient
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.queue_history import QueueHistory
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.waitpoints.open_pauses import list_open_pauses

SIZE = "REDIS_STATE_BENCH_PLANTED"
_QUICK, _FULL = 20_000, 1_000_000
_BYTES_EACH = 12_000
_AT_A_TIME = 5_000
_DEADLINE_S = 20.0
_QUEUED = "queue"
# A sweeper inspects every task that waits for long once in this time.
_WATCHED_WITHIN_MS = 3_600_000
# How old the tasks are.
_AGE_US = 86_400_000_000


def measure_full_store(run: Run) -> list[Row]:
    """Measure no-op tasks and appends on two servers in turn, one of them full."""
    paused = int(os.environ.get(SIZE, _QUICK if run.quick else _FULL))
    paused = min(paused, _memory() // 2 // _BYTES_EACH)
    queued = paused // 10
    with ExitStack() as stack:
        full = stack.enter_context(BenchServer())
        began = time.monotonic()
        asyncio.run(_fill(full, paused, queued))
        took = time.monotonic() - began
        run.tell(f"{paused:,} paused and {queued:,} queued tasks planted in {took:.0f} s")
        found: dict[str, Drained] = {}
        stepped: dict[str, Drained] = {}
        appends: dict[str, list[float]] = {}
        ends: dict[str, tuple[Contender, Contender]] = {}
        for name, server in (("empty", run.server), ("full", full)):
            ends[name] = (
                stack.enter_context(start_engine("ours", server.url)),
                stack.enter_context(Contender("ours", server.url)),
            )
        for number in range(3):
            run.tell(f"a full store, repeat {number + 1}")
            for name, (engine, appending) in ends.items():
                done = appending.measure("append", callers=CALLERS, seconds=run.seconds)
                appends.setdefault(name, []).append(done.rate)
                drained = found.setdefault(name, Drained())
                drain_once(engine, "noop", drained, quick=run.quick)
                drain_once(engine, "steps5", stepped.setdefault(name, Drained()), quick=run.quick)
        size = full.memory()
        # Nobody swept between the repeats: without this the pool would make up for that first.
        _postpone(full, paused)
        pool = _pool(run, full)
    there = f"{paused:,} paused, {queued:,} queued"
    note = f"{size / 2**30:.1f} GiB"
    costs = {name: each.cpu_ms for name, each in found.items()}
    steps = {name: each.cpu_ms for name, each in stepped.items()}
    slower = {name: _inverse(each.rates) for name, each in found.items()}
    submits = {name: _inverse(each.submits) for name, each in found.items()}
    waits = {name: _inverse(rates) for name, rates in appends.items()}
    return [
        _row(f"no-op task, worker CPU; {there}", costs, "ms", note),
        _row(f"5-step task, worker CPU; {there}", steps, "ms"),
        _row(f"no-op tasks, ms for each; {there}", slower, "ms"),
        _row(f"submit, ms for each; {there}", submits, "ms"),
        _row(f"append, ms for each; {there}", waits, "ms"),
        *(_row(f"{measure}; {there}", figures, unit) for measure, unit, figures in pool),
    ]


def _pool(run: Run, full: BenchServer) -> list[tuple[str, str, dict[str, list[float]]]]:
    """Measure the delays and the takeovers of a pool on both servers."""
    waits: dict[str, dict[str, list[float]]] = {}
    taken_over: dict[str, list[float]] = {}
    for name, server in (("empty", run.server), ("full", full)):
        run.tell(f"delays and takeovers, the {name} store")
        for measure, took in delays(server, 20 if run.quick else 50).items():
            waits.setdefault(measure, {})[name] = [percentile(took, 0.5)]
        taken_over[name] = [kill_workers(server, 3 if run.quick else 10)[0][-1]]
    measured = [(f"{measure}, p50", "ms", found) for measure, found in waits.items()]
    return [*measured, ("kill -9 to taken over, worst", "s", taken_over)]


def _row(measure: str, found: dict[str, list[float]], unit: str, note: str = "") -> Row:
    shared = ratio(found["full"], found["empty"])
    value = statistics.median(found["full"])
    bar = (1.2, 1.05)
    return row(
        measure, value, unit, peer="an empty store", ratio=shared, bar=bar, most=True, note=note
    )


def _inverse(rates: list[float]) -> list[float]:
    return [1000 / rate for rate in rates]


async def _fill(server: BenchServer, paused: int, queued: int) -> None:
    settings = make_settings(server.url, namespace=NAMESPACE, call_timeout_s=60)
    waiting = await sample(server, partial(_pause, settings))
    await asyncio.to_thread(server.flush)
    ready = await sample(server, partial(_queue, settings))
    await asyncio.to_thread(server.flush)
    await asyncio.to_thread(plant, server, _aged(waiting), paused)
    await asyncio.to_thread(plant, server, _aged(_after(ready)), queued)
    async with RedisStateStore(settings) as store:
        await _check(store, paused, queued)
        history = QueueHistory(store, Queue(store))
        while await history.run_once():
            pass
        index = TaskIndex(store.base.scripts, store.base.keys)
        for prefix, count in (("plant", paused), (_QUEUED, queued)):
            one = await _indexed(store, prefix)
            for first in range(0, count, _AT_A_TIME):
                numbers = range(first, min(first + _AT_A_TIME, count))
                tasks = (_numbered(one, prefix, number) for number in numbers)
                await asyncio.gather(
                    *(
                        index.announce(task, delay_ms=check_after(_due_in_ms(paused)))
                        for task in tasks
                    )
                )
    await asyncio.to_thread(_postpone, server, paused)


async def _check(store: RedisStateStore, paused: int, queued: int) -> None:
    """Raise RuntimeError unless the last of those planted are as real ones are."""
    names = (SESSION.format(paused - 1), TASK.format(paused - 1))
    state, open_ones = await store.tasks.load(*names), await list_open_pauses(store, names[0])
    backlog = await Queue(store).backlog()
    if (
        state is None
        or state.status is not TaskStatus.PAUSED
        or [each.task_id for each in open_ones] != [names[1]]
        or backlog.waiting != queued
    ):
        raise RuntimeError(f"what was planted is not there: {backlog}")


def _after(template: Template) -> Template:
    """Name queued tasks otherwise than paused ones."""
    other = _QUEUED.encode()
    parts = tuple(part.replace(b"plant-", other + b"-") for part in template.parts)
    names = tuple(name.replace(b"plant-", other + b"-") for name in template.names)
    return Template(parts, names, template.lines)


def _due_in_ms(paused: int) -> int:
    """Return when one of so many tasks is inspected next: each is within the time of all."""
    return random.randrange(_WATCHED_WITHIN_MS * paused // _FULL)


def _postpone(server: BenchServer, paused: int) -> None:
    """Postpone what has become due while nobody swept."""
    now_ms = int(time.time() * 1000)
    keys = Keys(NAMESPACE)
    for shard in range(WATCH_SHARDS):
        key = keys.watch(shard)
        due = server.redis.zrangebyscore(key, check_after(0), check_after(now_ms))
        if due:
            server.redis.zadd(key, {each: check_after(now_ms + _due_in_ms(paused)) for each in due})


def _aged(template: Template) -> Template:
    """Let tasks count as created long before."""
    order = re.search(rb"\$5\r\norder\r\n\$16\r\n(\d{16})\r\n", b"".join(template.parts))
    if order is None:
        raise RuntimeError("a task does not say when it was created")
    before = b"%016d" % (int(order[1]) - _AGE_US)
    parts = tuple(part.replace(order[1], before) for part in template.parts)
    return Template(parts, template.names, template.lines)


async def _indexed(store: RedisStateStore, prefix: str) -> IndexedTask:
    """Return what the index has of the first of those planted."""
    names = _names(prefix, 0)
    record = await store.tasks.load_fields(*names)
    if record is None:
        raise RuntimeError("what was planted is not there")
    return indexed_record(watch_entry(*names), *names, record, ttl_ms=_AGE_US // 1000)


def _numbered(one: IndexedTask, prefix: str, number: int) -> IndexedTask:
    session_id, task_id = _names(prefix, number)
    return one._replace(entry=watch_entry(session_id, task_id), session=session_id, task=task_id)


def _names(prefix: str, number: int) -> tuple[str, str]:
    session_id, task_id = (each.format(number) for each in (SESSION, TASK))
    return session_id.replace("plant", prefix), task_id.replace("plant", prefix)


async def _queue(settings: Settings, session_id: str, task_id: str) -> None:
    async with RedisStateStore(settings) as store, TaskClient(store) as client:
        await client.submit("noop", {"i": 1}, session_id=session_id, task_id=task_id)


async def _pause(settings: Settings, session_id: str, task_id: str) -> None:
    worker = AgentWorker({"reviewed": reviewed}, settings)
    serving = asyncio.create_task(worker.serve(handle_signals=False))
    try:
        async with (
            RedisStateStore(settings) as store,
            TaskClient(store) as client,
            asyncio.timeout(_DEADLINE_S),
        ):
            await client.submit(
                "reviewed", {"query": "q" * 188}, session_id=session_id, task_id=task_id
            )
            while True:
                state = await client.get(session_id, task_id)
                if state is not None and state.status is TaskStatus.PAUSED:
                    return
                await asyncio.sleep(0.02)
    finally:
        serving.cancel()
        await asyncio.wait({serving})


def _memory() -> int:
    """Return how many bytes this machine can still give."""
    for line in Path("/proc/meminfo").read_text("utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this machine does not say how much memory it has")
