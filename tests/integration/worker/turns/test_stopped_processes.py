"""What a new task stops is really stopped: seen from its handler, in worker processes that die."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, TaskInProgress
from redis_state.models import TaskState, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient
from tests.support.processes import children
from tests.support.processes.pools import SESSION, becomes, client_of
from tests.support.processes.worker_processes import stop, worker_process

pytestmark = pytest.mark.slow

_LEASE_S = 2.0


@dataclass
class Pool:
    """A client, and worker processes that write down what their handlers do."""

    store: RedisStateStore
    client: TaskClient
    folder: Path
    workers: dict[str, children.Process]
    stack: AsyncExitStack

    async def start(self, name: str) -> None:
        """Start one more worker process."""
        self.workers[name] = await self.stack.enter_async_context(
            worker_process(
                *(self.store.settings, name),
                program="stopped_worker",
                folder=str(self.folder),
                lease_s=_LEASE_S,
            )
        )

    async def kill(self, name: str) -> None:
        """Kill a worker process on the spot."""
        assert await stop(self.workers[name], signal.SIGKILL) == -signal.SIGKILL

    async def submit(self, handler: str, name: str, **options: Any) -> None:
        """Submit a task of the session, in turn."""
        await self.client.submit(handler, session_id=SESSION, task_id=name, in_turn=True, **options)

    async def ends(self, name: str) -> TaskState:
        """Wait for a task's end."""
        return await self.client.wait(SESSION, name, timeout_s=60)

    def stay(self, what: str, *, stay: bool = True) -> None:
        """Let handlers stay where they have written this down, or go on."""
        file = self.folder / f"stay {what}"
        file.touch() if stay else file.unlink()

    def notes(self) -> list[str]:
        """List what the handlers have written down."""
        file = self.folder / "notes"
        lines = file.read_text().splitlines() if file.exists() else []
        return [" ".join(json.loads(line)) for line in lines]

    async def wrote(self, what: str) -> None:
        """Wait until this is written down."""
        await eventually(lambda: what in self.notes(), f"{what!r} is written down")


@pytest.fixture
async def pool(store: RedisStateStore, tmp_path: Path) -> AsyncGenerator[Pool, None]:
    async with _pool(store, tmp_path) as opened:
        yield opened


@asynccontextmanager
async def _pool(store: RedisStateStore, folder: Path) -> AsyncGenerator[Pool, None]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(client_of(store))
        yield Pool(store, client, folder, {}, stack)


def _is_interrupted(state: TaskState) -> None:
    assert state.status is TaskStatus.CANCELLED
    assert state.error == "interrupted by task 'new'; undone: undo#1"


async def test_a_running_task_that_is_interrupted_sees_it_and_undoes_before_the_next_begins(
    pool: Pool,
) -> None:
    await pool.start("one")
    await pool.start("two")
    await pool.submit("runs", "old")
    await pool.wrote("begun old")
    await pool.submit("ends", "new", on_busy="interrupt")
    _is_interrupted(await pool.ends("old"))
    assert (await pool.ends("new")).status is TaskStatus.COMPLETE
    assert pool.notes() == ["begun old", "cancelled old", "undoing old", "undone old", "begun new"]


@pytest.mark.parametrize("at", ["begun", "cancelled", "undoing"])
async def test_a_task_is_interrupted_although_its_worker_is_killed_once_it_has(
    pool: Pool, at: str
) -> None:
    await pool.start("one")
    if at != "begun":
        pool.stay(at)
    await pool.submit("waits" if at == "begun" else "runs", "old")
    await pool.wrote("begun old")
    await pool.submit("ends", "new", on_busy="interrupt")
    await pool.wrote(f"{at} old")
    await pool.kill("one")
    if at != "begun":
        pool.stay(at, stay=False)
    before = len(pool.notes())
    await pool.start("two")
    _is_interrupted(await pool.ends("old"))
    assert (await pool.ends("new")).status is TaskStatus.COMPLETE
    # Its second run only finds what is to be undone. The new task need not wait for that.
    after = pool.notes()[before:]
    assert [each for each in after if "old" in each] == ["begun old", "undoing old", "undone old"]
    assert after.count("begun new") == len(after) - 3 == 1


