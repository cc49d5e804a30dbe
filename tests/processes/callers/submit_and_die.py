"""A caller that backfills a schedule or submits tasks for later, and may die on the way."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from redis_state import RedisStateStore
from redis_state.worker import TaskClient
from tests.processes.workers.killed.versioned_worker import plant
from tests.support.processes.pools import SESSION
from tests.support.scripts.replies import clock_ms


def moment(at_ms: int) -> datetime:
    """Read a time of an argument."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


async def backfill(client: TaskClient, argument: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Backfill a schedule; return each occurrence's task and state."""
    since, until = moment(argument["since_ms"]), moment(argument["until_ms"])
    options = argument.get("options", {})
    made = await client.schedules.backfill(argument["schedule"], since, until, **options)
    return [(each.task_id, each.state) for each in made]


async def submit(client: TaskClient, argument: dict[str, Any]) -> list[str]:
    """Submit tasks for a time, which is printed before; return their ids."""
    at_ms = await clock_ms(client.store.base.scripts) + argument["in_ms"]
    print(at_ms, flush=True)  # noqa: T201
    return [
        await client.submit("fire", session_id=SESSION, task_id=task, at=moment(at_ms), **options)
        for task, options in argument["tasks"].items()
    ]


async def main(argument: dict[str, Any]) -> None:
    """Do what is asked for, print it, and wait to be killed if that is wanted."""
    if "die" in argument:
        script = argument.get("script", "queue_job")
        plant("before", script, Path(argument["mark"]), number=argument["die"])
    async with (
        RedisStateStore.from_url(argument["url"], namespace=argument["namespace"]) as store,
        TaskClient(store, queue=argument["queue"]) as client,
    ):
        does = backfill if "schedule" in argument else submit
        print(json.dumps(await does(client, argument)), flush=True)  # noqa: T201
        if argument.get("stays"):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
