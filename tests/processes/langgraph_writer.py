"""Put checkpoints and writes into a thread, and print each id that is stored, until killed."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint

from redis_state.integrations.langgraph import RedisSaver


async def main(argument: dict[str, Any]) -> None:
    """Write and acknowledge, one checkpoint after the other."""
    place = argument["name"]
    config: Any = {"configurable": {"thread_id": argument["thread"], "checkpoint_ns": place}}
    version: Any = None
    async with RedisSaver.from_url(argument["url"], namespace=argument["namespace"]) as saver:
        for number in range(100_000):
            version = saver.get_next_version(version, None)
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"n": number}
            checkpoint["channel_versions"] = {"n": version}
            config = await saver.aput(
                config, checkpoint, {"source": "loop", "step": number}, {"n": version}
            )
            await saver.aput_writes(config, [("n", number), ("m", place)], f"task {number}")
            print(config["configurable"]["checkpoint_id"], flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
