"""A parent spawns each child once, waits for it without a worker, and gets its end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, TaskFailed, TaskWasCancelled
from redis_state.errors import InvalidField
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import AgentWorker, ChildTask, Handler, TaskContext
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import (
    SESSION,
    client_of,
    pool,
    queue_of,
    serving,
    statuses,
)
from tests.support.tasks.children import child_of, double, state_of, until_cancelled, which_run
from tests.support.tasks.runs import TASK, begin_again, make, run_once, run_to_the_end, take


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
        await run_once(store, which_run, task_id=child)
    assert (await state_of(store, TASK)).status is TaskStatus.PENDING
    assert (await run_once(store, parent)).result == 2
    assert found[0] == found[1]
    assert len(set(found[0])) == 3
    assert len(await store.list_tasks(SESSION)) == 4


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

    handlers: dict[str, Handler] = {"parent": parent, "fail": fail, "forever": until_cancelled}
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
