"""Busy sessions, debounced inputs and batches, while workers and callers are killed."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskClient
from tests.chaos.support.crew import Crew, recorded
from tests.chaos.support.lines import wrong_line
from tests.chaos.support.notes import note
from tests.chaos.support.trial import Trial
from tests.chaos.support.witness import Witness
from tests.support.processes.pools import client_of, queue_of
from tests.support.tasks.crash_states import send

_CUT = ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
_CUT_EVERY = 5


@dataclass(slots=True)
class Calls:
    """What callers asked for, as they wrote it down."""

    # By name: kind, session, policy.
    asked: dict[str, tuple[str, str, str]] = field(default_factory=dict[str, tuple[str, str, str]])
    made: dict[str, str] = field(default_factory=dict[str, str])
    refused: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, folder: Path) -> Calls:
        """Read what they wrote."""
        calls = cls()
        for what, *facts in recorded(folder, "calls"):
            if what == "asked":
                kind, name, *rest = facts
                calls.asked[name] = (kind, *rest)
            else:
                getattr(calls, what)[facts[0]] = facts[1]
        return calls

    def of(self, kind: str) -> dict[str, tuple[str, str, str]]:
        """Return the calls of a kind."""
        return {name: asked for name, asked in self.asked.items() if asked[0] == kind}

    def unanswered(self, caller: str) -> list[list[str]]:
        """List what a caller has asked and has no answer to, as it asks it again.

        A debounced input has no id: asked again, it may be the last one of two tasks.
        """
        answered = self.made.keys() | self.refused.keys()
        return [
            [kind, name, *rest]
            for name, (kind, *rest) in self.asked.items()
            if name.startswith(f"{caller}-") and name not in answered and kind != "debounce"
        ]


class Faults:
    """Kills of workers and callers at random, and cuts of all connections between them."""

    def __init__(
        self, trial: Trial, store: RedisStateStore, workers: Crew, callers: Crew, folder: Path
    ) -> None:
        self._trial = trial
        self._store = store
        self._workers = workers
        self._callers = callers
        self._folder = folder
        self._chance = random.Random(13)

    async def kill_some(self, number: int) -> None:
        """Kill a worker and a caller in turn."""
        for kill in range(number):
            full = self._trial.size.full
            await asyncio.sleep(self._chance.uniform(0.05, 0.5 if full else 0.25))
            if kill % 2:
                await self._kill_caller()
            else:
                await self.kill_worker(self._chance.choice(self._workers.alive()))
                await self._workers.start()
            if kill % _CUT_EVERY == 0:
                self._trial.figures["cut"] += await send(self._store, *_CUT)

    async def kill_worker(self, name: str) -> None:
        """Kill a worker that lives. What it ran has ended once that is written down."""
        process = self._workers.processes[name]
        assert process.returncode is None
        process.kill()
        note(self._folder, "runs", "dead", name)
        self._trial.faults += await self._workers.kill(name) == -signal.SIGKILL

    async def _kill_caller(self) -> None:
        name = self._chance.choice(self._callers.alive())
        assert self._callers.processes[name].returncode is None
        self._trial.faults += await self._callers.kill(name) == -signal.SIGKILL
        again = Calls.read(self._folder).unanswered(name)
        self._trial.figures["asked_again"] += len(again)
        # Under the name of before: it has its ids, and goes on counting behind them.
        await self._callers.start(again=again)


async def test_busy_sessions_and_bursts_while_workers_and_callers_are_killed(
    trial: Trial, store: RedisStateStore, settings: Settings, tmp_path: Path
) -> None:
    kills = trial.size.of(400, least=6)
    many, asking = (4, 3) if trial.size.full else (3, 2)
    lease_s = 1.0 if trial.size.full else 0.5
    trial.parameters = {"kills": kills, "workers": many, "callers": asking}
    trial.figures |= {"cut": 0, "asked_again": 0}
    async with (
        client_of(store) as client,
        Crew(settings, tmp_path, program="flow_worker", lease_s=lease_s, part_s=0.02) as workers,
        Crew(settings, tmp_path, program="press_sessions", lease_s=lease_s) as callers,
    ):
        faults = Faults(trial, store, workers, callers, tmp_path)
        for _ in range(many):
            await workers.start()
        for _ in range(asking):
            await callers.start()
        await eventually(lambda: recorded(tmp_path, "runs"), "a task runs", timeout_s=60)
        await faults.kill_some(kills)
        for name in callers.alive():
            await callers.kill(name)
        calls = Calls.read(tmp_path)
        await _all_end(client, calls)
        for name in workers.alive():
            await faults.kill_worker(name)
        logs = {session: await _log(store, session) for session in _sessions(calls)}
        _judge_lines(trial, calls, logs, tmp_path)
        await _judge_gathered(trial, store, calls, tmp_path)
    trial.conclude()


def _sessions(calls: Calls) -> set[str]:
    return {session for _, session, _ in calls.asked.values()}


async def _all_end(client: TaskClient, calls: Calls) -> None:
    async def over() -> bool:
        for session in _sessions(calls):
            tasks = await client.store.list_tasks(session)
            if not all(task.status.is_terminal for task in tasks):
                return False
        queue = await client.queues.get(queue_of(client.store.settings))
        return not (queue.waiting or queue.running)

    await eventually(over, "all tasks are over, and the queue is empty", timeout_s=120)


async def _log(store: RedisStateStore, session: str) -> list[tuple[str, str]]:
    """Read the statuses of a session's tasks, in their order."""
    return [
        (update.task_id, update.content["status"])
        for update in await store.list_updates(session, limit=100_000)
        if update.update_type is UpdateType.STATUS_CHANGE
    ]


