"""Live subscribers of one process, beside one connection each. Both hear the same writes."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from typing import Any

from benchmarks.driver import Contender
from benchmarks.listeners import NAMESPACE
from benchmarks.peers.ours import update
from benchmarks.report import Row, missing, row
from benchmarks.runner import Run
from benchmarks.samples import CONTENT, session_name
from redis_state import RedisStateStore

_RATE = 300.0
_PEER = "one connection each"
_BARS = {"p50_us": (1.2, 1.0), "p99_us": (1.2, 0.8), "cpu_us": (0.5, 0.35)}
_SAID = {"p50_us": ("p50", "us"), "p99_us": ("p99", "us"), "cpu_us": ("reader CPU", "us/message")}


def measure_listening(run: Run) -> list[Row]:
    """Measure 1, 100 and 1,000 subscribers."""
    rows: list[Row] = []
    for number in (1, 1000) if run.quick else (1, 100, 1000):
        run.tell(f"{number:,} subscribers")
        rows += asyncio.run(_measure(run, number))
    return rows


async def _measure(run: Run, number: int) -> list[Row]:
    url = run.server.url
    run.server.flush()
    found: dict[str, list[dict[str, float]]] = {"ours": [], "connections": []}
    async with RedisStateStore.from_url(url, namespace=NAMESPACE, call_timeout_s=60) as store:
        sessions = [f"listening-{session_name(each)}-{each}" for each in range(number)]
        await asyncio.gather(*(_write(store, name, each, 0) for each, name in enumerate(sessions)))
        for repeat in range(run.repeats):
            # One after the other: what one of them hears late must not be the other's doing.
            for kind, told in found.items():
                with Contender(kind, url, str(number), module="benchmarks.listeners") as listeners:
                    seconds = run.seconds * 3
                    told.append(await _listen(store, listeners, sessions, seconds, repeat))
    rows: list[Row] = []
    for quantity, (said, unit) in _SAID.items():
        measure = f"{number:,} subscribers, {said}"
        pairs = [
            (mine[quantity], theirs[quantity])
            for mine, theirs in zip(found["ours"], found["connections"], strict=True)
            if quantity in mine and quantity in theirs
        ]
        if not pairs:
            rows.append(missing(measure, "nothing was heard", peer=_PEER, failed=True))
            continue
        ratio = statistics.median(mine / theirs for mine, theirs in pairs)
        value = statistics.median(mine for mine, _ in pairs)
        bar = _BARS[quantity] if number == 1000 else None
        rows.append(row(measure, value, unit, peer=_PEER, ratio=ratio, bar=bar, most=True))
    return rows


async def _listen(
    store: RedisStateStore,
    listeners: Contender,
    sessions: list[str],
    seconds: float,
    repeat: int,
) -> dict[str, Any]:
    await asyncio.to_thread(listeners.ask, {"begin": True})
    chosen = random.Random(repeat)
    begin = time.monotonic()
    wrote = 0
    while (passed := time.monotonic() - begin) < seconds:
        while wrote < passed * _RATE:
            wrote += 1
            # Its id must be new in each repeat, for either kind of listener.
            await _write(store, chosen.choice(sessions), time.time_ns(), time.monotonic())
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.2)
    return await asyncio.to_thread(listeners.ask, {"end": True})


async def _write(store: RedisStateStore, session_id: str, number: int, at: float) -> None:
    told = update(number, session_id).model_copy(update={"content": CONTENT | {"at": at}})
    await store.save_update(told)
