"""Versions of a handler in a pool of processes: tasks wait for a worker that has theirs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient, UnservedTasks
from redis_state.worker.observe.registry import WorkerRecord
from tests.processes.workers.killed.versioned_worker import worker_of
from tests.support.processes import children
from tests.support.processes.pools import (
    SESSION,
    becomes,
    client_of,
    queue_of,
    queued,
    serving,
    statuses,
    steered_before,
    updates_of,
)
from tests.support.processes.worker_processes import has_begun, listed, stop, worker_process

pytestmark = pytest.mark.worker

OLD: dict[str, Any] = {"versions": ["1"], "interval_s": 0.2}
NEW = OLD | {"versions": ["2"]}


def process(
    settings: Settings, name: str, **options: Any
) -> AbstractAsyncContextManager[children.Process]:
    """Run a worker as a process, which may be killed, kill itself, or be another runner's."""
    return worker_process(settings, name, program="versioned_worker", **options)


@asynccontextmanager
async def worker(store: RedisStateStore, name: str, **options: Any) -> AsyncGenerator[None, None]:
    """Serve as that process does, in this one: for those that only begin, give back, or go on."""
    settings = store.settings

    async def idle() -> bool:
        return not await queued(store)

    async with serving(worker_of(settings, name=name, queue=queue_of(settings), **options)):
        yield
        # Cancelled while it ends a job, it would leave that to be claimed when its lease is over.
        await eventually(idle, "no job is left")


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    async with client_of(store) as opened:
        yield opened


async def paused(client: TaskClient, many: int = 1, **options: Any) -> list[str]:
    """Submit tasks, and wait until they are paused."""
    tasks = [await client.submit("ask", session_id=SESSION, **options) for _ in range(many)]
    for task in tasks:
        await becomes(client, task, TaskStatus.PAUSED)
    return tasks


async def approve(client: TaskClient, *tasks: str) -> None:
    """Approve the pauses of tasks."""
    for pause in await client.pauses():
        if pause.task_id in tasks:
            assert pause.pause_id is not None
            await client.approve(pause.pause_id)


async def parked(client: TaskClient, many: int) -> list[UnservedTasks]:
    """Wait until so many tasks wait for a version; return them."""

    found: list[UnservedTasks] = []

    async def waiting() -> bool:
        found[:] = await client.unserved()
        return sum(one.waiting for one in found) == many

    await eventually(waiting, f"{many} tasks wait for their version")
    return found


async def results(client: TaskClient, tasks: list[str]) -> list[Any]:
    """Wait for the ends of tasks; return their results."""
    ended = [await client.wait(SESSION, task, timeout_s=60) for task in tasks]
    assert {state.status for state in ended} == {TaskStatus.COMPLETE}
    return [state.result for state in ended]


async def test_in_a_rolling_deploy_each_task_is_finished_by_its_version(
    store: RedisStateStore, client: TaskClient
) -> None:
    async with process(store.settings, "old", **OLD):
        before = await paused(client, 20)
        async with process(store.settings, "new", **NEW):
            await listed(client, "old", "new")
            # New ones begin in either, and stay with what they began with.
            during = await paused(client, 20)
            await approve(client, *before, *during)
            assert await results(client, before) == [["1", "1"]] * 20
            for began, ended in await results(client, during):
                assert began == ended
            for task in [*before, *during]:
                # A worker that lacks the version gives the task back once at most.
                assert (await statuses(store, task)).count("RUNNING") <= 3
                view = await client.inspect(SESSION, task)
                assert view is not None
                assert (view.attempts, view.crashes) == (2, 0)


