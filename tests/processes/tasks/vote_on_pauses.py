"""Vote on a task's pauses as several actors, in an order of one's own; print the outcome."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

from redis_state import RedisStateStore
from redis_state.errors import AlreadyVoted, TokenResolved
from redis_state.worker import TaskClient


async def main(argument: dict[str, Any]) -> dict[str, Any]:
    """Vote once for each actor on every token, then once more, otherwise."""
    chance = random.Random(argument["actors"][0])
    tokens: list[str] = argument["tokens"]
    options = {"namespace": argument["namespace"]}
    taken: dict[str, list[Any]] = {token: [] for token in tokens}
    lost: dict[str, list[Any]] = {token: [] for token in tokens}
    async with (
        RedisStateStore.from_url(argument["url"], **options) as store,
        TaskClient(store, queue=argument["queue"]) as client,
    ):

        async def vote(token: str, actor: str) -> None:
            approved, value = chance.random() < 0.5, chance.randrange(1000)
            try:
                await client.resolve(token, approved=approved, value=value, actor=actor)
            except TokenResolved as error:
                lost[token].append([error.actor, error.decision["approved"]])
                return
            taken[token].append([actor, approved, value])
            try:
                await client.resolve(token, approved=not approved, value=value, actor=actor)
            except (AlreadyVoted, TokenResolved):
                return
            raise AssertionError(f"{actor} has voted twice")

        for token in random.Random(argument["actors"][0]).sample(tokens, len(tokens)):
            await asyncio.gather(*(vote(token, actor) for actor in argument["actors"]))
    return {"taken": taken, "lost": lost}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
