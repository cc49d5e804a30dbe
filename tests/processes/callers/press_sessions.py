"""Write to busy sessions and gather inputs until death; write down each call before and after.

What a killed caller has asked and has no answer to, its successor asks again, under the same id.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from redis_state import RedisStateStore
from redis_state.errors import TaskInProgress
from redis_state.worker import TaskClient
from tests.chaos.support.notes import note

_POLICIES = ("enqueue", "reject", "interrupt", "replace")
_SESSIONS = 3
# A session is written to for so long: its log of updates must be kept whole.
_SESSION_S = 15
_WAITING = 12
_MOST = 4


class Caller:
    """One process of several that write to the same sessions."""

    def __init__(self, client: TaskClient, argument: dict[str, Any]) -> None:
        self._client = client
        self._folder = Path(argument["folder"])
        self._name = argument["name"]
        self._queue = argument["queue"]
        self._chance = random.Random(self._name)
        self._count = 0

    async def press(self, again: list[list[str]]) -> None:
        """Ask again what has no answer, and then for ever."""
        for asked in again:
            await self._ask(*asked)
        while True:
            if (await self._client.queues.get(self._queue)).waiting >= _WAITING:
                await asyncio.sleep(0.05)
                continue
            block = int(time.time()) // _SESSION_S
            busy = [self._new("submit", f"s{n}.{block}") for n in range(_SESSIONS)]
            gathered = [self._new(kind, f"g.{block}") for kind in ("batch", "debounce", "batch")]
            await asyncio.gather(*(self._ask(*asked) for asked in busy + gathered))

    def _new(self, kind: str, session: str) -> tuple[str, str, str, str]:
        self._count += 1
        policy = self._chance.choice(_POLICIES) if kind == "submit" else ""
        return kind, f"{self._name}-{self._count}", session, policy

    async def _ask(self, kind: str, name: str, session: str, policy: str) -> None:
        note(self._folder, "calls", "asked", kind, name, session, policy)
        try:
            task = await getattr(self, f"_{kind}")(name, session, policy)
        except TaskInProgress as busy:
            note(self._folder, "calls", "refused", name, busy.task_id)
        else:
            note(self._folder, "calls", "made", name, task)

    async def _submit(self, name: str, session: str, policy: Any) -> str:
        return await self._client.submit(
            "work", session, session_id=session, task_id=name, on_busy=policy
        )

    async def _batch(self, name: str, session: str, _policy: str) -> str:
        return await self._client.batch(
            *("gather", name),
            session_id=session,
            item_id=name,
            most=_MOST,
            after=timedelta(milliseconds=200),
        )

    async def _debounce(self, name: str, session: str, _policy: str) -> str:
        return await self._client.debounce(
            *("gather", name),
            session_id=session,
            wait=timedelta(milliseconds=60),
            at_most=timedelta(milliseconds=300),
        )


async def main(argument: dict[str, Any]) -> None:
    """Press until death."""
    options = {"namespace": argument["namespace"]}
    async with (
        RedisStateStore.from_url(argument["url"], **options) as store,
        TaskClient(store, queue=argument["queue"]) as client,
    ):
        await Caller(client, argument).press(argument.get("again", []))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
