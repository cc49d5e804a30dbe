"""Cancel calls at any moment of theirs; print how the others were answered."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any
from uuid import uuid4

from redis_state import RedisStateStore
from tests.chaos.support.trial import Event

_AT_ONCE = 200


class Storm:
    """Calls of which each knows its answer; most are cancelled before it comes."""

    def __init__(self, store: RedisStateStore, seed: int) -> None:
        self.events: list[Event] = []
        self.errors: list[str] = []
        self.cancelled = 0
        self.mismatched = 0
        self._store = store
        self._chance = random.Random(seed)
        self._me = uuid4().hex

    async def cancel(self, wanted: int) -> None:
        """Cancel so many calls."""
        number = 0
        while self.cancelled < wanted:
            calls = list[asyncio.Task[None]]()
            for _ in range(_AT_ONCE):
                number += 1
                kind = self._echo if self._chance.random() < 0.5 else self._remember
                calls.append(asyncio.create_task(kind(f"{self._me}-{number}")))
            for call in calls:
                # At once, in the next turns of the loop, or when replies have come in.
                for _ in range(self._chance.choice((0, 0, 0, 1, 1, 2, 3))):
                    await asyncio.sleep(0)
                if self._chance.random() < 0.7:
                    call.cancel()
            done = await asyncio.gather(*calls, return_exceptions=True)
            self.cancelled += sum(isinstance(end, asyncio.CancelledError) for end in done)
            failed = [end for end in done if isinstance(end, Exception)]
            self.errors += [f"{type(error).__name__}: {error}" for error in failed]

    async def _echo(self, stated: str) -> None:
        began = time.monotonic()
        sender = self._store.transport.sender
        answer: bytes = await sender.send("ECHO", stated, repeatable=True)
        self._answered("echo", answer.decode() == stated, began)

    async def _remember(self, stated: str) -> None:
        began = time.monotonic()
        await self._store.save_planner_state(stated, {"said": stated})
        self._answered(
            "consume", await self._store.load_planner_state(stated) == {"said": stated}, began
        )

    def _answered(self, operation: str, right: bool, began: float) -> None:  # noqa: FBT001
        self.mismatched += not right
        self.events.append((operation, "ok", began, time.monotonic()))


async def main(argument: dict[str, Any]) -> dict[str, Any]:
    """Cancel so many calls of one store, then look at what is left of them."""
    options = {"namespace": argument["namespace"]}
    async with RedisStateStore.from_url(argument["url"], **options) as store:
        storm = Storm(store, argument["seed"])
        await storm.cancel(argument["cancelled"])
        sender = store.transport.sender
        await sender.drain(10)
        return {
            "events": storm.events,
            "errors": storm.errors,
            "cancelled": storm.cancelled,
            "mismatched": storm.mismatched,
            "servers": len(await store.transport.each_server()),
            "connections": sender.connections,
            "pending": sender.pending,
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
