"""A server whose history goes back again and again, under live clients and workers.

What the server lost is lost. What is left fits together: no epoch names two runs, no task's result
mixes two runs' steps, no acknowledged save is overwritten unseen, no row is repeated or skipped.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import BackendError, CursorGap, VersionConflict
from redis_state.models import StateUpdate, UpdateType
from redis_state.testing import eventually
from redis_state.worker import AgentWorker, TaskClient, TaskContext
from tests.chaos.trial import Trial
from tests.pools import SESSION
from tests.rollback import Rollback, rolling_back

_STEPS = 4
_LEASE_S = 1.0


@dataclass
class Outside:
    """What the workers and clients know, and no server forgets."""

    # Task and epoch -> the runs that had it.
    runs: defaultdict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    # Task and a step's result -> what it was made from.
    made: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    # Notes of the shared document that were acknowledged since the history went back last.
    acknowledged: list[str] = field(default_factory=list[str])
    rollbacks: int = 0


async def test_the_servers_history_goes_back(trial: Trial) -> None:
    trial.parameters = {"rollbacks": trial.size.of(30, least=3), "workers": 2}
    outside = Outside()
    async with rolling_back() as server:
        settings = Settings(url=SecretStr(server.url), call_timeout_s=10)
        async with (
            RedisStateStore(settings) as store,
            TaskClient(store) as client,
            _workers(settings, outside),
        ):
            await _under_load(trial, server, client, outside)
            await _judge_tasks(trial, client, outside)
            await _judge_document(trial, store, outside)
    doubled = [name for name, runs in outside.runs.items() if len(runs) > 1]
    trial.expect(not doubled, f"epochs that name two runs: {doubled[:3]}")
    trial.conclude()


async def _handle(ctx: TaskContext, outside: Outside, run: str) -> list[str]:
    task = ctx.task.task_id
    outside.runs[task, ctx.epoch].add(run)
    made = ["begin"]

    def do(before: str) -> str:
        after = f"{random.getrandbits(64):x}"
        outside.made[task, after] = before
        return after

    for number in range(_STEPS):
        await ctx.progress(f"{number}")
        made.append(await ctx.step("chain", do, made[-1]))
        await asyncio.sleep(0.05)
    return made


@asynccontextmanager
async def _workers(settings: Settings, outside: Outside) -> AsyncGenerator[None]:
    async def handler(ctx: TaskContext) -> list[str]:
        return await _handle(ctx, outside, f"{random.getrandbits(64):x}")

    workers = [
        AgentWorker(
            {"chain": handler},
            settings,
            lease_s=_LEASE_S,
            # Each rollback is the end of a run, and many come within one task's life.
            max_crashes=1_000,
            name=f"w{number}",
        )
        for number in range(2)
    ]
    serving = [asyncio.create_task(worker.serve(handle_signals=False)) for worker in workers]
    try:
        yield
    finally:
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def _under_load(trial: Trial, server: Rollback, client: TaskClient, outside: Outside) -> None:
    store = client.store
    calling = [
        asyncio.create_task(each)
        for each in (
            _submit(trial, client),
            _append(trial, store),
            _watch(trial, store),
            *(_count(store, outside, name) for name in "ab"),
        )
    ]
    chance = random.Random(20)
    try:
        for _ in range(trial.parameters["rollbacks"]):
            await asyncio.sleep(chance.uniform(0.1, 0.6))
            await server.mark()
            await asyncio.sleep(chance.uniform(0.1, 0.8))
            outside.rollbacks += 1
            outside.acknowledged.clear()
            await server.go_back()
            outside.acknowledged.clear()
            trial.faults += 1
        await asyncio.sleep(0.5)
    finally:
        for task in calling:
            task.cancel()
        ended = await asyncio.gather(*calling, return_exceptions=True)
    for error in ended:
        trial.expect(isinstance(error, asyncio.CancelledError), f"a caller ended: {error!r}")


async def _submit(trial: Trial, client: TaskClient) -> None:
    while True:
        with trial.history.doing("submit"):
            await client.submit("chain", session_id=SESSION)
        await asyncio.sleep(0.1)


async def _append(trial: Trial, store: RedisStateStore) -> None:
    number = 0
    while True:
        number += 1
        update = StateUpdate(
            session_id="rows", task_id="t", update_type=UpdateType.PROGRESS, content=number
        )
        with trial.history.doing("append"):
            await store.save_update(update)
        await asyncio.sleep(0.002)


async def _watch(trial: Trial, store: RedisStateStore) -> None:
    """Follow the rows. They are numbered: each is greater than all before, whatever was lost."""
    cursor, last = None, 0
    while True:
        try:
            async with aclosing(store.watch_updates("rows", after=cursor)) as rows:
                async for entry in rows:
                    number = int(entry.value.content)
                    trial.expect(number > last, f"row {number} after {last}")
                    cursor, last = entry.cursor, max(last, number)
        except CursorGap as gap:
            # Before the first mark there was no row at all.
            cursor = gap.resume_after
        except BackendError:
            await asyncio.sleep(0.05)


async def _count(store: RedisStateStore, outside: Outside, name: str) -> None:
    """Add notes to one document, each on the version that was read."""
    number = 0
    while True:
        number += 1
        note, rollbacks = f"{name}{number}", outside.rollbacks
        with suppress(BackendError, VersionConflict):
            found = await store.load_memory("shared")
            empty: dict[str, Any] = {"notes": []}
            document, version = found or (empty, 0)
            document["notes"].append(note)
            # Time for another client's save, and for the history to go back.
            await asyncio.sleep(random.Random(note).uniform(0, 0.02))
            await store.save_memory_state("shared", document, expected_version=version)
            if outside.rollbacks == rollbacks:
                outside.acknowledged.append(note)
        await asyncio.sleep(0)


async def _judge_tasks(trial: Trial, client: TaskClient, outside: Outside) -> None:
    store = client.store

    async def over() -> bool:
        tasks = await store.list_tasks(SESSION)
        return bool(tasks) and all(task.status.is_terminal for task in tasks)

    await eventually(over, "all tasks are over", timeout_s=120)
    tasks = await store.list_tasks(SESSION)
    for task in tasks:
        trial.expect(task.status.value == "COMPLETE", f"{task.task_id}: {task.status.value}")
        result: Any = task.result or []
        for before, after in pairwise(result):
            fits = outside.made.get((task.task_id, after)) == before
            trial.expect(fits, f"{task.task_id} mixes two runs' steps")
        told = await store.list_updates(SESSION, task_id=task.task_id, limit=1_000)
        rows = [one.content["message"] for one in told if one.update_type is UpdateType.PROGRESS]
        trial.duplicated += len(rows) - len(set(rows))
    trial.figures = {"tasks": len(tasks), "runs": len(outside.runs)}


async def _judge_document(trial: Trial, store: RedisStateStore, outside: Outside) -> None:
    found = await store.load_memory_state("shared")
    notes = set((found or {"notes": []})["notes"])
    trial.lost += len([note for note in outside.acknowledged if note not in notes])
    trial.figures["notes"] = len(notes)
