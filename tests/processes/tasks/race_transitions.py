"""Move tasks that other processes move too; print every move that was won and every refusal."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

from redis_state import InvalidTransition, RedisStateStore
from redis_state.models import A2A


async def main(argument: dict[str, Any]) -> dict[str, list[list[str]]]:
    """Say of each task, in an order of this process's own, all that may become of it."""
    stated: dict[str, list[list[str]]] = {"won": [], "refused": []}
    chance = random.Random(argument["name"])
    async with RedisStateStore.from_url(argument["url"], namespace=argument["namespace"]) as store:

        async def move(task: str, word: str) -> None:
            try:
                await store.transitions.move("s", task, word, words=A2A)
            except InvalidTransition as refused:
                stated["refused"].append([task, refused.current, refused.wanted])
            else:
                stated["won"].append([task, word])

        tasks, words = argument["tasks"], argument["words"]
        for _ in range(argument["rounds"]):
            # Each task in an order of its own: not all may be rejected by the first word of all.
            orders = [chance.sample(words, len(words)) for _ in tasks]
            for step in zip(*orders, strict=True):
                await asyncio.gather(*map(move, tasks, step))
    return stated


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
