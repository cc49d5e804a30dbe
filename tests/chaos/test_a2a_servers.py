"""A2A servers that are killed and hang, and a Redis server that stalls, all the time."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

pytest.importorskip("a2a.server.cluster", reason="needs a2a-sdk 1.2")

from a2a.types.a2a_pb2 import Task, TaskState

from redis_state import Settings
from redis_state.integrations.a2a import A2ABackend
from redis_state.integrations.a2a.convert import event_of
from redis_state.primitives.signal import Row
from redis_state.stores.a2a.task_model import Phase
from redis_state.testing import eventually
from tests.chaos.support.trial import Trial
from tests.support.a2a.servers import Hook, Replica, RpcError, hook, message, replica, state_of
from tests.support.a2a.tasks import caller, server_on
from tests.support.processes import children
from tests.support.servers.faults import own_binary, short_directory

_REPLICAS = 3
_CALL_S = 0.5
_STALL_S = 1.5
_PIECES = 5
_PIECE_S = 0.3
_EVERY_S = 0.1
_LONGEST_S = 420.0
_ME = caller()
# Some moments between two faults, so that tasks begin and end there too.
_CALM_S = 1.0


class Redis:
    """A Redis server of the trial's own, which can be stopped for a while."""

    def __init__(self, folder: str) -> None:
        self.url = f"unix://{folder}/own.sock"
        place = ("--port", "0", "--unixsocket", f"{folder}/own.sock", "--dir", folder)
        self._process = children.launch(
            [own_binary(), *place, "--save", ""], stdout=subprocess.DEVNULL, cwd=folder
        )

    async def stall(self, seconds: float) -> None:
        """Stop the process for so long."""
        self._process.send_signal(signal.SIGSTOP)
        _, status = await asyncio.to_thread(os.waitpid, self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it, also if it is stopped."""
        self._process.kill()
        self._process.wait()


@dataclass(slots=True)
class Accepted:
    """A task that a server has acknowledged: which server, and from when on it may have had it."""

    server: Replica
    since: float


@dataclass(slots=True)
class Fleet:
    """Servers that are killed, that hang, and that are replaced."""

    settings: Settings
    lease_s: float
    stack: AsyncExitStack
    ready: list[Replica] = field(default_factory=list[Replica])
    # When a server was killed or began to hang: what it had accepted by then may fail.
    faulty: dict[Replica, list[float]] = field(default_factory=dict[Replica, list[float]])

    async def start(self) -> None:
        """Add a server."""
        running = replica(self.settings, lease_s=self.lease_s)
        self.ready.append(await self.stack.enter_async_context(running))

    async def kill(self) -> bool:
        """Kill a server and start another; tell whether it was killed."""
        victim = self._take()
        await victim.kill()
        await self.start()
        return victim.process.returncode == -signal.SIGKILL

    async def hang(self) -> None:
        """Stop a server for longer than its lease."""
        victim = self._take()
        victim.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(1.5 * self.lease_s)
        finally:
            victim.process.send_signal(signal.SIGCONT)
        self.ready.append(victim)

    def may_fail(self, accepted: Accepted) -> bool:
        """Tell whether a task's server was killed or hung after it accepted the task."""
        return any(at >= accepted.since for at in self.faulty.get(accepted.server, []))

    def _take(self) -> Replica:
        victim = self.ready.pop(0)
        self.faulty.setdefault(victim, []).append(time.monotonic())
        return victim


@pytest.fixture
async def redis(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Redis]:
    """Run a Redis server; whoever is started from here on calls it with a short deadline."""
    monkeypatch.setenv("REDIS_STATE_CALL_TIMEOUT_S", str(_CALL_S))
    with short_directory() as folder:
        server = Redis(str(folder))
        try:
            yield server
        finally:
            server.kill()


async def test_a2a_servers_are_killed_and_stalled(
    trial: Trial, settings: Settings, redis: Redis
) -> None:
    rounds = trial.size.of(15, least=1)
    tasks = trial.size.of(1_000, least=30)
    lease_s = 5.0 if trial.size.full else 4.0
    trial.parameters = {
        "tasks": tasks,
        "rounds": rounds,
        "servers": _REPLICAS,
        "lease_s": lease_s,
        "call_timeout_s": _CALL_S,
        "redis_stalls_s": _STALL_S,
    }
    own = settings.model_copy(update={"url": SecretStr(redis.url)})
    accepted: dict[str, Accepted] = {}
    async with hook() as pushed, AsyncExitStack() as stack:
        outside = server_on(own)  # not begun: it looks at nobody
        stack.push_async_callback(outside.aclose)
        fleet = Fleet(own, lease_s, stack)
        await asyncio.gather(*(fleet.start() for _ in range(_REPLICAS)))
        faulting = asyncio.create_task(_faults(trial, fleet, redis, rounds))
        await _submit(trial, fleet, accepted, pushed, faulting, tasks)
        await faulting

        async def all_ended() -> bool:
            found = [await outside.tasks.read(outside.ref(task, _ME)) for task in accepted]
            return all(each is not None and each.phase is Phase.ENDED for each in found)

        await eventually(all_ended, "every accepted task has ended", timeout_s=60)
        states = Counter[str]()
        for task, how in accepted.items():
            states[await _judge(trial, outside, task, may_fail=fleet.may_fail(how))] += 1
        trial.figures = {"ended": dict(states), "accepted": len(accepted)}
        await _judge_pushed(trial, outside, list(accepted), pushed)
    trial.expect(states["COMPLETED"] > 0, "no task was completed")
    trial.expect(len(accepted) >= tasks // 2, f"only {len(accepted)} tasks were accepted")
    trial.conclude()


async def _faults(trial: Trial, fleet: Fleet, redis: Redis, rounds: int) -> None:
    for _ in range(rounds):
        await asyncio.sleep(_CALM_S)
        await redis.stall(_STALL_S)
        trial.faults += 1
        await asyncio.sleep(_CALM_S)
        killed, _ = await asyncio.gather(fleet.kill(), fleet.hang())
        trial.faults += 1 + killed


async def _submit(  # noqa: PLR0917 - what one trial is made of
    trial: Trial,
    fleet: Fleet,
    accepted: dict[str, Accepted],
    pushed: Hook,
    faulting: asyncio.Task[None],
    tasks: int,
) -> None:
    """Submit tasks as long as there are faults, and as many as are wanted at least."""
    chosen = random.Random(7)
    requested: list[asyncio.Task[None]] = []

    async def ask(server: Replica) -> None:
        began = time.monotonic()
        push = {"url": pushed.url, "token": "t"}
        configuration = {"returnImmediately": True, "taskPushNotificationConfig": push}
        text = f"count {_PIECES} {_PIECE_S}"
        try:
            found = await server.call(
                "SendMessage", message=message(text), configuration=configuration
            )
        except (httpx.HTTPError, RpcError):
            trial.history.note("submit", "unknown", began)
        else:
            accepted[found["task"]["id"]] = Accepted(server, began)
            trial.history.note("submit", "ok", began)

    began = time.monotonic()
    for number in count():
        if (number >= tasks and faulting.done()) or time.monotonic() - began > _LONGEST_S:
            break
        requested.append(asyncio.create_task(ask(chosen.choice(fleet.ready))))
        await asyncio.sleep(_EVERY_S)
    await asyncio.gather(*requested)


async def _judge(trial: Trial, outside: A2ABackend, task_id: str, *, may_fail: bool) -> str:
    """Look whether a task ended once, truly, and with each of its pieces once; return its state."""
    ref = outside.ref(task_id, _ME)
    found = await outside.tasks.read(ref)
    if found is None or found.phase is not Phase.ENDED:
        trial.lost += 1
        return "lost"
    rows = await outside.tasks.log(ref).read_all()
    reported = Counter(piece for row in rows if (piece := _piece(row)))
    ends = sum(row.data[:1] == Phase.ENDED.encode() for row in rows)
    trial.duplicated += ends - 1 + sum(times - 1 for times in reported.values())
    task = Task.FromString(found.body)
    kept = [artifact.artifact_id for artifact in task.artifacts]
    trial.expect(
        sorted(reported) == sorted(kept), f"{task_id}: told {sorted(reported)}, kept {kept}"
    )
    state = TaskState.Name(task.status.state).removeprefix("TASK_STATE_")
    if state == "COMPLETED":
        trial.expect(len(kept) == _PIECES, f"{task_id} was completed with {kept}")
    else:
        reason = "".join(part.text for part in task.status.message.parts)
        trial.expect(may_fail, f"{task_id} of a healthy server is {state}: {reason}")
        trial.expect("did not renew its lease" in reason, f"{task_id} is {state}: {reason!r}")
    return state


def _piece(row: Row) -> str:
    event: Any = event_of(row.data[1:]) if row.data[1:] else None
    return event.artifact.artifact_id if hasattr(event, "artifact") else ""


async def _judge_pushed(
    trial: Trial, outside: A2ABackend, accepted: list[str], pushed: Hook
) -> None:
    """Each task that its server left behind was announced, under one id however often."""

    def announced() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for _, event in pushed.heard:
            if state_of(event) == "FAILED":
                reported = event["statusUpdate"]
                stated = reported["status"]["message"]["messageId"]
                found.setdefault(reported["taskId"], set()).add(stated)
        return found

    failed: set[str] = set()
    for task_id in accepted:
        found = await outside.tasks.read(outside.ref(task_id, _ME))
        if found is not None and found.state == str(int(TaskState.TASK_STATE_FAILED)):
            failed.add(task_id)
    await eventually(lambda: failed <= set(announced()), "each end was announced", timeout_s=60)
    trial.duplicated += sum(len(ids) - 1 for ids in announced().values())
    trial.figures["announced"] = len(failed)
