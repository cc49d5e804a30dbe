"""Put checkpoints all the time, on each other and on older ones, and compare what is read.

Prints a line once it has begun, and on SIGTERM the numbers of puts and of what it read.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint

from redis_state.integrations.langgraph import RedisSaver

_KEPT = 40


async def main(argument: dict[str, Any]) -> None:
    """Write and read until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    chain: list[tuple[Any, dict[str, Any], dict[str, Any]]] = []
    puts = read = dropped = 0
    start: Any = {"configurable": {"thread_id": argument["thread"], "checkpoint_ns": ""}}
    async with RedisSaver.from_url(argument["url"], namespace=argument["namespace"]) as saver:
        while not ended.is_set():
            if not chain:
                version = saver.get_next_version(None, None)
                chain.append((start, {"text": [], "stays": "s" * 600}, {"stays": version}))
            # Now and then a branch: from what may have been dropped.
            config, values, versions = random.choice(chain) if puts % 7 == 6 else chain[-1]
            text = [*values["text"], f"{argument['name']} {puts} " * 20]
            checkpoint = empty_checkpoint()
            values = {**values, "text": text if len(text) < _KEPT else []}
            put = {"text": saver.get_next_version(versions.get("text"), None)}
            new = put if config is not start else {**versions, **put}
            versions = {**versions, **put}
            checkpoint["channel_values"], checkpoint["channel_versions"] = values, versions
            about: Any = {"source": "loop", "step": puts, "run_id": argument["name"]}
            config = await saver.aput(config, checkpoint, about, new)
            chain = [*chain[-5:], (config, values, versions)]
            puts += 1
            for at, wanted, _ in chain[-1:] if puts % 10 else chain:
                if at is not start:
                    found = await saver.aget_tuple(at)
                    dropped += found is None
                    if found is not None and found.checkpoint["channel_values"] != wanted:
                        raise AssertionError(f"{at} has other values")
                    read += 1
            if puts == 3:
                print("begun", flush=True)  # noqa: T201
    print(json.dumps({"puts": puts, "read": read, "dropped": dropped}), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
