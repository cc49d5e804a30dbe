"""Sweep from a process of its own, while others do; print what each sweeper did."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.testing import eventually
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.sweeper import Sweeper


async def meet(store: RedisStateStore, processes: int) -> None:
    """Wait until so many processes are here, so that they really race."""
    sender, key = store.transport.sender, f"{store.settings.namespace}:v1:{{start}}:start"
    await sender.send("HINCRBY", key, "here", 1, repeatable=False)
    await sender.send("PEXPIRE", key, 3_600_000, repeatable=True)

    async def all_here() -> bool:
        return int(await sender.send("HGET", key, "here", repeatable=True)) >= processes

    await eventually(all_here, "all processes have begun", timeout_s=60)


async def main(argument: dict[str, Any]) -> list[dict[str, int]]:
    """Run sweepers until none finds anything due."""
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    async with RedisStateStore(settings) as store:
        queue = Queue(store, name=argument["queue"])
        sweepers = [
            Sweeper(store, queue, limit=argument["limit"]) for _ in range(argument["sweepers"])
        ]
        await meet(store, argument["processes"])

        async def sweep(sweeper: Sweeper) -> None:
            while (await sweeper.run_once()).looked:
                pass

        await asyncio.gather(*map(sweep, sweepers))
        await queue.aclose()
        return [asdict(sweeper.totals) for sweeper in sweepers]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
