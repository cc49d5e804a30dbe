"""Load planner pauses by their tokens, many callers at once; print who won which."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable, OutcomeUnknown
from redis_state.primitives.token import new_claim
from tests.chaos.support.gate import wait_at
from tests.chaos.support.trial import Event, How

_TOKENS_AT_ONCE = 16


async def main(argument: dict[str, Any]) -> dict[str, Any]:
    """Have ``callers`` callers load each token; all processes go through them in one order."""
    wins: dict[str, int] = {}
    events: list[Event] = []

    async def load(store: RedisStateStore, number: int) -> None:
        token, claim = f"token-{number}", new_claim()
        # Who is not answered asks again under the same claim: it may have won.
        how: How | None = None
        while how != "ok":
            began = time.monotonic()
            try:
                state = await store.load_planner_state(token, idempotency_key=claim)
            except OutcomeUnknown:
                how = "unknown"
            except BackendUnavailable:
                how = "fail"
            else:
                how = "ok"
                assert state in (None, {"token": token}), "somebody else's reply"
                wins[token] = wins.get(token, 0) + (state is not None)
            events.append(("load", how, began, time.monotonic()))

    options = {"namespace": argument["namespace"]}
    async with RedisStateStore.from_url(argument["url"], **options) as store:
        await store.load_planner_state("none")
        await wait_at(Path(argument["folder"]), argument["name"])
        for first in range(0, argument["tokens"], _TOKENS_AT_ONCE):
            some = range(first, min(first + _TOKENS_AT_ONCE, argument["tokens"]))
            calls = [load(store, number) for number in some for _ in range(argument["callers"])]
            await asyncio.gather(*calls)
    return {"wins": {token: count for token, count in wins.items() if count}, "events": events}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
