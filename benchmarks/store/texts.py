"""What 1,000 tokens of a model cost: an update for each, and joined by ``ctx.text``.

    python -m benchmarks.store.texts

One worker process, one server, the ways in turn, five times. CPU is that of the worker's process
and of the server, without that of the producer of the tokens. Ratios are within a round.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from redis_state import RedisStateStore
from redis_state.embedded.server import start_embedded
from redis_state.models import UpdateType
from redis_state.worker import AgentWorker, TaskClient, TaskContext

TOKENS = 1_000
ROUNDS = 5
# How long a model takes for a token: as fast as it goes, 500 a second, 100 a second.
PACES_S = (0.0, 0.002, 0.01)

Way = Callable[[TaskContext, float], Awaitable[None]]


async def nothing(_: TaskContext, pace_s: float) -> None:
    """Produce the tokens, and publish none."""
    for _number in range(TOKENS):
        await asyncio.sleep(pace_s)


async def each(ctx: TaskContext, pace_s: float) -> None:
    """Publish an update for each token."""
    for number in range(TOKENS):
        await asyncio.sleep(pace_s)
        await ctx.emit(UpdateType.RESULT, {"text": f"word{number % 10} "})


async def joined(ctx: TaskContext, pace_s: float) -> None:
    """Publish the tokens as a text."""
    async with ctx.text("answer") as out:
        for number in range(TOKENS):
            await asyncio.sleep(pace_s)
            out.write(f"word{number % 10} ")


WAYS: dict[str, Way] = {"nothing": nothing, "each": each, "joined": joined}


async def spent(store: RedisStateStore) -> tuple[float, float, int]:
    """Return CPU ms of this process and of the server, and how many scripts the server has run."""
    info: Any = await store.transport.sender.send("INFO", "ALL", repeatable=True)
    told = dict(
        line.split(":", 1) for line in info.decode().splitlines() if ":" in line and line[0] != "#"
    )
    server = float(told["used_cpu_user"]) + float(told["used_cpu_sys"])
    appended = told.get("cmdstat_xadd", "calls=0,").partition("=")[2].partition(",")[0]
    return time.process_time() * 1000, server * 1000, int(appended)


async def measure(ctx: TaskContext) -> list[float]:
    """Run one way, and return what it took."""
    way, pace_s = ctx.input
    before = await spent(ctx.store)
    await WAYS[way](ctx, pace_s)
    after = await spent(ctx.store)
    return [late - early for late, early in zip(after, before, strict=True)]


async def main(url: str) -> None:
    """Measure, and print a table."""
    async with RedisStateStore.from_url(url) as store, TaskClient(store) as client:
        worker = AgentWorker({"measure": measure}, settings=store.settings)
        serving = asyncio.create_task(worker.serve(handle_signals=False))
        print("| tokens a second | rows | rows / each | worker CPU / each | server CPU / each |")
        print("| --- | --- | --- | --- | --- |")
        for pace_s in PACES_S:
            ratios: defaultdict[str, list[float]] = defaultdict(list)
            for _ in range(ROUNDS):
                found: dict[str, list[float]] = {}
                for way in WAYS:
                    task_id = await client.submit("measure", [way, pace_s], session_id="s")
                    found[way] = await client.result("s", task_id, timeout_s=120)
                free = found["nothing"]
                text = [spent - idle for spent, idle in zip(found["joined"], free, strict=True)]
                many = [spent - idle for spent, idle in zip(found["each"], free, strict=True)]
                ratios["rows"].append(text[2])
                for name, place in (("worker", 0), ("server", 1), ("share", 2)):
                    ratios[name].append(text[place] / many[place])
            named = f"{1 / pace_s:.0f}" if pace_s else "all at once"
            shares = [median(ratios[name]) for name in ("share", "worker", "server")]
            texts = " | ".join(f"{share:.3f}" for share in shares)
            print(f"| {named} | {median(ratios['rows']):.0f} | {texts} |")
        serving.cancel()
        await asyncio.wait({serving})


if __name__ == "__main__":
    with start_embedded(None) as server:
        asyncio.run(main(server.url))
