"""Put items into a namespace of its own and delete each third, and print each that is done, until
killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from redis_state.integrations.langgraph import RedisStore


async def main(argument: dict[str, Any]) -> None:
    """Write and acknowledge, one item after the other."""
    name = argument["name"]
    async with RedisStore.from_url(argument["url"], namespace=argument["namespace"]) as items:
        for number in range(100_000):
            space = ("users", name, f"{number % 5}")
            await items.aput(space, f"{number}", {"by": name, "number": number})
            if number % 3 == 0:
                await items.adelete(space, f"{number}")
            print(number, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
