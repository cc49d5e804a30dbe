"""langgraph-checkpoint-redis. Needs its environment, and a server with search and JSON."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.measure import Operation
from benchmarks.samples import CONTEXT, LOADED


async def prepare(url: str) -> dict[str, Operation]:
    """Give the operations of its checkpointer: a checkpoint is what it saves and loads."""
    base: Any = importlib.import_module("langgraph.checkpoint.base")
    saver_type: Any = importlib.import_module("langgraph.checkpoint.redis.aio").AsyncRedisSaver
    # Its default of 100 connections overflows at 64 concurrent reads.
    saver = saver_type(redis_url=url, connection_args={"max_connections": 1000})
    await saver.asetup()

    def thread(number: int) -> dict[str, Any]:
        return {"configurable": {"thread_id": f"thread-{number}", "checkpoint_ns": ""}}

    async def save(number: int) -> None:
        checkpoint = base.empty_checkpoint()
        checkpoint["channel_values"] = CONTEXT
        await saver.aput(
            thread(number), checkpoint, {"source": "loop", "step": number, "writes": {}}, {}
        )

    async def load(number: int) -> None:
        if await saver.aget_tuple(thread(number % LOADED)) is None:
            raise LookupError("nothing was saved before")

    return {"load": load, "save": save}