def _judge_lines(
    trial: Trial, calls: Calls, logs: dict[str, list[tuple[str, str]]], folder: Path
) -> None:
    """Judge what the policies promise, and that a session never runs two tasks."""
    submitted = calls.of("submit")
    policies = {name: policy for name, (_, _, policy) in submitted.items()}
    busy = {session for _, session, _ in submitted.values()}
    ends: Counter[str] = Counter()
    written: set[str] = set()
    for session in busy:
        for problem in list(wrong_line(logs[session], policies))[:5]:
            trial.expect(held=False, otherwise=f"{session}: {problem}")
        last = dict(logs[session])
        written |= last.keys()
        ends.update(last.values())
    trial.lost += len((calls.made.keys() & policies.keys()) - written)
    trial.expect(not calls.refused.keys() & written, "a task was refused and written")
    trial.expect(calls.refused.keys().isdisjoint(calls.made), "a call was refused and made")
    trial.expect(not ends["FAILED"], f"{ends['FAILED']} failed")
    witness = Witness(recorded(folder, "runs"), dict.fromkeys(busy, 1))
    for problem in witness.problems[:5]:
        trial.expect(held=False, otherwise=problem)
    # Of when each was answered nothing is known: no outage is measured here.
    trial.history.merge([("call", "ok", 0.0, 0.0)] * len(calls.made))
    trial.figures |= {
        "submitted": len(calls.made.keys() & policies.keys()),
        "refused": len(calls.refused),
        "ends": dict(sorted(ends.items())),
        "killed_while_running": witness.killed_while_running(),
    }
    met = ends["CANCELLED"] and calls.refused and witness.killed_while_running()
    trial.expect(met or not trial.size.full, "nothing was cancelled, refused or killed")


def _items(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]  # pyright: ignore[reportUnknownVariableType]


async def _judge_gathered(trial: Trial, store: RedisStateStore, calls: Calls, folder: Path) -> None:
    """Each input is in one task; a task's input is the same in all of its runs."""
    inputs: dict[str, Any] = {}
    for task, given in recorded(folder, "gathered"):
        same = inputs.setdefault(task, given) == given
        trial.expect(same, f"{task} was given another input in a later run")
    tasks_of = defaultdict[str, list[str]](list)
    for task, given in inputs.items():
        for item in _items(given):
            tasks_of[item].append(task)
    batched, debounced = calls.of("batch"), calls.of("debounce")
    for name in batched:
        found, task = tasks_of[name], calls.made.get(name)
        trial.duplicated += len(found) > 1
        trial.lost += task is not None and found != [task]
    for name in debounced:
        trial.duplicated += len(tasks_of[name]) > 1
        task = calls.made.get(name)
        # The last input of those that were given the task; one that died unheard may be it.
        last = None if task is None else inputs.get(task)
        trial.lost += task is not None and calls.made.get(str(last), task) != task
        trial.lost += task is not None and last not in debounced
    unknown = tasks_of.keys() - batched.keys() - debounced.keys()
    trial.expect(not unknown, f"nobody gave {sorted(unknown)[:3]}")
    trial.figures |= {"batched": len(batched), "debounced": len(debounced), "gathered": len(inputs)}
    for session in {session for _, session, _ in batched.values()}:
        for state in await store.list_tasks(session):
            trial.expect(state.status is TaskStatus.COMPLETE, f"{state.task_id} {state.status}")
