"""A worker of the pool that notes when things reach it: ``python -m benchmarks.pool_worker``."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time

from redis_state import Settings
from redis_state.settings import make_settings
from redis_state.worker import AgentWorker, TaskContext

QUEUE = "benchmarks:tasks"


async def started(context: TaskContext) -> float:
    """Return when the first instruction ran."""
    del context
    return time.monotonic()


async def steered(context: TaskContext) -> float:
    """Return when the first steering event arrived."""
    await context.progress("waiting")
    await context.inbox.wait()
    return time.monotonic()


async def paused(context: TaskContext) -> float:
    """Pause, and return when the decision was in hand."""
    await context.pause("approval")
    return time.monotonic()


async def main() -> None:
    """Serve until the standard input ends."""
    # As `AgentWorker.run`, which has a process of its own.
    gc.collect()
    gc.freeze()
    settings: Settings = make_settings(sys.argv[1], namespace="pool-bench")
    handlers = {"started": started, "steered": steered, "paused": paused}
    worker = AgentWorker(handlers, settings=settings, queue=QUEUE)
    serving = asyncio.create_task(worker.serve(handle_signals=False))
    print(json.dumps({"ready": sorted(handlers)}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    serving.cancel()
    await asyncio.wait({serving})


if __name__ == "__main__":
    asyncio.run(main())
