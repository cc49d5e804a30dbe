"""Children: spawned once, waited for without a worker, cancelled with their parent."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings, TaskFailed, TaskWasCancelled
from redis_state.errors import InvalidField, InvalidTransition, LeaseLost
from redis_state.models import TaskState, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import ChildTask, Handler, TaskClient, TaskContext
from redis_state.worker.recovery.report import SweepReport
from redis_state.worker.tasks.children.cancelling import WITH_PARENT, CancelCascade
from redis_state.worker.tasks.children.children import ChildTasks
from redis_state.worker.tasks.children.requests import SpawnRequest
from redis_state.worker.tasks.moves import watch_entry
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import (
    SESSION,
    becomes,
    client_of,
    pool,
    queue_of,
    queued,
    statuses,
)
from tests.support.processes.worker_processes import worker_process
from tests.support.tasks.crash_states import close_queues, make_due, sweeper_of
from tests.support.tasks.runs import TASK, begin_again, make, run_once, run_to_the_end, take


@pytest.fixture(autouse=True)
async def _no_queue_stays_open() -> AsyncIterator[None]:
    yield
    await close_queues()


async def double(ctx: TaskContext) -> int:
    return int(2 * ctx.input)


async def forever(ctx: TaskContext) -> None:
    await ctx.progress("begun")
    while True:
        await ctx.checkpoint()
        await asyncio.sleep(0.005)


async def sweep(store: RedisStateStore, task: str) -> SweepReport:
    """Have a sweeper look at a task now."""
    await make_due(store, watch_entry(SESSION, task))
    return await sweeper_of(store).run_once()


async def state_of(store: RedisStateStore, task: str) -> TaskState:
    state = await store.tasks.load(SESSION, task)
    assert state is not None
    return state


async def child_of(client: TaskClient, task: str, *, count: int = 1) -> list[TaskState]:
    """Wait until a task has so many children."""

    async def found() -> list[TaskState] | None:
        children = list(await client.children(SESSION, task))
        return children if len(children) == count else None

    children = await eventually(found, f"{task} has {count} children")
    assert children is not None
    return children


async def spawn_one(store: RedisStateStore, **options: Any) -> ChildTask:
    """Have a running task spawn a child, and leave it running."""
    await make(store)
    started = await take(store)
    requested = SpawnRequest.read(started, "h", None, options)  # type: ignore[arg-type]
    return await ChildTasks(store).spawn(started, "child:h#1", requested)


async def test_a_parent_adds_up_what_its_children_return_in_its_own_session(
    store: RedisStateStore,
) -> None:
    async def parent(ctx: TaskContext) -> list[Any]:
        children = [await ctx.spawn("child", number, priority=number) for number in range(3)]
        return [await ctx.join(child) for child in children]

    async def child(ctx: TaskContext) -> int:
        above = ctx.task.context_snapshot.spawned_from_task_id

        async def waits() -> bool:
            return "PAUSED" in await statuses(store, above)

        await eventually(waits, "the parent waits, without a slot")
        return await double(ctx)

    async with pool(store, {"parent": parent, "child": child}) as client:
        task = await client.submit("parent", session_id=SESSION)
        assert await client.result(SESSION, task, timeout_s=60) == [0, 2, 4]
        children = await client.children(SESSION, task)
        assert [child.priority for child in children] == [0, 1, 2]
        spawned = {child.context_snapshot.spawned_from_task_id for child in children}
        assert spawned == {task}
        assert "PAUSED" in await statuses(store, task)


async def test_each_run_of_a_parent_means_the_same_children(store: RedisStateStore) -> None:
    found: list[list[str]] = []

    async def parent(ctx: TaskContext) -> int:
        some = [await ctx.spawn("h", name="some") for _ in range(2)]
        other = await ctx.branch("b").spawn("h", name="some")
        found.append([child.task_id for child in [*some, other]])
        if ctx.attempt == 1:
            await ctx.join(some[0])
        return ctx.attempt

    await make(store)
    assert (await run_once(store, parent)).status is TaskStatus.PAUSED
    for child in found[0]:
        await run_once(store, double_of_none, task_id=child)
    assert (await state_of(store, TASK)).status is TaskStatus.PENDING
    assert (await run_once(store, parent)).result == 2
    assert found[0] == found[1]
    assert len(set(found[0])) == 3
    assert len(await store.list_tasks(SESSION)) == 4


async def double_of_none(ctx: TaskContext) -> str:
    return f"run {ctx.attempt}"


async def test_a_later_task_of_the_same_id_has_children_of_its_own(store: RedisStateStore) -> None:
    found: list[str] = []

    async def parent(ctx: TaskContext) -> None:
        found.append((await ctx.spawn("h")).task_id)

    for _ in range(2):
        await run_to_the_end(store, parent)
        await store.transport.sender.send(
            "DEL", store.base.keys.task(SESSION, TASK), repeatable=True
        )
    assert len(set(found)) == 2


async def test_a_child_that_fails_or_is_cancelled_tells_its_parent_why(
    store: RedisStateStore,
) -> None:
    async def fail(_: TaskContext) -> None:
        raise ValueError("no luck")

    async def parent(ctx: TaskContext) -> list[Any]:
        stated: list[Any] = []
        for handler in ("fail", "forever"):
            child = await ctx.spawn(handler)
            try:
                await ctx.join(child)
            except (TaskFailed, TaskWasCancelled) as error:
                stated.append([type(error).__name__, error.reason])
        return stated

    handlers: dict[str, Handler] = {"parent": parent, "fail": fail, "forever": forever}
    async with pool(store, handlers) as client:
        task = await client.submit("parent", session_id=SESSION)
        _, endless = await child_of(client, task, count=2)
        assert await client.cancel(SESSION, endless.task_id, reason="enough")
        assert await client.result(SESSION, task, timeout_s=60) == [
            ["TaskFailed", "ValueError: no luck"],
            ["TaskWasCancelled", "enough"],
        ]


async def test_a_parent_that_waits_takes_no_slot(store: RedisStateStore) -> None:
    async def parent(ctx: TaskContext) -> int:
        children = [await ctx.spawn("double", 1), await ctx.spawn("double", 2)]
        return sum(await asyncio.gather(*map(ctx.join, children)))

    async with pool(store, {"parent": parent, "double": double}, max_tasks=1) as client:
        tasks = [await client.submit("parent", session_id=SESSION) for _ in range(3)]
        results = [await client.result(SESSION, task, timeout_s=30) for task in tasks]
        assert results == [6, 6, 6]


async def test_a_child_goes_to_the_queue_it_is_given_or_else_to_its_parents(
    store: RedisStateStore,
) -> None:
    async def parent(ctx: TaskContext) -> list[Any]:
        there = await ctx.spawn("where")
        here = await ctx.spawn("where", queue=f"other-{queue_of(store.settings)}")
        return [await ctx.join(there), await ctx.join(here)]

    async def where(ctx: TaskContext) -> str:
        return ctx.worker

    queue = queue_of(store.settings)
    async with (
        pool(store, {"parent": parent, "where": where}, name="own") as client,
        AsyncExitStack() as stack,
    ):
        from redis_state.worker import AgentWorker  # noqa: PLC0415
        from tests.support.processes.pools import serving  # noqa: PLC0415

        other = AgentWorker(
            {"where": where}, settings=store.settings, queue=f"other-{queue}", name="other"
        )
        await stack.enter_async_context(serving(other))
        task = await client.submit("parent", session_id=SESSION)
        assert await client.result(SESSION, task, timeout_s=60) == ["own", "other"]


@pytest.mark.parametrize("wrong", [{"handler": ""}, {"handler": 1}, {"handler": "h", "isolate": 1}])
async def test_a_child_that_cannot_be_is_refused(
    store: RedisStateStore, wrong: dict[str, Any]
) -> None:
    async def parent(ctx: TaskContext) -> str:
        with pytest.raises(InvalidField):
            await ctx.spawn(wrong.pop("handler"), **wrong)
        with pytest.raises(InvalidField, match="no child"):
            await ctx.join(ChildTask(SESSION, "c", "another", "x#1"))
        return "refused"

    assert (await run_to_the_end(store, parent)).result == "refused"


async def test_a_child_of_which_nothing_is_kept_fails_the_one_who_waits_for_it(
    store: RedisStateStore,
) -> None:
    async def parent(ctx: TaskContext) -> None:
        child = await ctx.spawn("h")
        key = store.base.keys.task(SESSION, child.task_id)
        await store.transport.sender.send("DEL", key, repeatable=True)
        await ctx.join(child)

    ended = await run_to_the_end(store, parent)
    assert ended.status is TaskStatus.FAILED
    assert "nothing is kept of it" in (ended.error or "")


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


# The gaps that a crash leaves, one by one


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
    state = await run_once(store, double_of_none, task_id=child.task_id)
    assert state.status is TaskStatus.COMPLETE


async def test_an_isolated_child_goes_on_when_its_parent_is_cancelled(
    store: RedisStateStore,
) -> None:
    child = await spawn_one(store, isolate=True)
    await TaskTransitions(store).finish_run(await take(store), TaskStatus.CANCELLED)
    await CancelCascade(store, ChildTasks(store)).cancel_children(SESSION, TASK, None)
    assert (await sweep(store, child.task_id)).parent_cancelled == 0
    state = await run_once(store, double_of_none, task_id=child.task_id)
    assert state.status is TaskStatus.COMPLETE


# The whole, in a pool


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
        await forever(ctx)

    async def parent(ctx: TaskContext) -> None:
        await ctx.join(await ctx.spawn("middle"))

    handlers: dict[str, Handler] = {
        "ask": ask,
        "middle": middle,
        "parent": parent,
        "forever": forever,
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


@pytest.mark.parametrize("how", ["complete", "failed", "cancelled", "given up"])
async def test_a_parent_that_joins_late_finds_the_end_of_a_child_that_is_gone(
    store: RedisStateStore, how: str
) -> None:
    async def child_handler(_: TaskContext) -> str:
        if how == "failed":
            raise ValueError("broken")
        return "done"

    async def parent(ctx: TaskContext) -> str:
        child = await ctx.spawn("h")
        if ctx.attempt == 1:
            begin_again()
        try:
            return str(await ctx.join(child))
        except (TaskFailed, TaskWasCancelled) as ended:
            return f"{type(ended).__name__}: {ended.reason}"

    await make(store)
    await run_once(store, parent)
    async with client_of(store) as client:
        (child,) = await client.children(SESSION, TASK)
        if how == "cancelled":
            assert await client.cancel(SESSION, child.task_id, reason="enough")
        elif how == "given up":
            await take(store, child.task_id)
            key = store.base.keys.lease(SESSION, child.task_id)
            await store.transport.sender.send("HSET", key, "expires", 0, repeatable=True)
            assert await TaskTransitions(store).dead_letter(SESSION, child.task_id, died=4)
        else:
            await run_once(store, child_handler, task_id=child.task_id)
    key = store.base.keys.task(SESSION, child.task_id)
    assert await store.transport.sender.send("DEL", key, repeatable=True) == 1
    ended = await run_once(store, parent)
    assert ended.status is TaskStatus.COMPLETE, ended.error
    given_up = "TaskFailed: given up: 4 workers in a row died, or stalled, while they ran it"
    assert (
        ended.result
        == {
            "complete": "done",
            "failed": "TaskFailed: ValueError: broken",
            "cancelled": "TaskWasCancelled: enough",
            "given up": given_up,
        }[how]
    )


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


def double_of(number: int) -> Handler:
    async def handler(_: TaskContext) -> int:
        return 2 * number

    return handler


async def swapped_children(store: RedisStateStore) -> str:
    """Have the parts of a handler come in another order in its second run; return its error."""

    async def part(ctx: TaskContext, number: int) -> Any:
        return await ctx.spawn("double", number)

    async def handler(ctx: TaskContext) -> Any:
        await asyncio.gather(part(ctx, ctx.attempt))
        if ctx.attempt == 1:
            begin_again()
        return "over"

    await make(store)
    await run_once(store, handler)
    return str((await run_once(store, handler)).error)


async def test_a_childs_name_belongs_to_the_asyncio_task_that_first_uses_it(
    store: RedisStateStore,
) -> None:
    async def part(ctx: TaskContext, number: int) -> Any:
        return await ctx.join(await ctx.spawn("double", number))

    async def plain(ctx: TaskContext) -> Any:
        return await asyncio.gather(part(ctx, 1), part(ctx, 2))

    async def branched(ctx: TaskContext) -> Any:
        return await asyncio.gather(part(ctx.branch("a"), 1), part(ctx.branch("b"), 2))

    handlers: dict[str, Handler] = {"plain": plain, "branched": branched, "double": double}
    swapped = await swapped_children(store)
    assert swapped.startswith("InvalidField: name: 'child:double#1' was another question")
    async with pool(store, handlers) as client:
        task = await client.submit("plain", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.error is not None
        assert ended.error.startswith("InvalidField: name: 'double' is used by two asyncio tasks")
        task = await client.submit("branched", session_id=SESSION)
        assert await client.result(SESSION, task, timeout_s=60) == [2, 4]
