"""Live clients and workers under whom a server misbehaves, and the judgement of what is left.

Every acknowledged write is there, unless the server's history went back behind it. Whatever is
there fits together: no epoch names two runs, no task's result mixes two runs' steps, no save is
overwritten unseen, no row is repeated or skipped.
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

from redis_state import RedisStateStore, Settings
from redis_state.errors import BackendError, CursorGap, VersionConflict
from redis_state.models import StateUpdate, UpdateType
from redis_state.testing import eventually
from redis_state.worker import AgentWorker, TaskClient, TaskContext
from tests.chaos.support.trial import Trial
from tests.support.processes.pools import SESSION, queue_of

_STEPS = 4
_LEASE_S = 1.0


@dataclass
class Outside:
    """What the workers and clients know, and no server forgets."""

    # Task and epoch -> the runs that had it.
    runs: defaultdict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    # Task and a step's result -> what it was made from.
    made: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    # What was acknowledged since the history went back last: notes of the shared document, rows.
    notes: list[str] = field(default_factory=list[str])
    rows: list[int] = field(default_factory=list[int])
    heard: list[int] = field(default_factory=list[int])
    rollbacks: int = 0

    def went_back(self) -> None:
        """Expect no more what was acknowledged before: it may be lost."""
        self.rollbacks += 1
        self.notes.clear()
        self.rows.clear()


@asynccontextmanager
async def load(trial: Trial, settings: Settings) -> AsyncGenerator[Outside]:
    """Have clients and workers at work for the length of the block, then judge what is left."""
    outside = Outside()
    async with (
        RedisStateStore(settings) as store,
        TaskClient(store, queue=queue_of(settings)) as client,
        _workers(settings, outside),
    ):
        async with _calling(trial, client, outside):
            yield outside
        await _judge_tasks(trial, client, outside)
        await _judge_rows(trial, store, outside)
        await _judge_document(trial, store, outside)
    doubled = [name for name, runs in outside.runs.items() if len(runs) > 1]
    trial.expect(not doubled, f"epochs that name two runs: {doubled[:3]}")


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
            queue=queue_of(settings),
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


@asynccontextmanager
async def _calling(trial: Trial, client: TaskClient, outside: Outside) -> AsyncGenerator[None]:
    store = client.store
    watching = asyncio.create_task(_watch(trial, store, outside))
    calling = [
        asyncio.create_task(each)
        for each in (
            _submit(trial, client),
            _append(trial, store, outside),
            *(_count(store, outside, name) for name in "ab"),
        )
    ]
    try:
        yield
    finally:
        for task in calling:
            task.cancel()
        ended = await asyncio.gather(*calling, return_exceptions=True)
    for error in ended:
        trial.expect(isinstance(error, asyncio.CancelledError), f"a caller ended: {error!r}")
    last = max(outside.rows, default=0)
    await eventually(
        lambda: watching.done() or max(outside.heard, default=0) >= last, "all rows are heard"
    )
    trial.expect(not watching.done(), "the watcher ended")
    watching.cancel()
    await asyncio.wait({watching})


async def _submit(trial: Trial, client: TaskClient) -> None:
    while True:
        with trial.history.doing("submit"):
            await client.submit("chain", session_id=SESSION)
        await asyncio.sleep(0.1)


async def _append(trial: Trial, store: RedisStateStore, outside: Outside) -> None:
    number = 0
    while True:
        number += 1
        update = StateUpdate(
            session_id="rows", task_id="t", update_type=UpdateType.PROGRESS, content=number
        )
        rollbacks = outside.rollbacks
        with trial.history.doing("append"):
            await store.save_update(update)
            if outside.rollbacks == rollbacks:
                outside.rows.append(number)
        await asyncio.sleep(0.002 if trial.size.full else 0.005)


async def _watch(trial: Trial, store: RedisStateStore, outside: Outside) -> None:
    """Follow the rows. They are numbered: each is greater than all before, whatever was lost.

    Only the last one may come again, if it was lost before its append had a reply: it is appended
    again, under its own id.
    """
    cursor, last, last_id, rewound = None, 0, "", False
    while True:
        try:
            async with aclosing(store.watch_updates("rows", after=cursor)) as rows:
                async for entry in rows:
                    number, is_last = int(entry.value.content), entry.value.update_id == last_id
                    cursor, last_id = entry.cursor, entry.value.update_id
                    if not (is_last and rewound):
                        trial.expect(number > last, f"row {number} after {last}")
                        outside.heard.append(number)
                    last, rewound = max(last, number), False
        except CursorGap as gap:
            # Before the first mark there was no row at all.
            cursor, rewound = gap.resume_after, True
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
                outside.notes.append(note)
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
        reported = await store.list_updates(SESSION, task_id=task.task_id, limit=1_000)
        rows = [
            one.content["message"] for one in reported if one.update_type is UpdateType.PROGRESS
        ]
        trial.duplicated += len(rows) - len(set(rows))
    trial.figures |= {"tasks": len(tasks), "runs": len(outside.runs)}


async def _judge_rows(trial: Trial, store: RedisStateStore, outside: Outside) -> None:
    reported = await store.list_updates("rows", limit=1_000_000)
    rows = [int(each.content) for each in reported]
    trial.lost += len(set(outside.rows) - set(rows)) + len(set(outside.rows) - set(outside.heard))
    trial.duplicated += len(rows) - len(set(rows)) + len(outside.heard) - len(set(outside.heard))
    trial.expect(rows == sorted(rows), "rows stand in another order than they were appended in")
    trial.figures["rows"] = len(rows)


async def _judge_document(trial: Trial, store: RedisStateStore, outside: Outside) -> None:
    found = await store.load_memory_state("shared")
    notes = set((found or {"notes": []})["notes"])
    trial.lost += len([note for note in outside.notes if note not in notes])
    trial.figures["notes"] = len(notes)