async def test_what_no_worker_serves_waits_at_no_cost_until_one_does(
    store: RedisStateStore, client: TaskClient
) -> None:
    async with worker(store, "old", **OLD):
        tasks = await paused(client, 120)
    async with (
        worker(store, "new", **NEW),
        worker(store, "other", **NEW),
    ):
        await approve(client, *tasks)
        (found,) = await parked(client, 120)
        assert (found.handler, found.version, found.workers) == ("ask", "1", ())
        assert set(found.tasks) <= {(SESSION, task) for task in tasks}
        cursor = await store.update_cursor(SESSION)
        # Some turns of sweepers and heartbeats later nobody has touched them.
        seen = {info.name: info.last_seen_ms for info in await client.workers()}

        async def later() -> bool:
            infos = await client.workers()
            return all(info.last_seen_ms > seen[info.name] + 3_000 for info in infos)

        await eventually(later, "three seconds have passed in the workers")
        assert (await store.read_updates(SESSION, after=cursor)).entries == []
        counted = {one.version: one.tasks for one in await client.versions(handler="ask")}
        assert counted == {"1": 120, "2": 0}
        for task in tasks[:5]:
            view = await client.inspect(SESSION, task)
            assert view is not None
            assert (view.attempts, view.crashes, view.version) == (1, 0, "1")
        # Other tasks go on meanwhile.
        await approve(client, *(fresh := await paused(client)))
        assert await results(client, fresh) == [["2", "2"]]
        async with worker(store, "again", **OLD):
            assert await results(client, tasks) == [["1", "1"]] * 120
        assert await client.unserved() == []


@pytest.mark.parametrize("queued", ["plain", "in turn"])
async def test_the_only_worker_with_a_version_is_killed(
    queued: str, store: RedisStateStore, client: TaskClient, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"attributes": {"mark": str(tmp_path / "hung")}}
    options |= {"in_turn": True} if queued == "in turn" else {}
    async with process(store.settings, "old", lease_s=0.5, **OLD) as old:
        (task,) = await paused(client, task_input="hang", **options)
        await approve(client, task)
        await eventually(lambda: has_begun(store, task), "it runs")
        assert await stop(old, signal.SIGKILL) == -signal.SIGKILL
    async with worker(store, "new", lease_s=0.5, **NEW):
        await parked(client, 1)
        view = await client.inspect(SESSION, task)
        assert view is not None
        assert (view.state.status, view.crashes) == (TaskStatus.PENDING, 1)
        # What is parked holds no permit: the session's next task has its turn.
        (other,) = await paused(client, **options)
        await approve(client, other)
        assert await results(client, [other]) == [["2", "2"]]
        async with worker(store, "again", lease_s=0.5, **OLD):
            assert await results(client, [task]) == [["1", "1"]]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("script", ["start_task", "move_task", "park_job"])
async def test_a_worker_dies_while_it_gives_a_task_back(
    when: str, script: str, store: RedisStateStore, client: TaskClient, tmp_path: Path
) -> None:
    async with worker(store, "old", **OLD):
        tasks = await paused(client, 3)
    await approve(client, *tasks)
    dies = [when, script, str(tmp_path / "died")]
    async with process(store.settings, "dies", lease_s=0.5, **NEW, die=dies) as dying:
        async with asyncio.timeout(60):
            assert await dying.wait() == -signal.SIGKILL
    async with worker(store, "new", lease_s=0.5, **NEW):
        await parked(client, 3)
        async with worker(store, "again", lease_s=0.5, **OLD):
            assert await results(client, tasks) == [["1", "1"]] * 3
    for task in tasks:
        view = await client.inspect(SESSION, task)
        assert view is not None
        assert view.attempts in (2, 3)


async def test_a_task_that_waits_for_a_version_is_cancelled_and_deleted(
    store: RedisStateStore, client: TaskClient
) -> None:
    async with worker(store, "old", **OLD):
        tasks = await paused(client, 2)
    async with worker(store, "new", **NEW):
        await approve(client, *tasks)
        await parked(client, 2)
        assert await client.cancel(SESSION, tasks[0])
        await becomes(client, tasks[0], TaskStatus.CANCELLED)
        await parked(client, 1)
        await store.clear_session(SESSION)
        await parked(client, 0)


async def test_a_cancel_that_was_meant_for_the_run_is_not_lost_with_it(
    store: RedisStateStore, client: TaskClient
) -> None:
    async with worker(store, "old", **OLD):
        (task,) = await paused(client)
    await approve(client, task)
    # As a client leaves it that found the task running.
    await steered_before(store, task, SteeringEventType.CANCEL, reason="enough")
    async with worker(store, "new", **NEW):
        ended = await becomes(client, task, TaskStatus.CANCELLED)
        assert ended.error == "enough"
        assert await client.unserved() == []


async def test_a_later_task_of_the_id_does_not_wait_for_the_version_of_the_first(
    store: RedisStateStore, client: TaskClient
) -> None:
    async with worker(store, "old", **OLD):
        (task,) = await paused(client, task_id="again", in_turn=True)
    async with worker(store, "new", **NEW):
        await approve(client, task)
        await parked(client, 1)
        await store.clear_session(SESSION)
        await paused(client, task_id="again", in_turn=True)
        await approve(client, task)
        assert await results(client, [task]) == [["2", "2"]]
        await parked(client, 0)


