"""Run upstream's own scheduler on the shared store, as one process of several.

Each job that is spawned adds a line to a list on the server, in the order of the spawning.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from penguiflow.sessions.scheduler import JobDefinition, JobScheduler

from redis_state.integrations.penguiflow import PenguiflowJobStore, create_job_store
from redis_state.testing import eventually

HOUR = 3_600_000


async def note(store: PenguiflowJobStore, name: str, what: str) -> int:
    """Add a line to a list of this namespace."""
    sender = store.base.scripts.transport.sender
    key = f"{store.settings.namespace}:v1:{{recorded}}:{name}"
    length: int = await sender.send("RPUSH", key, what, repeatable=False)
    await sender.send("PEXPIRE", key, HOUR, repeatable=True)
    return length


async def main(argument: dict[str, Any]) -> Any:
    """Tick until all of the expected jobs are spawned, by whomever."""
    mine: list[str] = []
    async with create_job_store(
        url=argument["url"], namespace=argument["namespace"], **argument.get("options", {})
    ) as store:

        async def spawn(job: JobDefinition) -> str:
            if await note(store, "spawned", f"{os.getpid()} {job.job_id}") and argument.get(
                "hangs"
            ):
                await asyncio.Event().wait()
            mine.append(job.job_id)
            return ""

        async def recorded(name: str) -> int:
            sender = store.base.scripts.transport.sender
            key = f"{store.settings.namespace}:v1:{{recorded}}:{name}"
            return int(await sender.send("LLEN", key, repeatable=True))

        async def begun() -> bool:
            enough: int = argument["processes"]
            return await recorded("here") >= enough

        async def all_spawned() -> bool:
            enough: int = argument["expected"]
            return await recorded("spawned") >= enough

        await note(store, "here", str(os.getpid()))
        await eventually(begun, "all processes have begun", timeout_s=60)
        scheduler = JobScheduler(store=store, spawn=spawn)

        async def ticked() -> bool:
            await scheduler.tick()
            return await all_spawned()

        await eventually(ticked, "all jobs are spawned", timeout_s=60)
        # What a tick too many would still fire.
        await scheduler.tick()
    return {"pid": os.getpid(), "mine": mine}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
