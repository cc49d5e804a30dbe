"""Children are cancelled with their parent, wherever they stand, and with no other."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Handler, TaskContext
from redis_state.worker.tasks.children.cancelling import WITH_PARENT, CancelCascade
from redis_state.worker.tasks.children.children import ChildTasks
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import (
    SESSION,
    becomes,
    client_of,
    pool,
)
from tests.support.processes.worker_processes import worker_process
from tests.support.tasks.children import (
    child_of,
    double_of,
    spawn_one,
    state_of,
    sweep,
    until_cancelled,
    which_run,
)
from tests.support.tasks.runs import TASK, make, run_once, take


@pytest.mark.parametrize("stands", ["PENDING", "RUNNING", "PAUSED"])
async def test_what_is_left_of_a_cancelled_parent_is_cancelled_by_a_sweeper(
    store: RedisStateStore, stands: str
) -> None:
    async def ask(ctx: TaskContext) -> None:
        await ctx.approval("?")

    child = await spawn_one(store)
    if stands == "PAUSED":
        await run_once(store, ask, task_id=child.task_id)
    elif stands == "RUNNING":
        await take(store, child.task_id)
    # Its worker dies between the task's end and those of its children.
    await TaskTransitions(store).finish_run(await take(store), TaskStatus.CANCELLED, error="enough")
    assert (await state_of(store, child.task_id)).status.value == stands
    report = await sweep(store, child.task_id)
    assert report.parent_cancelled == 1
    if stands == "RUNNING":
        # It has been told, once, however often a sweeper finds it.
        await sweep(store, child.task_id)
        (event,) = await store.list_steering(SESSION, task_id=child.task_id)
        assert event.event_type.value == "CANCEL"
    else:
        state = await state_of(store, child.task_id)
        assert (state.status, state.error) == (TaskStatus.CANCELLED, WITH_PARENT)


async def test_a_child_that_starts_after_its_parent_was_cancelled_does_not_run(
    store: RedisStateStore,
) -> None:
    ran: list[int] = []

    async def handler(ctx: TaskContext) -> None:
        ran.append(ctx.attempt)

    child = await spawn_one(store)
    await TaskTransitions(store).finish_run(await take(store), TaskStatus.CANCELLED)
    state = await run_once(store, handler, task_id=child.task_id)
    assert (state.status, state.error, ran) == (TaskStatus.CANCELLED, WITH_PARENT, [])


@pytest.mark.parametrize("status", [TaskStatus.COMPLETE, TaskStatus.FAILED])
async def test_a_child_goes_on_when_its_parent_ends_in_another_way(
    store: RedisStateStore, status: TaskStatus
) -> None:
    child = await spawn_one(store)
    await TaskTransitions(store).finish_run(await take(store), status)
    assert (await sweep(store, child.task_id)).parent_cancelled == 0
    state = await run_once(store, which_run, task_id=child.task_id)
    assert state.status is TaskStatus.COMPLETE


async def test_an_isolated_child_goes_on_when_its_parent_is_cancelled(
    store: RedisStateStore,
) -> None:
    child = await spawn_one(store, isolate=True)
    await TaskTransitions(store).finish_run(await take(store), TaskStatus.CANCELLED)
    await CancelCascade(store, ChildTasks(store)).cancel_children(SESSION, TASK, None)
    assert (await sweep(store, child.task_id)).parent_cancelled == 0
    state = await run_once(store, which_run, task_id=child.task_id)
    assert state.status is TaskStatus.COMPLETE


@pytest.mark.parametrize("hard", [False, True])
async def test_cancelling_reaches_every_descendant_wherever_it_stands(
    store: RedisStateStore,
    hard: bool,  # noqa: FBT001
) -> None:
    async def ask(ctx: TaskContext) -> None:
        await ctx.approval("?")

    async def middle(ctx: TaskContext) -> None:
        for handler in ("forever", "ask", "nobody's"):
            queue = f"nobody-{ctx.store.settings.namespace}" if handler == "nobody's" else None
            await ctx.spawn(handler, queue=queue)
        await ctx.spawn("ask", name="alone", isolate=True)
        await until_cancelled(ctx)

    async def parent(ctx: TaskContext) -> None:
        await ctx.join(await ctx.spawn("middle"))

    handlers: dict[str, Handler] = {
        "ask": ask,
        "middle": middle,
        "parent": parent,
        "forever": until_cancelled,
    }
    async with pool(store, handlers) as client:
        task = await client.submit("parent", session_id=SESSION)
        (below,) = await child_of(client, task)
        running, asking, waiting, alone = await child_of(client, below.task_id, count=4)
        await becomes(client, task, TaskStatus.PAUSED)
        await becomes(client, running.task_id, TaskStatus.RUNNING)
        await becomes(client, asking.task_id, TaskStatus.PAUSED)
        assert await client.cancel(SESSION, task, reason="enough", hard=hard)
        for name in (task, below.task_id, running.task_id, asking.task_id, waiting.task_id):
            state = await becomes(client, name, TaskStatus.CANCELLED)
            assert state.error == ("enough" if name == task else f"{WITH_PARENT}: enough")
        await becomes(client, alone.task_id, TaskStatus.PAUSED)
        assert await client.cancel(SESSION, alone.task_id)


@pytest.mark.slow
@pytest.mark.chaos
async def test_a_tree_is_cancelled_whole_though_the_worker_of_its_root_is_killed(
    store: RedisStateStore, settings: Settings
) -> None:
    async with client_of(store) as client, AsyncExitStack() as stack:
        first, _ = [
            await stack.enter_async_context(
                worker_process(settings, f"w{one}", program="family_worker", lease_s=1.0)
            )
            for one in range(2)
        ]
        roots = [await client.submit("endless", 3, session_id=SESSION) for _ in range(3)]

        async def grown() -> bool:
            states = await store.list_tasks(SESSION)
            return [state.status for state in states] == [TaskStatus.RUNNING] * 12

        await eventually(grown, "all have begun", timeout_s=30)
        first.send_signal(signal.SIGKILL)
        for root in roots:
            assert await client.cancel(SESSION, root, reason="enough")
        assert await first.wait() == -signal.SIGKILL

        async def all_cancelled() -> bool:
            states = await store.list_tasks(SESSION)
            return {state.status for state in states} == {TaskStatus.CANCELLED}

        await eventually(all_cancelled, "nothing is left of the trees", timeout_s=60)


async def test_a_task_of_an_earlier_ones_id_has_none_of_its_children(
    store: RedisStateStore,
) -> None:
    child = await spawn_one(store)
    key = store.base.keys.task(SESSION, TASK)
    await store.transport.sender.send("DEL", key, repeatable=True)
    await make(store)
    async with client_of(store) as client:
        assert await client.children(SESSION, TASK) == []
        assert await client.cancel(SESSION, TASK, reason="enough")
    # Told by the index no more; and found by the child itself no more.
    await sweep(store, child.task_id)
    state = await run_once(store, double_of(3), task_id=child.task_id)
    assert (state.status, state.result) == (TaskStatus.COMPLETE, 6)


async def test_what_is_left_in_an_index_is_cancelled_with_its_own_parent_only(
    store: RedisStateStore,
) -> None:
    child = await spawn_one(store)
    key = store.base.keys.task(SESSION, TASK)
    order = await store.transport.sender.send("HGET", key, "order", repeatable=True)
    await store.transport.sender.send("HSET", key, "order", int(order) + 1, repeatable=True)
    family = CancelCascade(store, ChildTasks(store))
    await family.cancel_children(SESSION, TASK, "enough")
    assert (await state_of(store, child.task_id)).status is TaskStatus.PENDING
    await store.transport.sender.send("HSET", key, "order", order, repeatable=True)
    await family.cancel_children(SESSION, TASK, "enough")
    assert (await state_of(store, child.task_id)).status is TaskStatus.CANCELLED
