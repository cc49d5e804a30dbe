"""Add items to a session's batches while other processes do; print which task has each."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from typing import Any

from redis_state import RedisStateStore
from redis_state.worker import TaskClient


async def main(argument: dict[str, Any]) -> dict[str, str]:
    """Add them one after the other, each under its id."""
    placed: dict[str, str] = {}
    options = {"namespace": argument["namespace"]}
    async with (
        RedisStateStore.from_url(argument["url"], **options) as store,
        TaskClient(store, queue=argument["queue"]) as client,
    ):
        for number in range(argument["items"]):
            name = f"{argument['name']}-{number}"
            placed[name] = await client.batch(
                "work",
                name,
                session_id="s",
                item_id=name,
                most=argument["most"],
                after=timedelta(milliseconds=argument["after_ms"]),
            )
            print(name, flush=True)  # noqa: T201
    return placed


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
