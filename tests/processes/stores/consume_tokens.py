"""Load planner pauses by their tokens, many callers at once; print which ones were won."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from redis_state import RedisStateStore


async def main(argument: dict[str, Any]) -> dict[str, int]:
    """Have ``callers`` callers load each token once; count the wins per token."""
    wins: dict[str, int] = {}
    options = {"namespace": argument["namespace"]}
    async with RedisStateStore.from_url(argument["url"], **options) as store:
        for token in argument["tokens"]:
            calls = [store.load_planner_state(token) for _ in range(argument["callers"])]
            loaded = await asyncio.gather(*calls)
            won = sum(state == {"token": token} for state in loaded)
            assert won == sum(state is not None for state in loaded)
            if won:
                wins[token] = won
    return wins


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