async def test_a_handler_that_only_new_workers_have_is_left_to_them(
    store: RedisStateStore, client: TaskClient
) -> None:
    async with (
        worker(store, "old", **OLD),
        worker(store, "new", fresh=True, **NEW),
    ):
        await listed(client, "old", "new")
        tasks = [await client.submit("fresh", session_id=SESSION) for _ in range(40)]
        assert await results(client, tasks) == ["new"] * 40
        wrong = await client.submit("frehs", session_id=SESSION)
        ended = await client.wait(SESSION, wrong, timeout_s=60)
        assert ended.status is TaskStatus.FAILED
        assert "no handler named 'frehs'" in str(ended.error)


async def test_what_only_a_killed_worker_had_waits_for_the_next_one(
    store: RedisStateStore, client: TaskClient
) -> None:
    async with process(store.settings, "has", fresh=True, **OLD) as killed:
        await listed(client, "has")
        assert await stop(killed, signal.SIGKILL) == -signal.SIGKILL
    # As if it had been cut off for longer than its record lives.
    for gone in await client.workers():
        record = store.base.keys.worker(f"{gone.name}#{gone.instance}")
        await store.transport.sender.send("DEL", record, repeatable=True)
    async with worker(store, "lacks", **NEW):
        await listed(client, "lacks")
        task = await client.submit("fresh", session_id=SESSION)
        (found,) = await parked(client, 1)
        assert (found.handler, found.version, found.workers) == ("fresh", None, ())
        # No worker had this one.
        wrong = await client.submit("frehs", session_id=SESSION)
        assert (await client.wait(SESSION, wrong, timeout_s=60)).status is TaskStatus.FAILED
        async with worker(store, "has again", fresh=True, **OLD):
            assert await results(client, [task]) == ["has again"]


async def test_a_worker_judges_no_name_while_others_may_still_be_cut_off(
    store: RedisStateStore, client: TaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady: list[bool] = []
    monkeypatch.setattr(WorkerRecord, "is_steady", property(lambda _: bool(steady)))
    monkeypatch.setattr("redis_state.worker.runs.run._UNSURE_S", (0.01, 0.01))
    async with worker(store, "lacks", **OLD):
        task = await client.submit("fresh", session_id=SESSION)

        async def given_back() -> bool:
            return (await statuses(store, task)).count("PENDING") > 2

        await eventually(given_back, "it was given back twice")
        view = await client.inspect(SESSION, task)
        assert view is not None
        assert (view.attempts - (view.state.status is TaskStatus.RUNNING), view.crashes) == (0, 0)
        steady.append(True)
        assert (await client.wait(SESSION, task, timeout_s=60)).status is TaskStatus.FAILED


async def test_a_burst_is_worked_off_beside_what_is_parked(
    store: RedisStateStore, client: TaskClient
) -> None:
    async with worker(store, "old", **OLD):
        tasks = await paused(client, 60)
    async with worker(store, "new", max_tasks=1, **NEW):
        await approve(client, *tasks)
        await parked(client, 60)
    both = OLD | {"versions": ["1", "2"]}
    async with worker(store, "both", max_tasks=1, **both):
        later = await paused(client, 5)
        await approve(client, *later)
        assert await results(client, later) == [["2", "2"]] * 5
        assert await results(client, tasks) == [["1", "1"]] * 60


async def test_arqs_own_runner_serves_and_gives_back(
    store: RedisStateStore, client: TaskClient
) -> None:
    async with worker(store, "old", **OLD):
        tasks = await paused(client, 3)
    async with worker(store, "new", **NEW):
        await approve(client, *tasks)
        await parked(client, 3)
    async with process(store.settings, "arq", runner="arq", **OLD):
        assert await results(client, tasks) == [["1", "1"]] * 3
        (last,) = await paused(client)
    async with process(store.settings, "lacks", runner="arq", **NEW):
        await approve(client, last)

        async def given_back() -> bool:
            waits = [update.content for update in await updates_of(store, last)]
            return any(content.get("waits_for_version") == "1" for content in waits)

        await eventually(given_back, "it was given back")
        async with worker(store, "has", **OLD):
            assert await results(client, [last]) == [["1", "1"]]
