"""A worker whose handler writes until it is refused, and says so on its last line.

What it writes under its lease: steps, updates, values, pauses.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import LeaseLost
from redis_state.models import UpdateType
from redis_state.worker import AgentWorker, TaskClient, TaskContext
from tests.support.processes.pools import serving


async def _write_on(settings: Settings, session: str) -> str:
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def write(ctx: TaskContext) -> None:
        n = 0
        try:
            while True:
                n += 1
                await ctx.emit(UpdateType.PROGRESS, {"of": session, "n": n})
                await ctx.step(f"step {n}", str, session)
                await ctx.open_pause(f"pause {n}", {"of": session})
        except BaseException as error:
            lost = isinstance(error, LeaseLost | asyncio.CancelledError)
            if not told.done():
                told.set_result("refused" if lost else type(error).__name__)
            raise

    # A queue of its own: each process runs its own task.
    worker = AgentWorker(
        {"write": write}, settings=settings, queue=f"q{session[-1]}", poll_s=0.01, lease_s=60.0
    )
    async with RedisStateStore(settings) as store, TaskClient(store) as client, serving(worker):
        await client.submit("write", session_id=session, task_id="t", queue=f"q{session[-1]}")
        return await told


def main(argument: dict[str, Any]) -> str:
    """Write until refused."""
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    return asyncio.run(_write_on(settings, argument["session"]))


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
