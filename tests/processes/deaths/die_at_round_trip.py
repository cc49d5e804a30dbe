"""Processes that kill themselves at each round trip in turn, and others who find what they left.

This one never runs an event loop. It forks for each part: one prepares a task, one begins a phase
of it and dies at its n-th round trip, one recovers. Every death has a namespace of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskState, TaskStatus
from redis_state.testing import eventually, leaked_keys
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.pool import worker as runner
from tests.chaos.support.crew import ends, recorded, taken_twice, trails, wrong_move
from tests.chaos.support.notes import note
from tests.processes.deaths.dying import AT_ONCE, COUNTED, Death, fork, join
from tests.support.processes.pools import SESSION, agent, client_of, serving

TASK = "task"
PHASES = ("submit", "begin", "resolve", "end", "retry")
LEASE_S = 0.5


@dataclass
class Case:
    """One death: in which phase, at which round trip, and what became of the task."""

    settings: Settings
    folder: Path
    phase: str
    edge: str
    at: int
    token: str = ""
    trip: str = ""

    async def prepare(self) -> str:
        """Bring the task to where the phase begins; return its token, if it has one by then."""
        if self.phase == "submit":
            return ""
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            await self._submit(client)
            if self.phase == "begin":
                return ""
            async with self._serving():
                token = await self._paused(client)
            if self.phase == "end":
                await client.approve(token, idempotency_key="first")
            if self.phase == "retry":
                assert await client.cancel(SESSION, TASK)
            return token

    async def die(self, stated: int) -> None:
        """Go through the phase, and die on the way. To return is to survive."""
        Death(self.at, self.edge, stated).plant()
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            calls = {"submit": self._submit, "resolve": self._approve, "retry": self._retry}
            if self.phase in calls:
                COUNTED.set(True)
                await calls[self.phase](client)
                return
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

    async def recover(self) -> dict[str, Any]:
        """Have a healthy worker find what is left; tell what is wrong and when it ended."""
        began = time.monotonic()
        problems, ended = await self._recover()
        return {"problems": problems, "began": began, "ended": ended}

    async def _recover(self) -> tuple[list[str], float]:
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            before = await client.get(SESSION, TASK)
            problems = self._not_left_like_this(before, (await trails(store))[TASK])
            async with self._serving():
                if before is None:
                    # It was never acknowledged, and is not there: its caller asks again.
                    await self._submit(client)
                if before is not None and before.status is TaskStatus.CANCELLED:
                    await self._retry(client)
                ended = await self._to_the_end(client)
                ended_s = time.monotonic()
                problems += await self._index_problems(client)
            trail = self._trail((await trails(store))[TASK])
        problems += [f"wrong move: {move}"] if (move := wrong_move(trail)) else []
        problems += [] if ends(trail) == 1 else [f"ended {ends(trail)} times"]
        problems += (
            [] if ended.status is TaskStatus.COMPLETE else [f"{ended.status}: {ended.error}"]
        )
        facts = recorded(self.folder, "results")
        given = {step: result for _, step, result in facts}
        right = [given.get(0), True, given.get(1)]
        problems += [] if ended.result == right else [f"result {ended.result}, not {right}"]
        if taken_twice(facts) or taken_twice(recorded(self.folder, "effects")):
            problems.append("a step was taken for two")
        problems += [f"no lifetime: {key}" for key in await leaked_keys(self.settings)]
        return problems, ended_s

    def _not_left_like_this(self, state: TaskState | None, trail: list[Any]) -> list[str]:
        allowed = {
            "submit": (None, "PENDING"),
            "begin": ("PENDING", "RUNNING", "PAUSED"),
            "resolve": ("PAUSED", "PENDING"),
            "end": ("PENDING", "RUNNING", "COMPLETE"),
            "retry": ("CANCELLED", "PENDING"),
        }
        status = None if state is None else state.status.value
        problems = [] if status in allowed[self.phase] else [f"left {status}"]
        reported = trail[-1].status if trail else None
        # Whoever creates a task tells of it afterwards; all else is one step with its update.
        return problems + (
            [f"left {status}, told {reported}"] if reported not in (status, None) else []
        )

    def _trail(self, trail: list[Any]) -> list[Any]:
        """Leave out the life that was reopened."""
        ended = [at for at, told in enumerate(trail) if told.status == "CANCELLED"]
        return trail[ended[-1] + 1 :] if self.phase == "retry" and ended else trail

    async def _index_problems(self, client: TaskClient) -> list[str]:
        """Wait until the index lists the task and its end as they are, and nothing else."""
        wanted = dict.fromkeys(TaskStatus, 0) | {TaskStatus.COMPLETE: 1}
        since: dict[str, Any] = {"ended_after": datetime(2001, 1, 1, tzinfo=UTC)}

        async def right() -> bool:
            return await client.count() == await client.count(**since) == wanted

        await eventually(right, "a sweeper has made the index exact", timeout_s=60)
        problems: list[str] = []
        orders: list[dict[str, Any]] = [{}, since]
        for end in orders:
            found = (await client.find(session_id=SESSION, status="COMPLETE", **end)).tasks
            names = [(task.task_id, task.handler) for task in found]
            problems += [] if names == [(TASK, "ship")] else [f"found {names}"]
        return problems

    async def _retry(self, client: TaskClient) -> None:
        await client.retry(SESSION, TASK, idempotency_key="first")

    async def _submit(self, client: TaskClient) -> None:
        await client.submit("ship", session_id=SESSION, task_id=TASK)

    async def _approve(self, client: TaskClient) -> None:
        await client.approve(self.token, idempotency_key="first")

    async def _paused(self, client: TaskClient) -> str:
        async def found() -> str | None:
            state = await client.get(SESSION, TASK)
            waits = state is not None and state.status is TaskStatus.PAUSED
            pauses = await client.pauses(SESSION) if waits else []
            return pauses[0].token if pauses else None

        token = await eventually(found, "it is paused", timeout_s=60)
        assert token is not None
        return token

    async def _to_the_end(self, client: TaskClient) -> TaskState:
        """Wait for the end. Decide only what its own caller would: it asks again, or for the
        first time; once the decision is made nobody does anything.
        """

        async def over() -> TaskState | None:
            state = await client.get(SESSION, TASK)
            assert state is not None
            if state.status is TaskStatus.PAUSED:
                for pause in await client.pauses(SESSION):
                    assert pause.token is not None
                    await client.approve(pause.token, idempotency_key="first")
            return state if state.status.is_terminal else None

        state = await eventually(over, "it is over", timeout_s=60)
        assert state is not None
        return state

    def _serving(self) -> Any:
        worker = agent(self.settings, {"ship": partial(ship, self.folder)}, lease_s=LEASE_S)
        return serving(worker)


async def ship(folder: Path, ctx: TaskContext) -> list[Any]:
    """Do a step, ask, and do another one."""

    def effect(number: int, key: str) -> str:
        note(folder, "effects", TASK, number, key)
        return f"{number} of {os.getpid()} at {time.monotonic()}"

    async def step(number: int) -> str:
        name = f"step {number}"
        found: str = await ctx.step(name, effect, number, ctx.effect_id(name))
        note(folder, "results", TASK, number, found)
        return found

    charged = await step(0)
    decision = await ctx.approval("Ship it?")
    return [charged, decision.approved, await step(1)]


class Undertaker:
    """Bring about the deaths of one edge, and have what they leave recovered, some at once."""

    def __init__(self, argument: dict[str, Any]) -> None:
        self.results: list[dict[str, Any]] = []
        self._argument = argument
        self._recovering: list[tuple[Case, int, int]] = []

    def run(self) -> None:
        """Go through all phases."""
        for phase in PHASES:
            survivors = 0
            for at in self._places():
                survivors += not self._one(phase, at)
                # Twice: how many there are may differ by one, as renewals come in.
                if survivors == 2:
                    break
        while self._recovering:
            self._recovered()

    def _places(self) -> Iterator[int]:
        yield from range(self._argument["first"], 10_000, self._argument["stride"])

    def _one(self, phase: str, at: int) -> bool:
        edge = self._argument["edge"]
        name = f"{self._argument['namespace']}-{phase}-{edge}-{at}"
        folder = Path(self._argument["folder"]) / name
        folder.mkdir()
        url = SecretStr(self._argument["url"])
        case = Case(Settings(url=url, namespace=name), folder, phase, edge, at)
        status, token = join(*fork(lambda _: case.prepare()))
        assert status == 0, token
        case.token = token or ""
        status, stated = join(*fork(case.die))
        if status == 0:
            return False
        assert status == -signal.SIGKILL, stated
        case.trip = stated
        if len(self._recovering) == AT_ONCE:
            self._recovered()
        self._recovering.append((case, *fork(lambda _: case.recover())))
        return True

    def _recovered(self) -> None:
        case, pid, heard = self._recovering.pop(0)
        status, found = join(pid, heard)
        reported: dict[str, Any] = {"problems": found, "began": 0.0, "ended": 0.0}
        if status == 0:
            reported = found
        self.results.append(
            {
                "phase": case.phase,
                "edge": case.edge,
                "at": case.at,
                "trip": case.trip,
                **reported,
            }
        )


def main(argument: dict[str, Any]) -> list[dict[str, Any]]:
    """Die before, or after, each round trip."""
    undertaker = Undertaker(argument)
    undertaker.run()
    return undertaker.results


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
