"""Submit tasks to one session, with a policy, while other processes do; print what was refused."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from redis_state import RedisStateStore
from redis_state.errors import TaskInProgress
from redis_state.worker import TaskClient


async def main(argument: dict[str, Any]) -> dict[str, Any]:
    """Submit some at once, again and again; each twice, as a caller does that saw no reply."""
    made: list[str] = []
    refused: dict[str, str] = {}
    options = {"namespace": argument["namespace"]}
    async with (
        RedisStateStore.from_url(argument["url"], **options) as store,
        TaskClient(store, queue=argument["queue"]) as client,
    ):

        async def submit(name: str) -> None:
            try:
                for _ in range(2):
                    await client.submit(
                        "work", name, session_id="s", task_id=name, on_busy=argument["policy"]
                    )
            except TaskInProgress as busy:
                refused[name] = busy.task_id
            else:
                made.append(name)

        for turn in range(argument["turns"]):
            names = [f"{argument['name']}-{turn}-{caller}" for caller in range(argument["callers"])]
            await asyncio.gather(*map(submit, names))
    return {"made": made, "refused": refused}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
