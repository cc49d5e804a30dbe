"""Live subscribers of one process, beside one connection each. Both hear the same writes."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

from benchmarks.driver import Contender, NotMeasured
from benchmarks.peers.ours import update
from benchmarks.report import Row, missing, row
from benchmarks.runner import Run
from benchmarks.samples import CONTENT, session_name
from benchmarks.store.listeners import NAMESPACE
from redis_state import RedisStateStore

_RATE = 400.0
# To so many different sessions at once, at most, after a stretch of single updates.
_BURST = 500
_PEER = "one connection each"
_BARS = {"p50_us": (1.2, 1.0), "p99_us": (1.2, 0.8), "cpu_us": (0.5, 0.35)}
_SAID = {
    "p50_us": ("p50", "us"),
    "p99_us": ("p99", "us"),
    "cpu_us": ("reader CPU", "us/message"),
    "single_cpu_us": ("reader CPU without the burst", "us/message"),
    "burst_ms": ("last of the burst", "ms"),
}


def measure_listening(run: Run) -> list[Row]:
    """Measure 1, 100 and 1,000 subscribers."""
    rows: list[Row] = []
    for number in (1, 1000) if run.quick else (1, 100, 1000):
        run.tell(f"{number:,} subscribers")
        try:
            rows += asyncio.run(_measure(run, number))
        except NotMeasured as error:
            rows.append(missing(f"{number:,} subscribers", str(error), peer=_PEER, failed=True))
    return rows


async def _measure(run: Run, number: int) -> list[Row]:
    url = run.server.url
    run.server.flush()
    found: dict[str, list[dict[str, float]]] = {"ours": [], "connections": []}
    async with RedisStateStore.from_url(url, namespace=NAMESPACE, call_timeout_s=60) as store:
        sessions = [f"listening-{session_name(each)}-{each}" for each in range(number)]
        await asyncio.gather(*(_write(store, name, each, 0) for each, name in enumerate(sessions)))
        # The tail of a stretch is a few delays: only many stretches tell it.
        for repeat in range(run.repeats * 2 - 1 if number == 1000 else run.repeats):
            # One after the other: what one of them hears late must not be the other's doing.
            for kind in sorted(found, reverse=repeat % 2 == 0):
                with Contender(
                    kind, url, str(number), module="benchmarks.store.listeners"
                ) as listeners:
                    seconds = 0.5 if run.quick else 2.0
                    told = await _listen(store, listeners, sessions, seconds, repeat)
                    found[kind].append(told)
    rows: list[Row] = []
    for quantity, (said, unit) in _SAID.items():
        measure = f"{number:,} subscribers, {said}"
        if number == 1 and quantity == "burst_ms":
            continue
        pairs = [
            (mine[quantity], theirs[quantity])
            for mine, theirs in zip(found["ours"], found["connections"], strict=True)
        ]
        ratio = statistics.median(mine / theirs for mine, theirs in pairs)
        value = statistics.median(mine for mine, _ in pairs)
        bar = _BARS.get(quantity) if number == 1000 else None
        rows.append(row(measure, value, unit, peer=_PEER, ratio=ratio, bar=bar, most=True))
    return rows


async def _listen(
    store: RedisStateStore,
    listeners: Contender,
    sessions: list[str],
    seconds: float,
    repeat: int,
) -> dict[str, float]:
    """Have single updates heard, then a burst; the CPU is that of both, a message.

    The last of the burst is late by what writing it takes, too. Errors: NotMeasured, if one of
    them is not heard.
    """
    chosen = random.Random(repeat)
    count = int(seconds * _RATE)
    named = [chosen.choice(sessions) for _ in range(count)]
    singles = await _heard(listeners, _write_in_turn, store, named)
    # As large a part of all as 500 are of 800 and 500.
    named = chosen.sample(sessions, min(len(sessions), _BURST, count * 5 // 8))
    burst = await _heard(listeners, _write_at_once, store, named)
    spent = singles["cpu_us"] * singles["heard"] + burst["cpu_us"] * burst["heard"]
    return {
        "p50_us": singles["p50_us"],
        "p99_us": singles["p99_us"],
        "cpu_us": spent / (singles["heard"] + burst["heard"]),
        "single_cpu_us": singles["cpu_us"],
        "burst_ms": burst["last_us"] / 1000,
    }


async def _heard(
    listeners: Contender,
    write: Callable[[RedisStateStore, Sequence[str]], Awaitable[None]],
    store: RedisStateStore,
    named: Sequence[str],
) -> dict[str, float]:
    """Write, and ask what was heard of it once all was."""
    await asyncio.to_thread(listeners.ask, {"begin": True})
    await write(store, named)
    return await asyncio.to_thread(listeners.ask, {"wrote": len(named)})


async def _write_in_turn(store: RedisStateStore, named: Sequence[str]) -> None:
    due = time.monotonic()
    for session_id in named:
        due += 1 / _RATE
        await asyncio.sleep(due - time.monotonic())
        # Its id must be new in each repeat, for either kind of listener.
        await _write(store, session_id, time.time_ns(), time.monotonic())


async def _write_at_once(store: RedisStateStore, named: Sequence[str]) -> None:
    first, begin = time.time_ns(), time.monotonic()
    calls = (_write(store, name, first + place, begin) for place, name in enumerate(named))
    await asyncio.gather(*calls)


async def _write(store: RedisStateStore, session_id: str, number: int, at: float) -> None:
    told = update(number, session_id).model_copy(update={"content": CONTENT | {"at": at}})
    await store.save_update(told)
