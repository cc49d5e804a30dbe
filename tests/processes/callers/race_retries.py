"""Retry tasks again and again while other processes do; tell what became of each call."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from redis_state import RedisStateStore
from redis_state.errors import Conflict
from redis_state.worker import TaskClient


async def main(argument: dict[str, Any]) -> dict[str, int]:
    """Say when all have been tried once, and go on until it is told to stop."""
    told: Counter[str] = Counter()
    stop = Path(argument["stop"])
    options = {"namespace": argument["namespace"]}
    async with (
        RedisStateStore.from_url(argument["url"], **options) as store,
        TaskClient(store, queue=argument["queue"]) as client,
    ):
        while True:
            for session, task in argument["tasks"]:
                try:
                    await client.retry(session, task)
                except Conflict as refused:
                    told[f"{task}: {type(refused).__name__}"] += 1
                else:
                    told[f"{task}: reopened"] += 1
            if stop.exists():  # noqa: ASYNC240 - another process makes it
                return told
            if told.total() == len(argument["tasks"]):
                print("tried", flush=True)  # noqa: T201


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
