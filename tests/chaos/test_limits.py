"""Limits, turns and rates of a pool whose processes and server are killed and stopped."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import BackendUnavailable, RedisStateStore, Settings
from redis_state.models import TaskStatus
from redis_state.testing import eventually, leaked_keys
from redis_state.worker import TaskClient
from tests.chaos.support.crew import Crew, ends, recorded, trails, wrong_move
from tests.chaos.support.notes import note
from tests.chaos.support.server import Server
from tests.chaos.support.trial import Trial
from tests.chaos.support.witness import ALL, Witness, within
from tests.processes.workers.flow_worker import RATE
from tests.support.processes.pools import client_of, queue_of
from tests.support.servers.faults import short_directory

_WORKERS = 5
_TENANT = {"m": 2, "m/0": 1, "m/1": 1, "m/2": 1}
_LIMITS = {ALL: 8, "a": 2, "b": 2, "c": 2, "vip": 3, "t0": 1, "t1": 1, **_TENANT}
_KEYS = ("a", "b", "c", "vip")
# Sessions whose tasks run in turn. Those of the tenant m have a limit together, too.
_TURNS = ("t0", "t1", "m/0", "m/1", "m/2")
_ONCE = (*_KEYS, "t0", "t1", "m")
_WAITING = 10
_BLOCK = 300


class Load:
    """Tasks of every kind, submitted for as long as not too many wait."""

    def __init__(self, trial: Trial, client: TaskClient) -> None:
        self.tasks: dict[str, list[str]] = defaultdict(list)
        self.turns: dict[str, list[str]] = defaultdict(list)
        self.calls = 0
        self._trial = trial
        self.client = client
        self._count = 0

    async def submit_for_ever(self) -> None:
        """Submit tasks, a round of each kind at a time."""
        name = queue_of(self.client.store.settings)
        while True:
            # A server that restarts may need longer than a call waits.
            with suppress(BackendUnavailable):
                if (await self.client.queues.get(name)).waiting < _WAITING:
                    await self.submit("work", (*_KEYS, *_TURNS, ""))
                    await self.submit("call", ("",))
            await asyncio.sleep(0.1)

    async def submit(self, handler: str, groups: tuple[str, ...]) -> None:
        """Submit a task for each of the groups: keys, sessions whose tasks take turns, or none."""
        for group in groups:
            self._count += 1
            in_turn = group in _TURNS
            session = group if in_turn else f"s{self._count // _BLOCK}"
            tenant = within(group)[0] if "/" in group else None
            key = group if group in _KEYS else tenant
            # The id is given: the server may die before it replies, and the call is repeated.
            task = f"{handler}-{self._count}"
            with self._trial.history.doing("submit"):
                await self.client.submit(
                    handler, group, session_id=session, task_id=task, limit_key=key, in_turn=in_turn
                )
            self.tasks[session].append(task)
            if in_turn:
                self.turns[group].append(task)


class Faults:
    """What is done to the processes. What a killed one ran has ended once that is written down."""

    def __init__(self, trial: Trial, crew: Crew, server: Server, folder: Path) -> None:
        self._trial = trial
        self._crew = crew
        self._server = server
        self._folder = folder
        self._chance = random.Random(7)
        self.stopped: str | None = None

    async def kill_some(self, number: int, *, restarts: int, stops: int, lease_s: float) -> None:
        """Kill workers at random moments, and between them the server; stop others meanwhile."""
        stopping = asyncio.create_task(self._stop_some(stops, lease_s))
        for kill in range(1, number + 1):
            full = self._trial.size.full
            await asyncio.sleep(self._chance.uniform(0.05, 0.5 if full else 0.2))
            self._trial.faults += await self.kill(self._victim()) == -signal.SIGKILL
            await self._crew.start()
            if kill * restarts // number > (kill - 1) * restarts // number:
                await self._restart_server()
        await stopping

    async def kill(self, name: str) -> int:
        """Kill a worker that lives; return its status."""
        process = self._crew.processes[name]
        assert process.returncode is None
        process.kill()
        # Nothing is awaited before: what a lease of its would free is not free yet.
        note(self._folder, "runs", "dead", name)
        return await self._crew.kill(name)

    def _victim(self) -> str:
        return self._chance.choice([name for name in self._crew.alive() if name != self.stopped])

    async def _restart_server(self) -> None:
        status = await asyncio.to_thread(self._server.kill)
        self._trial.figures["server_kills"] += status == -signal.SIGKILL
        self._server.start()
        await eventually(self._server.answers, "the server is up again", timeout_s=60)

    async def _stop_some(self, stops: int, lease_s: float) -> None:
        for _ in range(stops):
            await asyncio.sleep(self._chance.uniform(0.2, 1.0 if self._trial.size.full else 0.4))
            self.stopped = self._victim()
            note(self._folder, "runs", "stopped", self.stopped)
            self._crew.report(self.stopped, signal.SIGSTOP)
            await asyncio.sleep(1.7 * lease_s)
            self._crew.report(self.stopped, signal.SIGCONT)
            self._trial.figures["stops"] += 1
            self.stopped = None


class Changes:
    """Limits that are changed while they hold. Each holds strictly from its line on."""

    def __init__(self, client: TaskClient, folder: Path) -> None:
        self._client = client
        self._folder = folder
        self._name = queue_of(client.store.settings)
        self.made = 0

    async def change_for_ever(self, hold_s: float) -> None:
        """Lower and raise the limit of the queue, and that of a key."""
        while True:
            # A server that restarts may need longer than a call waits.
            with suppress(BackendUnavailable):
                await self._change(hold_s)

    async def _change(self, hold_s: float) -> None:
        queues = self._client.queues
        await asyncio.sleep(hold_s)
        await queues.limit(self._name, running=4)
        await self._until_at_most(4)
        self._note(ALL, 4)
        await asyncio.sleep(hold_s)
        self._note(ALL, _LIMITS[ALL])
        await queues.limit(self._name, running=_LIMITS[ALL])
        self.made += 2
        await asyncio.sleep(hold_s)
        await queues.pause(self._name)
        await self._until_at_most(0)
        await queues.limit_key(self._name, "vip", running=1)
        self._note("vip", 1)
        await queues.resume(self._name)
        await asyncio.sleep(hold_s)
        self._note("vip", _LIMITS["vip"])
        await queues.limit_key(self._name, "vip", running=_LIMITS["vip"])
        self.made += 2

    async def all_as_at_first(self) -> None:
        """Set all limits, and end a pause."""
        queues = self._client.queues
        self._note(ALL, _LIMITS[ALL])
        self._note("vip", _LIMITS["vip"])
        await queues.limit(self._name, running=_LIMITS[ALL], per_key=_LIMITS["a"])
        await queues.limit_key(self._name, "vip", running=_LIMITS["vip"])
        await queues.resume(self._name)

    async def _until_at_most(self, running: int) -> None:
        async def so_few() -> bool:
            return (await self._client.queues.get(self._name)).running <= running

        await eventually(so_few, f"no more than {running} run", timeout_s=60)

    def _note(self, group: str, limit: int) -> None:
        note(self._folder, "runs", "limit", group, limit)


async def test_limits_hold_while_workers_and_server_are_killed(
    trial: Trial, settings: Settings, tmp_path: Path
) -> None:
    kills = trial.size.of(1_000, least=8)
    lease_s = 3.0
    trial.parameters = {
        "kills": kills,
        "workers": _WORKERS,
        "limits": _LIMITS,
        "rate": RATE.written,
        "lease_s": lease_s,
        "restarts": trial.size.of(20),
        "stops": trial.size.of(40),
    }
    trial.figures |= {"server_kills": 0, "stops": 0}
    with short_directory() as directory:
        # A server that syncs each second may lose the end of a task whose successor has begun. Then
        # the order of both runs says nothing.
        server = Server(directory, "always")
        server.start()
        # The callers wait out a restart on a busy machine: each task that they name is there.
        patient = {"url": SecretStr(server.url), "call_timeout_s": 60.0}
        own = settings.model_copy(update=patient)
        try:
            await eventually(server.answers, "the server is up")
            async with RedisStateStore(own) as store, client_of(store) as client:
                crew = Crew(own, tmp_path, program="flow_worker", lease_s=lease_s)
                faults = Faults(trial, crew, server, tmp_path)
                async with crew:
                    await _under_faults(trial, Load(trial, client), faults, crew, tmp_path)
                assert await leaked_keys(own) == []
        finally:
            server.kill()
    trial.conclude()


async def _under_faults(trial: Trial, load: Load, faults: Faults, crew: Crew, folder: Path) -> None:
    client = load.client
    changes = Changes(client, folder)
    await changes.all_as_at_first()
    for _ in range(_WORKERS):
        await crew.start()
    beside = [
        asyncio.create_task(load.submit_for_ever()),
        asyncio.create_task(changes.change_for_ever(2.0 if trial.size.full else 0.2)),
    ]
    try:
        given = trial.parameters
        await faults.kill_some(
            given["kills"],
            restarts=given["restarts"],
            stops=given["stops"],
            lease_s=given["lease_s"],
        )
    finally:
        for task in beside:
            task.cancel()
        ended = await asyncio.gather(*beside, return_exceptions=True)
    for error in ended:
        trial.expect(isinstance(error, asyncio.CancelledError), f"a caller ended: {error!r}")
    trial.figures["limits_changed"] = changes.made
    await changes.all_as_at_first()
    await eventually(lambda: _all_ended(client, load), "all tasks are over", timeout_s=120)
    await _use_all_permits(trial, load, folder)
    for name in crew.alive():
        await faults.kill(name)
    await _judge_tasks(trial, client.store, load)
    _judge_runs(trial, load, folder)
    _judge_rate(trial, folder)


async def _all_ended(client: TaskClient, load: Load) -> bool:
    for session, tasks in load.tasks.items():
        found = await client.store.list_tasks(session)
        if sum(task.status.is_terminal for task in found) < len(tasks):
            return False
    return not (await client.queues.get(queue_of(client.store.settings))).running


async def _use_all_permits(trial: Trial, load: Load, folder: Path) -> None:
    """Fill the queue's limit, then each group's: a permit that was lost would be missing."""
    client, name = load.client, queue_of(load.client.store.settings)
    before = len(recorded(folder, "runs"))
    for _ in range(3):
        await load.submit("hold", (*_KEYS, *_TURNS))

    def holding(group: str = "") -> int:
        begun = [line for line in recorded(folder, "runs")[before:] if line[0] == "begin"]
        return sum(not group or group in within(line[4]) for line in begun)

    def all_run(group: str) -> bool:
        return holding(group) >= _LIMITS[group]

    at_once = _LIMITS[ALL]
    await eventually(lambda: holding() >= at_once, "as many run as the queue may", timeout_s=60)
    alone = sum(_LIMITS[group] for group in _ONCE)
    note(folder, "runs", "limit", ALL, alone)
    await client.queues.limit(name, running=None)
    for group in _ONCE:
        await eventually(partial(all_run, group), f"as many of {group} run as may", timeout_s=60)
    held = (await client.queues.get(name)).running
    trial.expect(held == alone, f"{held} permits are held, not {alone}")
    trial.figures["used_again_at_once"] = [at_once, alone]
    (folder / "release").touch()
    await eventually(lambda: _all_ended(client, load), "they are over", timeout_s=60)


async def _judge_tasks(trial: Trial, store: RedisStateStore, load: Load) -> None:
    """Each task has ended once, and well."""
    count = 0
    for session, tasks in load.tasks.items():
        found = await trails(store, session)
        states = {task.task_id: task for task in await store.list_tasks(session)}
        for task in tasks:
            count += 1
            state, trail = states.get(task), found[task]
            done = state is not None and state.status is TaskStatus.COMPLETE
            trial.lost += not done
            trial.duplicated += ends(trail) > 1
            trial.expect(wrong_move(trail) is None, f"{task}: {wrong_move(trail)}")
    trial.figures["tasks"] = count


def _judge_runs(trial: Trial, load: Load, folder: Path) -> None:
    witness = Witness(recorded(folder, "runs"), _LIMITS)
    for problem in witness.problems[:5]:
        trial.expect(held=False, otherwise=problem)
    for tasks in load.turns.values():
        for problem in witness.wrong_turns(tasks):
            trial.expect(held=False, otherwise=problem)
    full = {group: witness.most[group] for group in _LIMITS}
    trial.figures |= {
        "runs": len(witness.runs),
        "killed_while_running": witness.killed_while_running(),
        "went_on_without_a_lease": len(witness.lost_alive),
        "most_at_a_time": full,
    }
    trial.expect(witness.lost_alive or not trial.size.full, "no stopped worker went on")
    met = witness.killed_while_running() or not trial.size.full
    trial.expect(met, "no worker was killed while it ran a task")
    for group in _LIMITS.keys() - {ALL}:
        trial.expect(full[group] == _LIMITS[group], f"{group} was never used fully: {full[group]}")


def _judge_rate(trial: Trial, folder: Path) -> None:
    """No more was taken than all of the rate at once, and what came back since."""
    taken = sorted(recorded(folder, "taken"), key=lambda line: line[2])
    tasks = {task for task, _, _ in taken}
    trial.figures["taken"] = len(tasks)
    trial.expect(tasks, "nothing was taken")
    per_s = RATE.limit / RATE.per.total_seconds()
    # A task's take is recorded; a run that is killed before that takes again, and is counted once.
    firsts: dict[str, list[Any]] = {}
    for line in taken:
        firsts.setdefault(line[0], line)
    lines = list(firsts.values())
    for first, (_, since_s, _) in enumerate(lines):
        before_s = since_s
        for last in range(first, len(lines)):
            many, before_s = last - first + 1, min(before_s, lines[last][1])
            may = RATE.limit + per_s * max(0.0, lines[last][2] - before_s)
            if many > may + 1:
                trial.expect(held=False, otherwise=f"{many} taken in {lines[last][2] - before_s} s")
                return
