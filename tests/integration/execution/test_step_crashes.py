"""Worker processes are killed around a step: its effect is there once, its result is the first."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from tests.processes.workers.killed.step_worker import LARGE, STEPS
from tests.support.processes import children
from tests.support.processes.pools import SESSION, client_of, queue_of
from tests.support.servers.faults import start_process
from tests.support.tasks.runs import parts_left

pytestmark = [pytest.mark.slow, pytest.mark.chaos]
LAST = "step:charge#3"


@asynccontextmanager
async def worker(
    settings: Settings, folder: Path, name: str, place: str, entry: str
) -> AsyncGenerator[children.Process, None]:
    argument: dict[str, Any] = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "queue": queue_of(settings),
        "folder": str(folder),
        "name": name,
        "place": place,
        "entry": entry,
    }
    process = await start_process("step_worker", argument)
    try:
        yield process
    finally:
        await children.end(process)


# The suite has one death of each kind, and `make test-full` has all.
@pytest.mark.parametrize(
    ("death", "again"),
    [
        (("before work", "step:charge#1"), 0),
        pytest.param(("before work", "step:charge#2"), 0, marks=pytest.mark.full),
        pytest.param(("after work", "step:charge#1"), 1, marks=pytest.mark.full),
        (("after work", "step:charge#2"), 1),
        pytest.param(("before part", "step:charge#20"), 1, marks=pytest.mark.full),
        (("before part", "step:charge#22"), 1),
        (("after part", "step:charge#21"), 1),
        pytest.param(("before step", "step:charge#2"), 1, marks=pytest.mark.full),
        (("before step", LAST), 1),
        pytest.param(("after step", "step:charge#1"), 0, marks=pytest.mark.full),
        (("after step", "step:charge#2"), 0),
        pytest.param(("after step", LAST), 0, marks=pytest.mark.full),
    ],
)
async def test_a_step_killed_anywhere_has_its_effect_once_and_is_done_again_only_if_not_noted(
    store: RedisStateStore, settings: Settings, tmp_path: Path, death: tuple[str, str], again: int
) -> None:
    place, entry = death
    async with client_of(store) as client:
        task = await client.submit("effects", session_id=SESSION)
        async with worker(settings, tmp_path, "one", place, entry) as one:
            async with asyncio.timeout(60):
                assert await one.wait() == -signal.SIGKILL
        assert (tmp_path / "killed").read_text() == f"{one.pid} {place} {entry}"
        await Queue(store, name=queue_of(settings)).put(Job(SESSION, task, 1, 0))
        async with worker(settings, tmp_path, "two", place, entry):
            ended = await client.wait(SESSION, task, timeout_s=30)
        assert (ended.status, ended.error) == (TaskStatus.COMPLETE, None)
        assert ended.result == [[1, "0", True], [LARGE, "1", True], [1, "2", True]]

        tries, effects = _outside(tmp_path)
        assert len(tries) == STEPS + again
        # One key for each step, in whichever run, and one effect for each key.
        assert {key: number for number, key in tries} == effects
        assert sorted(effects.values()) == [f"{number}" for number in range(STEPS)]

        recorded = await client.snapshots(SESSION, task)
        assert [one.version for one in recorded] == [1, 2, 3]
        epochs = [one.epoch for one in recorded]
        assert epochs == sorted(epochs)
        assert len(set(epochs)) <= 2
        assert len(await parts_left(store, task)) == 3


def _outside(folder: Path) -> tuple[list[list[str]], dict[str, str]]:
    """Tell what the outside world was asked, as number and key, and what it did: number by key."""
    tries = [line.split() for line in (folder / "tries").read_text().splitlines()]
    effects = {path.name.removeprefix("effect-"): path for path in folder.glob("effect-*")}
    return tries, {key: path.read_text() for key, path in effects.items()}
