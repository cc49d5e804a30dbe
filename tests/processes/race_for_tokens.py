"""Load planner pauses by their tokens, many callers at once; print who won which."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable, OutcomeUnknown
from tests.chaos.trial import Event, How

_TOKENS_AT_ONCE = 16


async def main(argument: dict[str, Any]) -> dict[str, Any]:
    """Have ``callers`` callers load each token; all processes go through them in one order."""
    wins: dict[str, int] = {}
    events: list[Event] = []

    async def load(store: RedisStateStore, number: int) -> None:
        token, began = f"token-{number}", time.monotonic()
        how: How = "ok"
        try:
            state = await store.load_planner_state(token)
        except OutcomeUnknown:
            how, state = "unknown", None
        except BackendUnavailable:
            how, state = "fail", None
        if state is not None:
            assert state == {"token": token}, "somebody else's reply"
            wins[token] = wins.get(token, 0) + 1
        events.append(("load", how, began, time.monotonic()))

    options = {"namespace": argument["namespace"]}
    async with RedisStateStore.from_url(argument["url"], **options) as store:
        await store.load_planner_state("none")
        await asyncio.sleep(max(0.0, argument["begin"] - time.monotonic()))
        for first in range(0, argument["tokens"], _TOKENS_AT_ONCE):
            some = range(first, min(first + _TOKENS_AT_ONCE, argument["tokens"]))
            calls = [load(store, number) for number in some for _ in range(argument["callers"])]
            await asyncio.gather(*calls)
    return {"wins": wins, "events": events}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
