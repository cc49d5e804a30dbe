"""The gaps that a crash leaves between a parent and its child are closed by a sweeper."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import InvalidTransition, LeaseLost
from redis_state.models import TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from redis_state.worker.recovery.report import SweepReport
from redis_state.worker.tasks.children.children import ChildTasks
from redis_state.worker.tasks.children.requests import SpawnRequest
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import (
    SESSION,
    client_of,
    queue_of,
    queued,
)
from tests.support.processes.worker_processes import stop, worker_process
from tests.support.tasks.children import spawn_one, state_of, sweep
from tests.support.tasks.crash_states import sweeper_of
from tests.support.tasks.runs import TASK, make, run_once, take


async def test_a_run_that_was_taken_over_or_ended_spawns_nothing(store: RedisStateStore) -> None:
    await make(store)
    stale, current = await take(store), await take(store)
    requested = SpawnRequest.read(stale, "h", None, {})
    with pytest.raises(LeaseLost):
        await ChildTasks(store).spawn(stale, "child:h#1", requested)
    await TaskTransitions(store).finish_run(current, TaskStatus.COMPLETE)
    with pytest.raises(InvalidTransition):
        await ChildTasks(store).spawn(current, "child:h#1", requested)
    assert [task.task_id for task in await store.list_tasks(SESSION)] == [TASK]


async def test_a_child_that_was_written_and_not_queued_is_queued_by_a_sweeper(
    store: RedisStateStore,
) -> None:
    child = await spawn_one(store)
    assert await queued(store) == []
    assert await sweep(store, child.task_id) == SweepReport(looked=1, requeued=1)
    assert [name.split("/")[1] for name in await queued(store)] == [f"{child.task_id}:0"]


async def test_a_parent_whose_childs_worker_died_after_the_end_is_woken_by_a_sweeper(
    store: RedisStateStore,
) -> None:
    async def parent(ctx: TaskContext) -> Any:
        return await ctx.join(await ctx.spawn("h"))

    await make(store)
    assert (await run_once(store, parent)).status is TaskStatus.PAUSED
    (_, child) = await store.list_tasks(SESSION)
    assert await sweep(store, TASK) == SweepReport(looked=1)
    ended = await take(store, child.task_id)
    # The child is over, and nobody has told.
    await TaskTransitions(store).finish_run(ended, TaskStatus.COMPLETE, result="done")
    assert (await state_of(store, TASK)).status is TaskStatus.PAUSED
    assert await sweep(store, TASK) == SweepReport(looked=1, woken=1, requeued=1)
    assert (await run_once(store, parent)).result == "done"


async def test_a_parent_that_waits_for_a_child_that_is_given_up_goes_on_within_seconds(
    store: RedisStateStore,
) -> None:
    async def parent(ctx: TaskContext) -> Any:
        return await ctx.join(await ctx.spawn("h"))

    await make(store)
    await run_once(store, parent)
    (_, child) = await store.list_tasks(SESSION)
    for _ in range(4):
        await take(store, child.task_id)
    lease = store.base.keys.lease(SESSION, child.task_id)
    await store.transport.sender.send("HSET", lease, "expires", 0, repeatable=True)
    report = await sweep(store, child.task_id)
    assert report.failed == 1
    assert (await state_of(store, child.task_id)).status is TaskStatus.FAILED

    async def woken() -> bool:
        await sweeper_of(store).run_once()
        return (await state_of(store, TASK)).status is TaskStatus.PENDING

    await eventually(woken, "the parent goes on")
    assert "given up" in ((await run_once(store, parent)).error or "")


@pytest.mark.slow
@pytest.mark.chaos
async def test_sums_come_out_right_while_workers_are_killed(
    store: RedisStateStore, settings: Settings
) -> None:
    numbers = [list(range(first, first + 6)) for first in range(6)]
    async with client_of(store) as client, AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                worker_process(settings, f"w{one}", program="family_worker", lease_s=1.0)
            )
            for one in range(4)
        ]
        tasks = [await client.submit("total", some, session_id=SESSION) for some in numbers]
        for worker, some in zip(workers, (4, 12), strict=False):

            async def over(some: int = some) -> bool:
                states = await store.list_tasks(SESSION)
                return sum(state.status.is_terminal for state in states) > some

            await eventually(over, f"{some} tasks end", timeout_s=30)
            worker.send_signal(signal.SIGKILL)
            assert await worker.wait() == -signal.SIGKILL
        results = [await client.result(SESSION, task, timeout_s=60) for task in tasks]
        assert results == [sum(number * number for number in some) for some in numbers]
        states = await store.list_tasks(SESSION)
        assert len(states) == 6 + 36
        assert {state.status for state in states} == {TaskStatus.COMPLETE}


async def test_the_children_of_a_tenant_keep_its_limit_while_a_worker_is_killed(
    store: RedisStateStore, settings: Settings
) -> None:
    async with client_of(store) as client, AsyncExitStack() as stack:
        await client.queues.limit(queue_of(settings), per_key=2)
        first, _ = [
            await stack.enter_async_context(
                worker_process(settings, name, program="family_worker", lease_s=1.0)
            )
            for name in ("one", "two")
        ]
        options: dict[str, Any] = {"limit_key": "acme", "attributes": {"tenant": "acme"}}
        task = await client.submit("total", list(range(10)), session_id=SESSION, **options)

        async def some_ended() -> bool:
            return any(state.status.is_terminal for state in await store.list_tasks(SESSION))

        await eventually(some_ended, "a child has ended")
        assert await stop(first, signal.SIGKILL) == -signal.SIGKILL
        total = sum(number * number for number in range(10))
        assert await client.result(SESSION, task, timeout_s=60) == total
    running, most = set[str](), 0
    for update in await store.list_updates(SESSION):
        if update.update_type is UpdateType.STATUS_CHANGE:
            is_running = update.content["status"] == "RUNNING"
            (running.add if is_running else running.discard)(update.task_id)
            most = max(most, len(running))
    # The parent is one of them.
    assert 1 <= most <= 2
