"""Schedules whose processes are killed while they fire, are paused, edited and triggered."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus, UpdateType
from redis_state.stores.schedules import ScheduleStore
from redis_state.testing import eventually
from redis_state.worker import Schedule, TaskClient
from redis_state.worker.schedules.model import stamp
from tests.chaos.support.crew import Crew, recorded
from tests.chaos.support.trial import Trial
from tests.support.processes.pools import client_of
from tests.support.scripts.replies import clock_ms

_WORKERS = 4
_SECOND_MS = 1_000
# Interval, cron, one that is paused and resumed, one that is edited.
_FIRING = ("interval", "cron", "paused", "edited")
_NOW = "triggered"


@dataclass(slots=True)
class Due:
    """Which occurrences of a schedule there must be: all seconds but those of its pauses."""

    after_ms: int
    until_ms: int = 0
    # Between a call and its reply a schedule may be resumed: those seconds may be there or not.
    left_out: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    open: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def moments(self) -> tuple[set[int], set[int]]:
        """Return which must be there, and which may be."""
        first = (self.after_ms // _SECOND_MS + 1) * _SECOND_MS
        every = range(first, self.until_ms + 1, _SECOND_MS)
        may = {at for at in every if _within(at, self.open)}
        return {at for at in every if not _within(at, self.left_out) and at not in may}, may


def _within(at_ms: int, spans: list[tuple[int, int]]) -> bool:
    return any(after_ms < at_ms <= to_ms for after_ms, to_ms in spans)


def _schedule(name: str, number: int = 0) -> Schedule:
    by_cron = name == "cron"
    return Schedule(
        schedule_id=name,
        handler="fire",
        session_id=f"of-{name}",
        input=number,
        cron="* * * * * *" if by_cron else None,
        every=None if by_cron else timedelta(hours=1) if name == _NOW else timedelta(seconds=1),
        missed="all",
        max_missed=1_000,
    )


class Calls:
    """What operators do meanwhile."""

    def __init__(self, trial: Trial, client: TaskClient, due: dict[str, Due]) -> None:
        self.triggered: set[str] = set()
        self.over = asyncio.Event()
        self.edits = self.pauses = 0
        self._trial = trial
        self._client = client
        self._stored = ScheduleStore(client.store.base)
        self._due = due

    async def trigger(self) -> None:
        """Trigger a task twice at once, under one key."""
        key = f"k{len(self.triggered)}"
        calls = (self._client.schedules.trigger(_NOW, idempotency_key=key) for _ in range(2))
        with self._trial.history.doing("trigger"):
            one, other = await asyncio.gather(*calls)
            self._trial.expect(one == other, f"{key} has two tasks")
            self.triggered.add(one.task_id)

    async def edit(self) -> None:
        """Change what a schedule's tasks are given."""
        with self._trial.history.doing("edit"):
            await self._client.schedules.save(_schedule("edited", self.edits + 1))
            self.edits += 1

    async def pause(self, wait_s: float) -> None:
        """Pause a schedule, and resume it: the seconds between are left out."""
        due, schedules = self._due["paused"], self._client.schedules
        with self._trial.history.doing("pause"):
            await schedules.pause("paused")
        settled_ms = await self.settled_ms("paused")
        await self._wait(wait_s)
        before_ms = await clock_ms(self._client.store.base.scripts)
        with self._trial.history.doing("resume"):
            await schedules.resume("paused")
        after_ms = await clock_ms(self._client.store.base.scripts)
        due.left_out.append((settled_ms, before_ms))
        due.open.append((before_ms, after_ms))
        self.pauses += 1

    async def settled_ms(self, name: str) -> int:
        """Tell up to when all of a schedule is decided."""
        found = await self._stored.load(name)
        assert found is not None
        return found.after_ms

    async def becomes_due(self, name: str) -> None:
        """Wait until an occurrence of a schedule is settled."""

        async def settled() -> bool:
            return await self.settled_ms(name) >= self._due[name].after_ms + _SECOND_MS

        await eventually(settled, f"{name} is settled", timeout_s=60)

    async def call_until_over(self, wait_s: float) -> None:
        """Do all of it, one after the other. What has begun is ended: nothing is left paused."""
        while not self.over.is_set():
            await self.trigger()
            await self.edit()
            await self._wait(wait_s)
            await self.trigger()
            await self.pause(wait_s)
            await self._wait(wait_s)

    async def _wait(self, wait_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), wait_s)


