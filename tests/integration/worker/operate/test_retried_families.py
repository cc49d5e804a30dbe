"""What a retry of a parent leaves out, and which of its children it reopens."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import RetryRefused, TaskFailed, TaskWasCancelled
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import StepPolicy, TaskContext
from tests.support.processes.pools import SESSION, becomes, open_token, pool

pytestmark = pytest.mark.worker


@pytest.mark.parametrize("how", ["at once", "in turn"])
async def test_the_child_that_a_task_fails_by_runs_again_though_others_ended_after_it(
    store: RedisStateStore, how: str
) -> None:
    runs: Counter[str] = Counter()
    slow = asyncio.Event()

    async def child(ctx: TaskContext) -> str:
        name: str = ctx.input
        runs[name] += 1
        if name == "quick" and runs[name] == 1:
            raise ValueError(name)
        if name == "slow":
            await slow.wait()
        return f"{name} {runs[name]}"

    async def joined(ctx: TaskContext, made: Any) -> Any:
        try:
            return await ctx.join(made)
        except TaskFailed as failed:
            slow.set()
            return failed

    async def parent(ctx: TaskContext) -> list[Any]:
        made = [await ctx.spawn("child", name) for name in ("quick", "slow")]
        if how == "in turn":
            results = [await joined(ctx, one) for one in made]
        else:
            parts = (joined(ctx.branch("part"), one) for one in made)
            results = await asyncio.gather(*parts)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return list(results)

    handlers = {"parent": parent, "child": child}
    async with pool(store, handlers, steps=StepPolicy(on_changed="fail")) as client:
        task = await client.submit("parent", session_id=SESSION)
        with pytest.raises(TaskFailed, match="quick"):
            await client.result(SESSION, task, timeout_s=60)
        await client.retry(SESSION, task)
        assert await client.result(SESSION, task, timeout_s=60) == ["quick 2", "slow 1"]


async def test_a_child_that_was_cancelled_for_itself_stays_so(store: RedisStateStore) -> None:
    effects: list[str] = []

    async def child(ctx: TaskContext) -> None:
        await ctx.pause()
        effects.append(ctx.input)

    async def parent(ctx: TaskContext) -> str:
        joined, other = [await ctx.spawn("child", name) for name in ("joined", "other")]
        with_it = await ctx.spawn("child", "with it")
        try:
            await ctx.join(joined)
        except TaskWasCancelled:
            await ctx.step("another way", list)
        await ctx.pause()
        with pytest.raises(TaskWasCancelled, match="nobody wants it"):
            await ctx.join(other)
        await ctx.join(with_it)
        return "done"

    async with pool(store, {"parent": parent, "child": child}) as client:
        task = await client.submit("parent", session_id=SESSION)

        async def waiting() -> bool:
            children = await client.children(SESSION, task)
            return [one.status for one in children] == [TaskStatus.PAUSED] * 3

        await eventually(waiting, "the children wait")
        joined, other, with_it = [one.task_id for one in await client.children(SESSION, task)]
        for one in (joined, other):
            await client.cancel(SESSION, one, reason="nobody wants it")
        await open_token(store, task)
        await client.cancel(SESSION, task)
        await becomes(client, with_it, TaskStatus.CANCELLED)
        await client.retry(SESSION, task)
        # Both are still open: that of the parent, and that of the child that was cancelled with it.
        await becomes(client, with_it, TaskStatus.PAUSED)
        for pause in await client.pauses():
            assert pause.task_id in (task, with_it)
            assert pause.pause_id is not None
            await client.approve(pause.pause_id)
        assert await client.result(SESSION, task, timeout_s=60) == "done"
        for one in (joined, other):
            state = await client.get(SESSION, one)
            assert state is not None
            assert state.status is TaskStatus.CANCELLED
    assert effects == ["with it"]


async def test_a_parent_of_a_child_that_was_undone_is_refused_with_the_way_out(
    store: RedisStateStore,
) -> None:
    runs: list[str] = []

    async def child(ctx: TaskContext) -> str:
        runs.append(ctx.task.task_id)
        ctx.on_failure(list, name="undo")
        await ctx.step("book", list)
        if len(runs) == 1:
            raise ValueError("full")
        return "booked"

    async def parent(ctx: TaskContext) -> Any:
        return await ctx.join(await ctx.spawn("child"))

    async with pool(store, {"parent": parent, "child": child}) as client:
        task = await client.submit("parent", session_id=SESSION)
        await becomes(client, task, TaskStatus.FAILED)
        with pytest.raises(RetryRefused, match="was undone: fork it before that child") as refused:
            await client.retry(SESSION, task)
        assert refused.value.task_id == task
        forked = await client.fork(SESSION, task, before="child")
        assert await client.result(SESSION, forked, timeout_s=60) == "booked"
