"""How cost grows: the same operation with more rows in its session, and with more sessions."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from itertools import count

from benchmarks.measure import measure
from benchmarks.peers.ours import task, update
from benchmarks.report import Row, row
from benchmarks.runner import Run
from benchmarks.samples import TASKS, task_name
from benchmarks.server import BenchServer
from benchmarks.store.prepared import capture, pump
from benchmarks.store.reading import fill
from redis_state import RedisStateStore

_CALLERS = 64
_ROWS = (10, 1_000, 100_000)
_SESSIONS = (10, 10_000, 1_000_000)
_ROWS_IN_ALL = 20_000

Operation = Callable[[int], Awaitable[None]]


def measure_growth(run: Run) -> list[Row]:
    """Measure both."""
    return asyncio.run(_rows(run)) + asyncio.run(_sessions(run))


async def _rows(run: Run) -> list[Row]:
    numbers = count(10_000_000)
    sizes = [size // 20 if run.quick and size > 1000 else size for size in _ROWS]
    rows_in_all = _ROWS_IN_ALL // 4 if run.quick else _ROWS_IN_ALL
    # As many sessions of a size as make appending to them in turn change that size little.
    sessions = {
        size: [f"of-{size}-{each}" for each in range(max(1, rows_in_all // size))] for size in sizes
    }
    async with RedisStateStore.from_url(
        run.server.url, namespace="growth", call_timeout_s=60, max_updates_per_session=0
    ) as store:
        for size, names in sessions.items():
            run.tell(f"growth: {len(names):,} sessions of {size:,} rows")
            for name in names:
                await fill(store, name, size)

        def append(size: int) -> Operation:
            names = sessions[size]

            async def one(number: int) -> None:
                await store.save_update(update(next(numbers), names[number % len(names)]))

            return one

        def newest(size: int) -> Operation:
            names = sessions[size]

            async def one(number: int) -> None:
                await store.list_updates(names[number % len(names)], limit=10)

            return one

        rows = await _compare(run, "append", sizes, append, "rows a session")
        rows += await _compare(run, "list the newest 10", sizes, newest, "rows a session")
    await asyncio.to_thread(run.server.flush)
    return rows


async def _sessions(run: Run) -> list[Row]:
    sizes = [size // 50 if run.quick and size > 1000 else size for size in _SESSIONS]
    rows: list[Row] = []
    costs: dict[str, dict[int, list[float]]] = {"save a task": {}, "load a task": {}}
    async with RedisStateStore.from_url(
        run.server.url, namespace="growth", call_timeout_s=60
    ) as store:
        there = 0
        for size in sizes:
            run.tell(f"growth: {size:,} sessions")
            await asyncio.to_thread(_save_tasks, run.server, there, size)
            there = size
            operations = {"save a task": _save(store, size), "load a task": _load(store, size)}
            for name, operation in operations.items():
                for _ in range(run.repeats):
                    costs[name].setdefault(size, []).append(await _server_us(run, operation))
    for name, by_size in costs.items():
        rows += _growth(name, by_size, "sessions", bar=None)
    await asyncio.to_thread(run.server.flush)
    return rows


def _save(store: RedisStateStore, sessions: int) -> Operation:
    async def one(number: int) -> None:
        chosen = number * 7919 % sessions
        await store.save_task(task(chosen, f"session-{chosen:07d}", context={}))

    return one


def _load(store: RedisStateStore, sessions: int) -> Operation:
    async def one(number: int) -> None:
        chosen = number * 7919 % sessions
        found = await store.list_tasks(f"session-{chosen:07d}")
        if len(found) != 1:
            raise RuntimeError(f"a session of {len(found)} tasks")

    return one


def _save_tasks(server: BenchServer, first: int, end: int) -> None:
    own = (b"session-0000000", task_name(0).encode())

    async def save(store: RedisStateStore) -> None:
        await store.save_task(task(0, "session-0000000", context={}))

    command = capture(save, namespace="growth", reply=[b"OK", 1])
    pump(
        server,
        command,
        (
            command.naming(
                {own[0]: b"session-%07d" % number, own[1]: task_name(number % TASKS).encode()}
            )
            for number in range(first, end)
        ),
    )


async def _compare(
    run: Run, name: str, sizes: list[int], make: Callable[[int], Operation], unit: str
) -> list[Row]:
    run.tell(f"growth: {name}")
    found: dict[int, list[float]] = {}
    operations = {size: make(size) for size in sizes}
    for _ in range(run.repeats):
        for size, operation in operations.items():
            found.setdefault(size, []).append(await _server_us(run, operation))
    return _growth(name, found, unit, bar=(1.3, 1.1))


def _growth(
    name: str,
    found: dict[int, list[float]],
    unit: str,
    *,
    bar: tuple[float, float] | None,
) -> list[Row]:
    small, *_, large = found
    rows = [
        row(f"{name} at {size:,} {unit}, server CPU", statistics.median(costs), "us/op")
        for size, costs in found.items()
        if size != large
    ]
    pairs = zip(found[large], found[small], strict=True)
    ratio = statistics.median(much / little for much, little in pairs)
    measure = f"{name} at {large:,} {unit}, server CPU"
    value = statistics.median(found[large])
    peer = f"at {small:,}"
    return [*rows, row(measure, value, "us/op", peer=peer, ratio=ratio, bar=bar, most=True)]


async def _server_us(run: Run, operation: Operation) -> float:
    before = await asyncio.to_thread(run.server.cpu_s)
    done, _ = await measure(operation, callers=_CALLERS, seconds=run.seconds / 2)
    return (await asyncio.to_thread(run.server.cpu_s) - before) / done.count * 1e6
