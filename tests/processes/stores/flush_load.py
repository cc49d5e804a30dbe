"""Callers of one store who check every reply against what they alone wrote; print what happened.

Meanwhile somebody flushes the server's scripts.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any
from uuid import uuid4

from redis_state import RedisStateStore
from redis_state.models import StateUpdate, UpdateType


class Caller:
    """One caller, with a session of its own: it knows what each reply has to be."""

    def __init__(self, store: RedisStateStore) -> None:
        self.events: list[list[Any]] = []
        self.errors: list[str] = []
        self.mismatched = 0
        self._store = store
        self._session = uuid4().hex
        self._round = 0

    async def call_until(self, end: float) -> None:
        """Call again and again."""
        while time.monotonic() < end:
            self._round += 1
            for call in (self._append, self._consume, self._remember):
                began, how = time.monotonic(), "ok"
                try:
                    right = await call()
                except Exception as error:  # noqa: BLE001 - any of them is what is looked for
                    self.errors.append(f"{type(error).__name__}: {error}")
                    right, how = True, "fail"
                self.mismatched += not right
                self.events.append([call.__name__, how, began, time.monotonic()])

    async def _append(self) -> bool:
        update = StateUpdate(
            session_id=self._session,
            task_id="t",
            trace_id=None,
            update_type=UpdateType.PROGRESS,
            content=self._round,
        )
        await self._store.save_update(update)
        found = await self._store.list_updates(self._session, since_id=update.update_id)
        return found == []

    async def _consume(self) -> bool:
        token = f"{self._session}-{self._round}"
        payload = {"token": token}
        await self._store.save_planner_state(token, payload)
        return await self._store.load_planner_state(token) == payload

    async def _remember(self) -> bool:
        stated = {"session": self._session, "round": self._round}
        await self._store.save_memory_state(self._session, stated)
        return await self._store.load_memory_state(self._session) == stated


async def main(argument: dict[str, Any]) -> dict[str, Any]:
    """Have so many callers call for so long."""
    options = {"namespace": argument["namespace"]}
    async with RedisStateStore.from_url(argument["url"], **options) as store:
        callers = [Caller(store) for _ in range(argument["callers"])]
        end = time.monotonic() + argument["seconds"]
        await asyncio.gather(*(caller.call_until(end) for caller in callers))
    return {
        "events": [event for caller in callers for event in caller.events],
        "errors": [error for caller in callers for error in caller.errors],
        "mismatched": sum(caller.mismatched for caller in callers),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
