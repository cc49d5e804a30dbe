"""A worker in a process of its own: ``python -m benchmarks.tasks.pool``.

Its arguments are the server's URL, the lease in seconds and, if something is archived, the
archive's URL and the worker's `archive_share`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from typing import Any

from redis.asyncio import Redis

from benchmarks.pool_worker import paused
from benchmarks.tasks.process import SLOTS
from redis_state.settings import make_settings
from redis_state.worker import AgentWorker, TaskContext
from redis_state.worker.runs.config import Handler

NAMESPACE = "tasks"
# Of its own: what is planted in a full store waits in the default one.
QUEUE = "task-pool"
# Where handlers that are held say that they have begun.
HELD = "task-pool-held"
STEP_IN, STEP_OUT = "i" * 20, "o" * 200


async def noop(context: TaskContext) -> None:
    """Do nothing."""
    del context


async def three(context: TaskContext) -> int:
    """Run three steps."""

    async def work() -> int:
        return 1

    return sum([await context.step(name, work) for name in ("one", "two", "three")])


async def reviewed(context: TaskContext) -> None:
    """Run a step that makes much of little, and wait for an approval."""

    async def work(given: str) -> str:
        return given[:0] + STEP_OUT

    await context.step("work", work, STEP_IN)
    await context.approval("May it go on?")


class Holding:
    """A handler whose first run does not end. Each run says where and when it began."""

    def __init__(self, url: str) -> None:
        self._redis: Any = Redis.from_url(url)  # pyright: ignore[reportUnknownMemberType]

    async def __call__(self, context: TaskContext) -> None:
        """Hold."""
        said = json.dumps([context.task.task_id, os.getpid(), time.monotonic()])
        await self._redis.rpush(HELD, said)
        if context.attempt == 1:
            await asyncio.Event().wait()


async def main() -> None:
    """Serve until the standard input ends."""
    # As `AgentWorker.run`, which has a process of its own.
    gc.collect()
    gc.freeze()
    url, lease_s = sys.argv[1], float(sys.argv[2])
    handlers: dict[str, Handler] = {
        "noop": noop,
        "three": three,
        "paused": paused,
        "reviewed": reviewed,
        "held": Holding(url),
    }
    names = ("archive_url", "archive_share")
    settings = make_settings(
        url, namespace=NAMESPACE, **dict(zip(names, sys.argv[3:], strict=False))
    )
    worker = AgentWorker(handlers, settings, queue=QUEUE, max_tasks=SLOTS, lease_s=lease_s)
    serving = asyncio.create_task(worker.serve(handle_signals=False))
    print(json.dumps({"ready": sorted(handlers), "pid": os.getpid()}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    serving.cancel()
    await asyncio.wait({serving})


if __name__ == "__main__":
    asyncio.run(main())
