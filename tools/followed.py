"""Count the modules that a reader opens to follow a call, to the server and back.

    .venv/bin/python tools/followed.py

makes each call on an embedded server, and prints as JSON how many modules of `redis_state` it
enters. Those are the modules of which a function runs in the caller's thread between the call and
its return. So the turns of the event loop count in which the command is sent and the reply is read.
By then the connection is open, and the server has the scripts. A module that has only classes or
constants for the call does not count, and neither does what a worker does behind it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable
from types import FrameType
from typing import Any

from redis_state.models import StateUpdate, UpdateType
from redis_state.store import RedisStateStore
from redis_state.testing import eventually
from redis_state.worker import AgentWorker, TaskClient

_PACKAGE = "redis_state"
_SESSION = "session"
_APPROVALS = 10


async def entered(call: Awaitable[Any]) -> int:
    """Count the modules of the package whose functions this thread runs until a call returns."""
    modules: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        name = str(frame.f_globals.get("__name__", ""))
        if event == "call" and name.partition(".")[0] == _PACKAGE:
            modules.add(name)

    sys.setprofile(note)
    try:
        await call
    finally:
        sys.setprofile(None)
    return len(modules)


async def saving() -> int:
    """Follow the save of an update, the second one."""
    updates = [
        StateUpdate(session_id=_SESSION, task_id="t", update_type=UpdateType.PROGRESS, content={})
        for _ in range(2)
    ]
    async with RedisStateStore.from_url() as store:
        await store.save_update(updates[0])
        return await entered(store.save_update(updates[1]))


async def approving() -> int:
    """Follow the approval of a task's pause, the shortest way: the worker may be quick or not."""
    counts: list[int] = []
    async with RedisStateStore.from_url() as store, TaskClient(store) as client:
        for _ in range(_APPROVALS):
            task_id = await client.submit("ask", None, session_id=_SESSION)
            pauses = await eventually(lambda: client.pauses(_SESSION), "the task asks")
            counts.append(await entered(client.approve(str(pauses[0].token))))
            await client.result(_SESSION, task_id)
    return min(counts)


async def main() -> None:
    """Follow the calls, each in a thread of its own beside the worker's."""

    async def ask(ctx: Any) -> None:
        await ctx.approval("Go on?")

    with tempfile.TemporaryDirectory() as folder:
        os.environ["REDIS_STATE_URL"] = f"unix://{folder}/redis.sock"
        # The server runs until this store is closed.
        async with RedisStateStore.from_url(f"embedded://{folder}") as server:
            await server.health()
            working = asyncio.create_task(AgentWorker({"ask": ask}).serve(handle_signals=False))
            counts = {
                name: await asyncio.to_thread(asyncio.run, follow())
                for name, follow in (("save_update", saving), ("approve", approving))
            }
            working.cancel()
            await asyncio.wait([working])
    print(json.dumps(counts))


if __name__ == "__main__":
    asyncio.run(main())