@pytest.mark.parametrize("handler", ["asks", "sleeps"])
async def test_a_paused_task_is_interrupted_although_its_worker_is_dead(
    pool: Pool, handler: str
) -> None:
    await pool.start("one")
    await pool.submit(handler, "old")
    await becomes(pool.client, "old", TaskStatus.PAUSED)
    await pool.kill("one")
    await pool.submit("ends", "new", on_busy="interrupt")
    await pool.start("two")
    _is_interrupted(await pool.ends("old"))
    assert (await pool.ends("new")).status is TaskStatus.COMPLETE
    # The second run of it only finds what is to be undone.
    assert pool.notes() == ["begun old", "begun old", "undoing old", "undone old", "begun new"]


async def test_a_task_that_is_put_off_is_passed_by_what_interrupts(pool: Pool) -> None:
    await pool.start("one")
    await pool.start("two")
    await pool.submit("runs", "old")
    await pool.submit("ends", "later", delay=timedelta(hours=1))
    await pool.wrote("begun old")
    await pool.submit("ends", "new", on_busy="interrupt")
    _is_interrupted(await pool.ends("old"))
    assert (await pool.ends("new")).status is TaskStatus.COMPLETE
    await becomes(pool.client, "later", TaskStatus.PENDING)
    assert "begun later" not in pool.notes()


async def test_what_waits_and_what_is_put_off_is_replaced_although_a_worker_is_killed(
    pool: Pool,
) -> None:
    await pool.start("one")
    await pool.submit("runs", "first")
    await pool.wrote("begun first")
    await pool.submit("ends", "waiting")
    await pool.submit("ends", "later", delay=timedelta(seconds=1))
    await pool.submit("ends", "new", on_busy="replace")
    await pool.kill("one")
    for name in ("waiting", "later"):
        ended = await pool.ends(name)
        assert (ended.status, ended.error) == (TaskStatus.CANCELLED, "replaced by task 'new'")
    await pool.start("two")
    # What has begun goes on, in another worker, and the new one waits for it.
    await eventually(lambda: pool.notes() == ["begun first"] * 2, "it is taken over")
    await becomes(pool.client, "new", TaskStatus.PENDING)
    await pool.client.cancel(SESSION, "first")
    assert (await pool.ends("new")).status is TaskStatus.COMPLETE
    assert pool.notes()[2:] == ["cancelled first", "undoing first", "undone first", "begun new"]


async def test_what_a_killed_worker_ran_is_in_the_way_until_it_has_ended(pool: Pool) -> None:
    await pool.start("one")
    await pool.submit("runs", "old")
    await pool.wrote("begun old")
    await pool.kill("one")
    with pytest.raises(TaskInProgress) as busy:
        await pool.submit("ends", "refused", on_busy="reject")
    assert busy.value.task_id == "old"
    await pool.submit("ends", "next", on_busy="enqueue")
    await pool.start("two")
    await eventually(lambda: pool.notes() == ["begun old"] * 2, "it is taken over")
    with pytest.raises(TaskInProgress):
        await pool.submit("ends", "refused", on_busy="reject")
    await becomes(pool.client, "next", TaskStatus.PENDING)
    await pool.client.cancel(SESSION, "old")
    assert (await pool.ends("next")).status is TaskStatus.COMPLETE
    await pool.submit("ends", "last", on_busy="reject")
    assert (await pool.ends("last")).status is TaskStatus.COMPLETE
    assert await pool.client.get(SESSION, "refused") is None
    assert pool.notes()[-2:] == ["begun next", "begun last"]
