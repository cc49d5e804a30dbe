"""Reads: polls of idle and busy sessions, hydration of a long one, artifacts."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from benchmarks.measure import measure
from benchmarks.peers.ours import update
from benchmarks.report import Row, row
from benchmarks.runner import Run
from redis_state import RedisStateStore
from redis_state.models import ArtifactRetentionConfig
from redis_state.settings import make_settings

_LONG = 10_000
_ROOM = 1 << 28


def measure_reading(run: Run) -> list[Row]:
    """Measure what reads cost."""
    return asyncio.run(_measure(run))


async def _measure(run: Run) -> list[Row]:
    retention = ArtifactRetentionConfig(
        max_artifact_bytes=_ROOM, max_session_bytes=_ROOM, max_trace_bytes=_ROOM
    )
    settings = make_settings(run.server.url, namespace="reading", call_timeout_s=60)
    async with RedisStateStore(settings, artifact_retention=retention) as store:
        run.tell(f"a session of {_LONG:,} rows")
        await fill(store, "long", _LONG)
        rows = await _polls(run, store)
        run.tell("hydration")
        rows += await _hydration(run, store)
        for size, name in ((1 << 10, "1 KB"), (1 << 20, "1 MB"), (64 << 20, "64 MB")):
            run.tell(f"artifact of {name}")
            rows += await _artifact(run, store, size, name)
    return rows


async def fill(store: RedisStateStore, session_id: str, count: int, *, first: int = 0) -> None:
    """Append so many updates to a session, many at a time."""
    log = store.updates
    for start in range(first, first + count, 5000):
        numbers = range(start, min(start + 5000, first + count))
        await asyncio.gather(*(log.save(update(number, session_id)) for number in numbers))


async def _polls(run: Run, store: RedisStateStore) -> list[Row]:
    cursor = await store.update_cursor("long")

    async def ping(_: int) -> None:
        await store.transport.sender.send("PING", repeatable=True)

    async def idle(_: int) -> None:
        await store.read_updates("long", after=cursor)

    number = _LONG

    async def busy(_: int) -> None:
        nonlocal number, cursor
        number += 1
        await store.save_update(update(number, "long"))
        cursor = (await store.read_updates("long", after=cursor)).cursor

    rows: list[Row] = []
    for callers in (1, 64):
        run.tell(f"idle polls, callers: {callers}")
        ratios: list[float] = []
        costs: list[float] = []
        client: list[float] = []
        for _ in range(run.repeats):
            pinged, _ = await _server_us(run, ping, callers)
            polled, spent = await _server_us(run, idle, callers)
            ratios.append(polled / pinged)
            costs.append(polled)
            client.append(spent)
        said = "1 caller" if callers == 1 else f"{callers} callers"
        rows.append(
            row(
                f"idle cursor poll, {said}, server CPU",
                statistics.median(costs),
                "us/op",
                peer="PING",
                ratio=statistics.median(ratios),
                bar=(3.0, 1.5),
                most=True,
            )
        )
        rows.append(
            row(f"idle cursor poll, {said}, client CPU", statistics.median(client), "us/op")
        )
    done, _ = await measure(busy, callers=1, seconds=run.seconds)
    rows.append(row("busy session: append and poll, p50", done.p50_us, "us"))
    return rows


async def _server_us(
    run: Run, operation: Callable[[int], Awaitable[None]], callers: int
) -> tuple[float, float]:
    before = await asyncio.to_thread(run.server.cpu_s)
    done, _ = await measure(operation, callers=callers, seconds=run.seconds)
    spent = await asyncio.to_thread(run.server.cpu_s) - before
    return spent / done.count * 1e6, done.cpu_us


async def _hydration(run: Run, store: RedisStateStore) -> list[Row]:
    listed: list[float] = []
    paged: list[float] = []
    for _ in range(run.repeats):
        before = time.perf_counter()
        found = await store.list_updates("long", limit=_LONG)
        listed.append(time.perf_counter() - before)
        if len(found) < _LONG:
            raise RuntimeError(f"{len(found)} of {_LONG} rows were read")
        before = time.perf_counter()
        page = await store.read_updates("long", limit=1000)
        while not page.at_end:
            page = await store.read_updates("long", after=page.cursor, limit=1000)
        paged.append(time.perf_counter() - before)
    said = f"hydration of {_LONG:,} rows"
    return [
        row(f"{said}, one list", statistics.median(listed) * 1000, "ms"),
        row(f"{said}, pages of 1,000", statistics.median(paged) * 1000, "ms"),
    ]


async def _artifact(run: Run, store: RedisStateStore, size: int, name: str) -> list[Row]:
    artifacts = store.artifact_store
    wrote: list[float] = []
    read: list[float] = []
    many = size < 1 << 24
    for number in range(run.repeats * 4 if many else 1 if run.quick else 2):
        data = number.to_bytes(8, "big") * (size // 8)
        before = time.perf_counter()
        ref = await artifacts.put_bytes(data)
        between = time.perf_counter()
        if await artifacts.get(ref.id) != data:
            raise RuntimeError(f"an artifact of {name} did not come back")
        read.append(time.perf_counter() - between)
        wrote.append(between - before)
        await artifacts.delete(ref.id)
    return [
        row(f"artifact of {name}, save", statistics.median(wrote) * 1000, "ms"),
        row(f"artifact of {name}, load", statistics.median(read) * 1000, "ms"),
    ]
