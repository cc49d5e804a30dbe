"""Add turns to one session's memory from a process of its own; print which were acknowledged."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from redis_state import RedisStateStore
from tests.support.memory import Summarizer, memory_of, turn


class Dying(Summarizer):
    """Summarise and die, before anybody has heard of it."""

    async def __call__(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Die when asked."""
        print(json.dumps(payload["previous_summary"]), flush=True)  # noqa: T201
        os.kill(os.getpid(), signal.SIGKILL)
        return await super().__call__(payload)


async def main(argument: dict[str, Any]) -> Any:
    """Add turns; ``dies`` says at which point not to go on."""
    dies = argument.get("dies")
    summarizer = Dying() if dies == "summarising" else Summarizer()
    options = {"namespace": argument["namespace"]}
    async with RedisStateStore.from_url(argument["url"], **options) as store:
        memory = memory_of(store, summarizer=summarizer)
        for number in range(argument["turns"]):
            await memory.add_turn(turn(f"{argument['name']}-{number}"))
            if dies == "any time":
                print(json.dumps(number), flush=True)  # noqa: T201
        await memory.flush()
        await memory.aclose()
        return {"asked": len(summarizer.requested)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