async def test_schedules_fire_once_while_workers_are_killed(
    trial: Trial, store: RedisStateStore, settings: Settings, tmp_path: Path
) -> None:
    kills = trial.size.of(1_000, least=6)
    lease_s, wait_s = (1.0, (0.2, 0.7)) if trial.size.full else (0.5, (0.1, 0.25))
    trial.parameters = {"kills": kills, "workers": _WORKERS, "lease_s": lease_s}
    chance = random.Random(11)
    async with (
        client_of(store) as client,
        Crew(settings, tmp_path, program="flow_worker", lease_s=lease_s) as crew,
    ):
        for _ in range(_WORKERS):
            await crew.start()
        due = {name: Due(await _saved(client, name)) for name in _FIRING}
        await client.schedules.save(_schedule(_NOW))
        calls = Calls(trial, client, due)
        calling = asyncio.create_task(calls.call_until_over(1.0 if trial.size.full else 0.15))
        try:
            for _ in range(kills):
                await asyncio.sleep(chance.uniform(*wait_s))
                name = chance.choice(crew.alive())
                assert crew.processes[name].returncode is None
                trial.faults += await crew.kill(name) == -signal.SIGKILL
                await crew.start()
            # Those who are killed so often may not have come to a look yet.
            for name in _FIRING:
                if name != "paused":
                    await calls.becomes_due(name)
        finally:
            calls.over.set()
            await calling
        for name in _FIRING:
            await client.schedules.pause(name)
            due[name].until_ms = await calls.settled_ms(name)
        await _judge(trial, client, due, calls, tmp_path)
    trial.conclude()


async def _saved(client: TaskClient, name: str) -> int:
    await client.schedules.save(_schedule(name))
    found = await ScheduleStore(client.store.base).load(name)
    assert found is not None
    # The first look may be over already: the record's own beginning is earlier.
    return found.order // 1_000


async def _judge(
    trial: Trial, client: TaskClient, due: dict[str, Due], calls: Calls, folder: Path
) -> None:
    for name, its in due.items():
        must, may = its.moments()
        made = await _made(client, name)
        ids = {f"{name}@{stamp(at)}" for at in must}
        trial.lost += len(ids - set(made))
        extra = set(made) - ids - {f"{name}@{stamp(at)}" for at in may}
        trial.expect(not extra, f"not due: {sorted(extra)[:3]}")
        trial.duplicated += sum(times > 1 for times in made.values())
        # Read when all of them are over, and no sooner.
        fired = {task for task, _ in recorded(folder, "fired")}
        trial.expect(made.keys() <= fired, f"some of {name} did not run")
        trial.expect(ids or name == "paused", f"{name} was never due")
        trial.figures[name] = len(made)
    made = await _made(client, _NOW)
    trial.lost += len(calls.triggered - set(made))
    trial.duplicated += sum(times > 1 for times in made.values())
    numbers = [number for task, number in sorted(recorded(folder, "fired")) if "edited" in task]
    trial.expect(numbers == sorted(numbers), "an occurrence was submitted as before an edit")
    trial.figures |= {"triggered": len(made), "edits": calls.edits, "pauses": calls.pauses}
    trial.expect(calls.pauses and calls.edits, "nothing was paused or edited")


async def _made(client: TaskClient, name: str) -> Counter[str]:
    """Count how often each task of a schedule was submitted, once all of them are over."""
    session = f"of-{name}"
    schedules = ScheduleStore(client.store.base)

    async def over() -> bool:
        found = await schedules.load(name)
        tasks = await client.store.list_tasks(session)
        return (
            found is not None
            and not found.outbox
            and all(task.status is TaskStatus.COMPLETE for task in tasks)
        )

    await eventually(over, f"all tasks of {name} are over", timeout_s=60)
    made: Counter[str] = Counter()
    for update in await client.store.list_updates(session, limit=100_000):
        if update.update_type is UpdateType.STATUS_CHANGE:
            made[update.task_id] += update.content["status"] == "PENDING"
    return made
