"""Workers are killed in the middle of undoing: each thing is undone, the last one first."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskState, TaskStatus, UpdateType
from redis_state.worker import TaskClient
from redis_state.worker.tasks.recorded.compensations import read_compensations
from tests.processes.workers.killed.saga_worker import BOOKED
from tests.support.processes.pools import SESSION, client_of, open_token, updates_of
from tests.support.processes.worker_processes import worker_process

pytestmark = [pytest.mark.slow, pytest.mark.chaos]
TASK = "t"

PLACES = [
    "before undo:#cancel#2",
    "after compensating",
    "after undone:#cancel#3",
    "before undo 2",
    "after undo 2",
    "before undone:#cancel#1",
    "before move_task",
]


async def run_through(
    store: RedisStateStore, client: TaskClient, folder: Path, places: list[str]
) -> TaskState:
    """Start a worker process after the other, as many as die, until the task is terminal."""
    options: dict[str, Any] = {"program": "saga_worker", "folder": str(folder), "places": places}
    async with AsyncExitStack() as stack:
        for number, _ in enumerate(places):
            starting = worker_process(store.settings, f"{number}", **options)
            dying = await stack.enter_async_context(starting)
            async with asyncio.timeout(60):
                assert await dying.wait() == -signal.SIGKILL
        await stack.enter_async_context(worker_process(store.settings, "last", **options))
        return await client.wait(SESSION, TASK, timeout_s=60)


def log_of(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "log").read_text().splitlines()]


async def check_undone(store: RedisStateStore, folder: Path, *, again: dict[str, int]) -> None:
    """Check that each was undone in turn under one key, and again only if that was not recorded."""
    undone = [line for line in log_of(folder) if line[0] == "undo"]
    numbers = [number for _, number, _ in undone]
    expected = [
        number for number in map(str, range(BOOKED, 0, -1)) for _ in range(1 + again.get(number, 0))
    ]
    assert numbers == expected
    assert len({key for _, _, key in undone}) == BOOKED
    recorded = await read_compensations(store, SESSION, TASK)
    assert [(one.name, one.state) for one in recorded] == [
        (f"cancel#{number}", "undone") for number in range(1, BOOKED + 1)
    ]
    told = [
        update.content["notice"]
        for update in await updates_of(store, TASK)
        if update.update_type is UpdateType.NOTIFICATION and "notice" in update.content
    ]
    assert told == ["compensating", "compensated"]


@pytest.mark.parametrize(
    "places",
    [
        ["after undo 2"],
        pytest.param(PLACES, id="everywhere"),
        *(pytest.param([place], marks=pytest.mark.full, id=place) for place in PLACES),
    ],
)
async def test_workers_that_die_while_undoing_leave_the_rest_to_the_next(
    store: RedisStateStore, tmp_path: Path, places: list[str]
) -> None:
    async with client_of(store) as client:
        await client.submit("trip", session_id=SESSION, task_id=TASK)
        ended = await run_through(store, client, tmp_path, places)
    assert ended.status is TaskStatus.FAILED
    assert ended.error == "ValueError: no flight; undone: cancel#3, cancel#2, cancel#1"
    again = {"2": int("after undo 2" in places), "1": int("before undone:#cancel#1" in places)}
    await check_undone(store, tmp_path, again=again)
    # From the failure on nothing is done but undoing.
    done = [line[0] for line in log_of(tmp_path)]
    assert done.index("undo") == len([one for one in done if one != "undo"])


async def test_a_paused_task_that_is_cancelled_is_undone_through_deaths(
    store: RedisStateStore, tmp_path: Path
) -> None:
    places = ["after compensating", "after undo 2"]
    options: dict[str, Any] = {"program": "saga_worker", "folder": str(tmp_path)}
    async with client_of(store) as client:
        await client.submit("trip", "wait", session_id=SESSION, task_id=TASK)
        async with worker_process(store.settings, "first", places=[], **options):
            await open_token(store, TASK)
        assert await client.cancel(SESSION, TASK, reason="too dear")
        ended = await run_through(store, client, tmp_path, places)
    assert ended.status is TaskStatus.CANCELLED
    assert ended.error == "too dear; undone: cancel#3, cancel#2, cancel#1"
    await check_undone(store, tmp_path, again={"2": 1})
    assert "fly" not in [line[0] for line in log_of(tmp_path)]
