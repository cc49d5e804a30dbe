"""Processes that die at each round trip of a pause that names who decides it; others go on.

Like `die_at_round_trip`: this one forks for each part. What each caller does is repeated by the
recovery as that caller would: the same vote, the same delegation.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.serialization import codec
from redis_state.testing import eventually, leaked_keys
from redis_state.worker import Escalate, TaskClient, TaskContext
from redis_state.worker.pool import worker as runner
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.sweeper import Sweeper
from tests.processes.deaths.die_at_round_trip import LEASE_S
from tests.processes.deaths.dying import COUNTED, Death, die_at_each_trip, fork, join
from tests.support.processes.pools import SESSION, agent, client_of, queue_of, serving

TASK = "task"
PHASES = ("open", "vote", "delegate", "escalate", "decide")
_AFTER = timedelta(milliseconds=1)


async def ask(ctx: TaskContext) -> list[Any]:
    """Ask two of those who decide, of whom one comes later."""
    escalate = [Escalate(_AFTER, ("lead",))]
    pause = await ctx.open_pause(
        "go", {"n": 1}, schema=int, approvals=2, of=("ann", "ben"), escalate=escalate
    )
    decision = await ctx.wait_for(pause)
    votes = [[vote.actor, vote.value] for vote in decision.votes]
    return [decision.approved, decision.actor, decision.value, votes]


@dataclass
class Case:
    """One death: in which phase, at which round trip."""

    settings: Settings
    phase: str
    edge: str
    at: int
    token: str = ""

    async def prepare(self, _: int) -> str:
        """Bring the task to where the phase begins; return the pause's token."""
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            await client.submit("ask", session_id=SESSION, task_id=TASK)
            if self.phase == "open":
                return ""
            async with self._serving():
                self.token = await self._paused(client)
                if self.phase == "decide":
                    await self._until_open(client)
            return self.token

    async def die(self, stated: int) -> None:
        """Go through the phase, and die on the way. To return is to survive."""
        Death(self.at, self.edge, stated).plant()
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            if self.phase == "open":
                await self._run()
            elif self.phase == "escalate":
                await self._sweep(store)
            else:
                COUNTED.set(True)
                await self._acts(client)[self.phase]()

    async def recover(self, _: int) -> list[str]:
        """Have a healthy worker find what is left, and all callers repeat themselves."""
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            async with self._serving():
                self.token = self.token or await self._paused(client)
                await self._until_open(client)
                await self._acts(client)["decide"]()
                ended = await client.wait(SESSION, TASK, timeout_s=60)
            updates = await store.list_updates(SESSION, task_id=TASK)
        votes = [["ann", 1], ["lead", 2]]
        right = ended.result == [True, "lead", 2, votes]
        problems = [] if right else [f"{ended.status}: {ended.result} {ended.error}"]
        reported = [one.content for one in updates if one.update_type.value == "NOTIFICATION"]
        wanted: list[dict[str, Any]] = [
            {"pause": "go", "voted": True, "actor": "ann"},
            {"pause": "go", "delegated_by": "ben", "to": "dan"},
            {"pause": "go", "escalated": 1, "to": ["lead"], "replaces": False},
        ]
        if sorted(map(str, reported)) != sorted(map(str, wanted)):
            problems.append(f"told {reported}")
        opened = [one for one in updates if one.update_type.value == "CHECKPOINT"]
        resumed = [one for one in updates if "approved" in (one.content or {})]
        problems += [] if (len(opened), len(resumed)) == (1, 1) else ["told twice, or never"]
        problems += [f"no lifetime: {key}" for key in await leaked_keys(self.settings)]
        return problems

    def _acts(self, client: TaskClient) -> Mapping[str, Callable[[], Awaitable[Any]]]:
        token = self.token
        return {
            "vote": lambda: client.approve(token, 1, actor="ann", idempotency_key="ann's"),
            "delegate": lambda: client.delegate(token, "dan", actor="ben"),
            "decide": lambda: client.approve(token, 2, actor="lead", idempotency_key="lead's"),
        }

    async def _until_open(self, client: TaskClient) -> None:
        """Do what comes before the deciding vote, once more if it was done."""
        if await client.pause(self.token) is None:
            return  # that was the deciding vote, after all others
        for act in ("vote", "delegate"):
            await self._acts(client)[act]()

        async def escalated() -> bool:
            pause = await client.pause(self.token)
            return pause is not None and pause.may_decide("lead")

        await eventually(escalated, "it has escalated", timeout_s=60)

    async def _paused(self, client: TaskClient) -> str:
        async def found() -> str | None:
            pauses = await client.pauses(SESSION)
            state = await client.get(SESSION, TASK)
            waits = state is not None and state.status is TaskStatus.PAUSED
            return pauses[0].token if pauses and waits else None

        token = await eventually(found, "it is paused", timeout_s=60)
        assert token is not None
        return token

    async def _run(self) -> None:
        over = asyncio.Event()
        run_task: Any = getattr(runner, "run_task")  # noqa: B009 - it is another module's

        async def counted(*arguments: Any, **options: Any) -> None:
            COUNTED.set(True)
            await run_task(*arguments, **options)
            over.set()

        setattr(runner, "run_task", counted)  # noqa: B010 - as above
        async with self._serving(), asyncio.timeout(60):
            await over.wait()
            os._exit(0)

    async def _sweep(self, store: RedisStateStore) -> None:
        queue = Queue(store, name=queue_of(self.settings))
        entry = codec.encode(["pause", await self._pause_id(store)])
        await WatchList(store.base.scripts, store.base.keys).put(entry, delay_ms=0, sooner=True)
        COUNTED.set(True)
        report = await Sweeper(store, queue).run_once()
        COUNTED.set(False)
        assert report.escalated == 1
        await queue.aclose()

    async def _pause_id(self, store: RedisStateStore) -> str | None:
        async with client_of(store) as client:
            pause = await client.pause(self.token)
            return None if pause is None else pause.pause_id

    def _serving(self) -> Any:
        return serving(agent(self.settings, {"ask": ask}, lease_s=LEASE_S))


def main(argument: dict[str, Any]) -> list[dict[str, Any]]:
    """Die at each place of one phase and edge; return what was found."""

    def case_at(at: int, name: str) -> Case:
        settings = Settings(url=SecretStr(argument["url"]), namespace=name)
        case = Case(settings, argument["phase"], argument["edge"], at)
        status, token = join(*fork(case.prepare))
        assert status == 0, token
        return replace(case, token=token or "")

    return die_at_each_trip(argument, case_at)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
