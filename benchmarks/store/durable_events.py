"""Events a second in Redis alone, in PostgreSQL at once, and by way of Redis, turn by turn.

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

from redis_state import RedisStateStore
from redis_state.models import StoredEvent

_CALLERS = (40, 1)
_ROUNDS, _SECONDS = 3, 1.0
_PAYLOAD = {"event": "node_success", "node_name": "llm", "latency_ms": 1523.45, "attempt": 1}


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


async def main(url: str, postgres: str) -> None:
    """Print the median of some rounds for each store."""
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


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
