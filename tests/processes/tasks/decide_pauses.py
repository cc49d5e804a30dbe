"""Decide a task's pauses, each in an order of one's own; print which of them were ours."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

from redis_state import RedisStateStore
from redis_state.errors import TokenResolved
from redis_state.worker import TaskClient


async def main(argument: dict[str, Any]) -> dict[str, Any]:
    """Approve or reject every token, at random; tell what was decided and who was first else."""
    chance = random.Random(argument["name"])
    tokens: list[str] = argument["tokens"]
    chance.shuffle(tokens)
    won: dict[str, list[Any]] = {}
    lost: dict[str, list[Any]] = {}
    options = {"namespace": argument["namespace"]}
    async with (
        RedisStateStore.from_url(argument["url"], **options) as store,
        TaskClient(store, queue=argument["queue"]) as client,
    ):
        for token in tokens:
            approved, value = chance.random() < 0.5, chance.randrange(1000)
            try:
                await client.resolve(token, approved=approved, value=value, actor=argument["name"])
            except TokenResolved as error:
                lost[token] = [error.decision["approved"], error.decision["value"], error.actor]
            else:
                won[token] = [approved, value, argument["name"]]
    return {"won": won, "lost": lost}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
