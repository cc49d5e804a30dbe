"""Which ends of a task undo what it did: failures, limits, and cancels by choice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import (
    Budget,
    Handler,
    TaskContext,
    guarded,
)
from tests.support.processes.pools import (
    SESSION,
    becomes,
    open_token,
    pool,
    statuses,
)
from tests.support.tasks.bookings import ONCE, Bookings, book
from tests.support.tasks.runs import TASK, begin_again


async def test_a_pause_and_a_hand_off_undo_nothing(store: RedisStateStore) -> None:
    world = Bookings()

    async def handler(ctx: TaskContext) -> Any:
        await book(ctx, world, "car")
        if ctx.attempt == 1:
            begin_again()
        decision = await ctx.approval("Go on?")
        if not decision.approved:
            raise ValueError("not approved")

    async with pool(store, {"h": handler}) as client:
        await client.submit("h", session_id=SESSION, task_id=TASK)
        token = await open_token(store, TASK)
        assert world.log == ["book car"]
        await client.reject(token)
        ended = await client.wait(SESSION, TASK, timeout_s=60)
    assert world.log == ["book car", "undo receipt of car"]
    assert ended.error == "ValueError: not approved; undone: undo#1"
    told = [status for status in await statuses(store, TASK) if status in ("PAUSED", "FAILED")]
    assert told == ["PAUSED", "FAILED"]


@pytest.mark.parametrize("on_cancel", [False, True])
async def test_a_running_task_that_is_cancelled_undoes_by_choice(
    store: RedisStateStore,
    on_cancel: bool,  # noqa: FBT001 - a parameter
) -> None:
    world = Bookings()

    async def handler(ctx: TaskContext) -> None:
        await book(ctx, world, "car", on_cancel=on_cancel)
        await ctx.inbox.until_over()

    async with pool(store, {"h": handler}) as client:
        await client.submit("h", session_id=SESSION, task_id=TASK)
        await eventually(lambda: world.log, "the car is booked")
        await client.cancel(SESSION, TASK, reason="too dear")
        ended = await client.wait(SESSION, TASK, timeout_s=60)
    assert ended.status is TaskStatus.CANCELLED
    assert ended.error == ("too dear; undone: undo#1" if on_cancel else "too dear")
    assert world.log[1:] == (["undo receipt of car"] if on_cancel else [])


@pytest.mark.parametrize("ends", ["returns", "raises"])
async def test_a_cancel_that_came_back_as_the_result_of_a_part_is_one_all_the_same(
    store: RedisStateStore, ends: str
) -> None:
    world = Bookings()

    async def part(ctx: TaskContext) -> None:
        await ctx.step("begin", list)
        await ctx.inbox.until_over()

    async def handler(ctx: TaskContext) -> Any:
        await book(ctx, world, "car", on_cancel=True)
        parts = (part(ctx.branch("part")) for _ in range(2))
        results = await asyncio.gather(*parts, return_exceptions=True)
        if ends == "raises":
            raise ValueError(results)
        return [str(result) for result in results]

    async with pool(store, {"h": handler}) as client:
        await client.submit("h", session_id=SESSION, task_id=TASK)
        await eventually(lambda: world.log, "the car is booked")
        await client.cancel(SESSION, TASK, reason="too dear")
        ended = await client.wait(SESSION, TASK, timeout_s=60)
    assert (ended.status, ended.result) == (TaskStatus.CANCELLED, None)
    assert ended.error == "too dear; undone: undo#1"
    assert world.log == ["book car", "undo receipt of car"]


@pytest.mark.parametrize("on_cancel", [False, True])
async def test_a_paused_task_that_is_cancelled_undoes_by_choice(
    store: RedisStateStore,
    on_cancel: bool,  # noqa: FBT001 - a parameter
) -> None:
    world = Bookings()

    async def handler(ctx: TaskContext) -> None:
        await book(ctx, world, "car", on_cancel=on_cancel)
        await book(ctx, world, "hotel")
        await ctx.pause()
        await ctx.step("never", world.book, "never")

    async with pool(store, {"h": handler}) as client:
        await client.submit("h", session_id=SESSION, task_id=TASK)
        await open_token(store, TASK)
        assert await client.cancel(SESSION, TASK, reason="too dear")
        ended = await client.wait(SESSION, TASK, timeout_s=60)
    assert ended.status is TaskStatus.CANCELLED
    assert ended.error == ("too dear; undone: undo#1" if on_cancel else "too dear")
    assert world.log[2:] == (["undo receipt of car"] if on_cancel else [])
    assert ("RUNNING" in (await statuses(store, TASK))[3:]) is on_cancel


async def test_a_hard_cancel_and_a_child_of_a_cancelled_parent_undo_too(
    store: RedisStateStore,
) -> None:
    world = Bookings()

    async def child(ctx: TaskContext) -> None:
        await book(ctx, world, "child", on_cancel=True)
        await ctx.pause()

    async def parent(ctx: TaskContext) -> None:
        await book(ctx, world, "parent", on_cancel=True)
        await ctx.spawn("child")
        await asyncio.Event().wait()

    async with pool(store, {"parent": parent, "child": child}) as client:
        await client.submit("parent", session_id=SESSION, task_id=TASK)

        async def waits() -> Any:
            return next(
                (
                    one
                    for one in await client.children(SESSION, TASK)
                    if one.status.value == "PAUSED"
                ),
                None,
            )

        spawned = await eventually(waits, "the child waits")
        await client.cancel(SESSION, TASK, hard=True)
        for task_id in (TASK, spawned.task_id):
            await becomes(client, task_id, TaskStatus.CANCELLED)
    assert sorted(world.log[2:]) == ["undo receipt of child", "undo receipt of parent"]


async def test_a_time_limit_and_a_guard_undo_too(store: RedisStateStore) -> None:
    world = Bookings()

    async def slow(ctx: TaskContext) -> None:
        await book(ctx, world, "slow")
        await asyncio.Event().wait()

    async def eager(ctx: TaskContext) -> None:
        while True:
            await book(ctx, world, "eager")

    handlers: dict[str, Handler] = {"slow": slow, "eager": guarded(Budget(steps=2))(eager)}
    async with pool(store, handlers, task_timeout_s=0.5) as client:
        for name in handlers:
            await client.submit(name, session_id=SESSION, task_id=name)
        ended = [await client.wait(SESSION, name, timeout_s=60) for name in handlers]
    assert ended[0].error == "TimeoutError: not done after 0.5 s; undone: undo#1"
    stated = "TaskStopped: its budget of 2 steps is used up; undone: undo#2, undo#1"
    assert ended[1].error == stated


async def test_an_undo_that_never_ends_is_given_up_after_a_run_of_its_own(
    store: RedisStateStore,
) -> None:
    world = Bookings()

    async def hang() -> None:
        world.log.append("hang")
        await asyncio.Event().wait()

    async def handler(ctx: TaskContext) -> None:
        await book(ctx, world, "car")
        ctx.on_failure(hang)
        raise ValueError("no")

    options = {"task_timeout_s": 0.3, "grace_s": 0.1, "steps": ONCE}
    async with pool(store, {"h": handler}, **options) as client:
        await client.submit("h", session_id=SESSION, task_id=TASK)
        ended = await client.wait(SESSION, TASK, timeout_s=60)
    assert ended.error == "ValueError: no; undone: undo#1; not undone: hang#1 (TimeoutError)"
    assert world.log == ["book car", "hang", "hang", "undo receipt of car"]
