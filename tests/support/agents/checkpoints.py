"""Checkpoints that are put below a graph, and listed."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import empty_checkpoint

from redis_state.integrations.langgraph import RedisSaver
from tests.support.agents.graphs import config_of


async def put(
    saver: RedisSaver, thread: str, namespace: str = "", *, parent: Any = None, **values: Any
) -> Any:
    """Put a checkpoint of values; return its config."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = {name: saver.get_next_version(None, None) for name in values}
    config = parent or config_of(thread, checkpoint_ns=namespace)
    return await saver.aput(
        config, checkpoint, {"source": "loop", "step": 1}, checkpoint["channel_versions"]
    )


async def listed(saver: RedisSaver, config: Any, **options: Any) -> list[Any]:
    """List checkpoints."""
    return [found async for found in saver.alist(config, **options)]
