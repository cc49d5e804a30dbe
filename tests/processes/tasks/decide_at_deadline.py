"""Decide pauses in the millisecond of their deadline: approve, reject, or let them expire."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from redis_state import RedisStateStore
from redis_state.errors import TokenResolved, TokenUnknown
from redis_state.models import TaskState
from redis_state.primitives.token import new_claim, raise_unless_won
from redis_state.worker.tasks.waitpoints.deciding import PauseDecisions, expire_pauses
from tests.chaos.support.gate import wait_at
from tests.chaos.support.trial import Event, How

# Task, token, and its deadline in ms of the server's clock.
Due = tuple[str, str, int]


class Decider:
    """One of the three who come at the same moment."""

    def __init__(self, store: RedisStateStore, argument: dict[str, Any]) -> None:
        self.won: list[str] = []
        self.came: dict[str, tuple[float, float]] = {}
        self.events: list[Event] = []
        self._store = store
        self._session: str = argument["session"]
        self._role: str = argument["role"]
        self._chance = random.Random(self._role)
        self._ahead_s = 0.0

    async def set_clock(self) -> None:
        """Learn how far the server's clock is ahead of ours: the closest of several looks."""
        looks: list[tuple[float, float]] = []
        for _ in range(20):
            began = time.monotonic()
            seconds, micros = await self._store.transport.sender.send("TIME", repeatable=True)
            ended = time.monotonic()
            middle = (began + ended) / 2
            looks.append((ended - began, int(seconds) + int(micros) / 1e6 - middle))
        self._ahead_s = min(looks)[1]

    async def decide(self, task: str, token: str, deadline_ms: int) -> None:
        """Come at the deadline, a little sooner or later; note whether we were first."""
        state = await self._store.tasks.load(self._session, task)
        assert state is not None
        early_s = 0.0005 if self._role == "expire" else self._chance.uniform(-0.0005, 0.004)
        when = deadline_ms / 1000 - self._ahead_s - early_s
        await asyncio.sleep(max(0.0, when - time.monotonic()))
        began = time.monotonic()
        how: How = "ok"
        if self._role == "expire":
            await self._expire(task)
        elif await self._say(state, token):
            self.won.append(task)
        else:
            how = "fail"
        ended = time.monotonic()
        self.came[task] = (began, ended)
        self.events.append((self._role, how, began, ended))

    async def _say(self, state: TaskState, token: str) -> bool:
        """Send the deciding call alone: the looks before it have been taken."""
        key = self._store.base.keys.session_token(token)
        assert key is not None
        reply = await PauseDecisions(self._store)._decide(
            state,
            "pause:x#1",
            key,
            {"approved": self._role == "approve", "value": None},
            recorded={"name": "x", "asks": None},
            actor=self._role,
            claim=new_claim(),
        )
        try:
            raise_unless_won(reply)
        except (TokenResolved, TokenUnknown):
            return False
        return True

    async def _expire(self, task: str) -> None:
        # Whether it was us is for the notes to say: we are told only that nothing is left to do.
        while (left_ms := await expire_pauses(self._store, self._session, task)) is not None:
            assert left_ms < 1000


async def main(argument: dict[str, Any]) -> dict[str, Any]:
    """Come to the deadline of each pause."""
    options = {"namespace": argument["namespace"]}
    async with RedisStateStore.from_url(argument["url"], **options) as store:
        decider = Decider(store, argument)
        await decider.set_clock()
        folder = Path(argument["folder"])
        due: list[Due] = json.loads(await wait_at(folder, argument["role"]))
        await asyncio.gather(*(decider.decide(*each) for each in due))
    return {"won": decider.won, "came": decider.came, "events": decider.events}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
