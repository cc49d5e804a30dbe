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
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pydantic import SecretStr
from redis.asyncio.client import Pipeline

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskState, TaskStatus
from redis_state.testing import eventually, leaked_keys
from redis_state.transport.calls import CallSender
from redis_state.transport.wire.resp import PackedCommand, PreparedScript
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker import worker as runner
from tests.chaos.support.crew import ends, recorded, taken_twice, trails, wrong_move
from tests.chaos.support.notes import note
from tests.support.processes.pools import SESSION, agent, client_of, serving

TASK = "task"
PHASES = ("submit", "begin", "resolve", "end", "retry")
LEASE_S = 0.5
_AT_ONCE = 6
COUNTED: ContextVar[bool] = ContextVar("counted", default=False)


@dataclass
class Death:
    """Kill this process at its n-th round trip: before it is sent, or when its reply is in."""

    at: int
    edge: str
    stated: int
    seen: int = 0

    def plant(self) -> None:
        """Count what the sender and the queue's client send for what is counted."""
        send, run, ask, execute = CallSender.send, CallSender.run, CallSender.ask, Pipeline.execute

        def watched(call: Callable[..., asyncio.Future[Any]]) -> Any:
            def watching(
                sender: CallSender, what: Any, *more: Any, **options: Any
            ) -> asyncio.Future[Any]:
                if not self._reached(_name_of(what)):
                    return call(sender, what, *more, **options)
                self._die_if("before")
                future = call(sender, what, *more, **options)
                future.add_done_callback(lambda _: self._die_if("after"))
                return future

            return watching

        async def watched_execute(pipe: Any, *arguments: Any, **options: Any) -> Any:
            if not self._reached("the queue"):
                return await execute(pipe, *arguments, **options)
            self._die_if("before")
            found = await execute(pipe, *arguments, **options)
            self._die_if("after")
            return found

        CallSender.send = watched(send)  # type: ignore[method-assign]
        CallSender.run = watched(run)  # type: ignore[method-assign]
        CallSender.ask = watched(ask)  # type: ignore[method-assign]
        Pipeline.execute = watched_execute  # type: ignore[method-assign, assignment]

    def _reached(self, name: str) -> bool:
        self.seen += COUNTED.get()
        here = COUNTED.get() and self.seen == self.at
        if here:
            os.write(self.stated, json.dumps(name).encode())
        return here

    def _die_if(self, edge: str) -> None:
        if edge == self.edge:
            os.kill(os.getpid(), signal.SIGKILL)


def _name_of(what: str | PreparedScript | PackedCommand) -> str:
    match what:
        case PreparedScript():
            return what.script.name
        case PackedCommand():
            return str(what.command[0])
        case _:
            return what


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
        """Wait until the index lists the task as it ended, and nothing else."""
        wanted = dict.fromkeys(TaskStatus, 0) | {TaskStatus.COMPLETE: 1}

        async def right() -> bool:
            return await client.count() == wanted

        await eventually(right, "a sweeper has made the index exact", timeout_s=60)
        found = (await client.find(session_id=SESSION, status="COMPLETE")).tasks
        names = [(task.task_id, task.handler) for task in found]
        return [] if names == [(TASK, "ship")] else [f"found {names}"]

    async def _retry(self, client: TaskClient) -> None:
        await client.retry(SESSION, TASK, key="first")

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


def fork(work: Callable[[int], Coroutine[Any, Any, Any]]) -> tuple[int, int]:
    """Run a coroutine in a child; return its id, and where it says what it has to say."""
    heard, stated = os.pipe()
    pid = os.fork()
    if pid:
        os.close(stated)
        return pid, heard
    try:
        found = asyncio.run(work(stated))
        if found is not None:
            os.write(stated, json.dumps(found).encode())
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - nothing may return from a child
        os.write(stated, json.dumps([f"{type(error).__name__}: {error}"]).encode())
        os._exit(1)


def join(pid: int, heard: int) -> tuple[int, Any]:
    """Wait for a child; return its status, negative for a signal, and what it said."""
    stated = b""
    while data := os.read(heard, 1 << 16):
        stated += data
    os.close(heard)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, json.loads(stated) if stated else None


class Mortal(Protocol):
    """A case in a namespace of its own, of which each part runs in a process of its own."""

    async def prepare(self, stated: int, /) -> Any:
        """Bring about what is there before."""

    async def die(self, stated: int, /) -> None:
        """Do it, and die on the way. To return is to survive."""

    async def recover(self, stated: int, /) -> list[str]:
        """Have others do the rest; list what is wrong."""
        ...


def die_everywhere(
    phases: Iterable[str], case_of: Callable[[str, int], Mortal]
) -> list[dict[str, Any]]:
    """Die at each round trip of each phase, and have what is left recovered, some at once."""
    results: list[dict[str, Any]] = []
    recovering: list[tuple[dict[str, Any], int, int]] = []

    def recovered() -> None:
        death, pid, heard = recovering.pop(0)
        _, problems = join(pid, heard)
        results.append(death | {"problems": problems})

    for phase in phases:
        for at in range(1, 1_000):
            case = case_of(phase, at)
            status, stated = join(*fork(case.prepare))
            assert status == 0, (phase, at, stated)
            status, trip = join(*fork(case.die))
            if status == 0:
                break
            assert status == -signal.SIGKILL, trip
            if len(recovering) == _AT_ONCE:
                recovered()
            death = {"phase": phase, "at": at, "trip": trip}
            recovering.append((death, *fork(case.recover)))
    while recovering:
        recovered()
    return results


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
        if len(self._recovering) == _AT_ONCE:
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
