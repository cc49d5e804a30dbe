"""A process in front of a pool, as a web service is: for each line it has a task run."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.worker import TaskClient


async def main(argument: dict[str, Any]) -> None:
    """Submit a task for each line, and print its result."""
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    async with (
        RedisStateStore(settings) as store,
        TaskClient(store, queue=argument["queue"]) as client,
    ):
        print((await store.health()).ok, flush=True)  # noqa: T201 - what the test reads
        while line := await asyncio.to_thread(sys.stdin.readline):
            task = await client.submit("nap", 0, session_id="s", task_id=line.strip())
            result = await client.result("s", task)
            print(json.dumps(result), flush=True)  # noqa: T201 - as above


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
