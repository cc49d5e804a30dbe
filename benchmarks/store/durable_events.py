"""Events a second in Redis alone, in PostgreSQL at once, and by way of Redis, turn by turn.

Then how long an event of `delayed` takes from its save to its row in PostgreSQL.

python -m benchmarks.store.durable_events redis://localhost postgresql://localhost/agents
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
import uuid
from itertools import count
from typing import Any

from psycopg import AsyncConnection

from redis_state import RedisStateStore
from redis_state.models import StoredEvent

_CALLERS = (40, 1)
_ROUNDS, _SECONDS = 3, 1.0
_PAYLOAD = {"event": "node_success", "node_name": "llm", "latency_ms": 1523.45, "attempt": 1}
# Of the delay: events a second, of so many traces, for so long. The rows are looked for so often.
_RATES, _TRACES, _DELAY_S, _LOOK_S = (100, 300, 1_000), 40, 20.0, 0.005
_NEW_ROWS = """
SELECT n, node_id FROM redis_state_events.events WHERE namespace = %s AND n > %s ORDER BY n
"""


async def measure(store: RedisStateStore, callers: int) -> float:
    """Save events of a trace for each caller, each after the one before; return events a second."""
    ends, saved = time.perf_counter() + _SECONDS, count()

    async def call(trace: str) -> None:
        n = 0
        while time.perf_counter() < ends:
            payload = {**_PAYLOAD, "n": n}
            event = StoredEvent(trace, float(n), "node_success", "llm", "l", payload)
            await store.save_event(event)
            n += 1
            next(saved)

    await asyncio.gather(*(call(uuid.uuid4().hex) for _ in range(callers)))
    return next(saved) / _SECONDS


async def delays_ms(store: RedisStateStore, postgres: str, rate: int) -> list[float]:
    """Save events at an even rate; return how long each took from the call to its row, in order."""
    total = round(rate * _DELAY_S)
    called: dict[str, float] = {}
    found: dict[str, float] = {}

    async def look() -> None:
        # One process moves them, in one transaction after the other: later rows have later numbers.
        last = 0
        async with await AsyncConnection.connect(postgres, autocommit=True) as beside:
            while len(found) < total:
                named = [store.settings.namespace, last]
                rows = await (await beside.execute(_NEW_ROWS, named)).fetchall()
                found.update(dict.fromkeys((name for _, name in rows), time.perf_counter()))
                last = rows[-1][0] if rows else last
                await asyncio.sleep(_LOOK_S)

    async def save(n: int) -> None:
        called[str(n)] = time.perf_counter()
        payload = {**_PAYLOAD, "n": n}
        trace = f"t{n % _TRACES}"
        await store.save_event(StoredEvent(trace, float(n), "node_success", "llm", str(n), payload))

    async with asyncio.TaskGroup() as running:
        running.create_task(look())
        begun = time.perf_counter()
        for n in range(total):
            await asyncio.sleep(begun + n / rate - time.perf_counter())
            running.create_task(save(n))
    return sorted(1000 * (found[name] - at) for name, at in called.items())


async def main(url: str, postgres: str) -> None:
    """Print the median of some rounds for each store, and the delays of `delayed`."""
    named: dict[str, dict[str, Any]] = {
        "Redis": {},
        "sync": {"durable_events": postgres},
        "delayed": {"durable_events": postgres, "durable_events_mode": "delayed"},
    }
    for callers in _CALLERS:
        rates: dict[str, list[float]] = {name: [] for name in named}
        for _ in range(_ROUNDS):
            for name, options in named.items():
                async with RedisStateStore.from_url(url, namespace="bench", **options) as store:
                    await measure(store, callers) if not rates[name] else None
                    rates[name].append(await measure(store, callers))
                    # What is to be moved is moved before the next one's turn.
                    events: Any = store.events
                    while store.events.is_durable and (await events.backlog()).traces:
                        await events.flush()
        for name, found in rates.items():
            print(f"{callers:>3} callers  {name:<8} {statistics.median(found):>8,.0f} events/s")
    async with RedisStateStore.from_url(url, namespace="bench", durable_events=postgres) as store:
        await store.delete_everything()
    for rate in _RATES:
        own = f"bench-{rate}"
        async with RedisStateStore.from_url(url, namespace=own, **named["delayed"]) as store:
            moved: Any = store.events
            await moved.prepare()
            delays = await delays_ms(store, postgres, rate)
            p50, p99 = (delays[len(delays) * part // 100] for part in (50, 99))
            shown = f"p50 {p50:,.0f}, p99 {p99:,.0f}, longest {delays[-1]:,.0f} ms"
            setting = store.settings.durable_events_delay.total_seconds() * 1000
            print(f"{rate:>5} events/s  to their rows {shown}; the setting is {setting:,.0f}")
            await store.delete_everything()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
