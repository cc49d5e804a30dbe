"""Fill in the forms of pauses, wrongly and well; print what became of each try."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

from redis_state import RedisStateStore
from redis_state.errors import InvalidDecision, TokenResolved
from redis_state.worker import TaskClient

WRONG: list[Any] = [
    None,
    "secret",
    {},
    {"amount": 101, "by": "secret"},
    {"amount": "7", "by": "secret"},
    {"amount": 7, "by": "secret", "secret": 1},
]


async def main(argument: dict[str, Any]) -> dict[str, Any]:
    """Give each pause all wrong values and, unless told otherwise, a right one in between."""
    name: str = argument["name"]
    chance = random.Random(name)
    found: dict[str, Any] = {"won": {}, "lost": {}, "refused": [], "late": 0}
    options = {"namespace": argument["namespace"]}
    async with (
        RedisStateStore.from_url(argument["url"], **options) as store,
        TaskClient(store, queue=argument["queue"]) as client,
    ):

        async def fill(token: str, value: Any, *, right: bool) -> None:
            try:
                await client.approve(token, value, actor=name)
            except InvalidDecision as error:
                found["refused"].append(str(error))
            except TokenResolved as error:
                if right:
                    found["lost"][token] = [error.actor, error.decision["value"]]
                else:
                    found["late"] += 1
            else:
                found["won"][token] = [name, value]

        async def fill_all(token: str) -> None:
            tries = [(value, False) for value in WRONG]
            if argument["right"]:
                tries.append(({"amount": chance.randrange(1, 101), "by": name}, True))
            chance.shuffle(tries)
            await asyncio.gather(*(fill(token, value, right=right) for value, right in tries))

        await asyncio.gather(*map(fill_all, argument["tokens"]))
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
