"""A run that ends while it undoes is continued by the next one, which does nothing twice."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable
from redis_state.models import TaskStatus
from redis_state.worker import (
    RetryPolicy,
    TaskContext,
    retried,
)
from tests.support.processes.pools import (
    SESSION,
    pool,
)
from tests.support.servers.sets.nodes import subscribers
from tests.support.tasks.bookings import ONCE, Bookings, book, fail, notices
from tests.support.tasks.runs import TASK, begin_again, run_once


class Sold(Exception):
    """An error with a class of its own."""


async def test_an_undo_that_waits_after_a_handler_that_failed_at_once_leaves_nothing_subscribed(
    store: RedisStateStore,
) -> None:
    tries: list[int] = []

    def refund() -> None:
        tries.append(len(tries))
        if len(tries) < 2:
            raise ConnectionError

    async def undo(ctx: TaskContext) -> None:
        policy = RetryPolicy(attempts=2, wait_initial_s=0.2, wait_jitter_s=0)
        await ctx.step("refund", retried(refund, policy))

    async def handler(ctx: TaskContext) -> None:
        ctx.on_failure(undo, ctx)
        raise ValueError("no")

    before = asyncio.all_tasks()
    ended = await fail(store, handler)
    assert ended.status is TaskStatus.FAILED
    assert len(tries) == 2
    assert not [task for task in asyncio.all_tasks() - before if "follow" in str(task.get_coro())]
    assert await subscribers(store.transport, store.base.keys.steering(SESSION).channel) == [0]


@pytest.mark.parametrize(
    "trouble",
    [
        BackendUnavailable("test", "this run ends here"),
        ExceptionGroup("of its tasks", [BackendUnavailable("test", "this run ends here")]),
    ],
    ids=["alone", "in a group"],
)
async def test_a_run_that_ends_in_the_middle_is_continued_by_the_next(
    store: RedisStateStore, trouble: Exception
) -> None:
    """It calls no step again, not even the one that had failed, and undoes the rest."""
    world = Bookings()
    world.broken["receipt of hotel"] = trouble
    charged: list[int] = []

    async def charge(ctx: TaskContext) -> None:
        charged.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("no money")

    async def handler(ctx: TaskContext) -> str:
        await book(ctx, world, "car", "hotel", "flight")
        await ctx.progress("booked")
        await ctx.step("charge", charge, ctx)
        return "as if nothing had happened"

    ended = await fail(store, handler)
    assert ended.status is TaskStatus.PENDING
    del world.broken["receipt of hotel"]
    ended = await run_once(store, handler, steps=ONCE)
    assert ended.status is TaskStatus.FAILED
    assert ended.error == "ValueError: no money; undone: undo#3, undo#2, undo#1"
    flight, hotel, car = (f"undo receipt of {what}" for what in ("flight", "hotel", "car"))
    assert world.log[3:] == [flight, hotel, hotel, car]
    assert charged == [1]
    told = [each["notice"] for each in await notices(store)]
    assert told == ["compensating", "attempt_failed", "compensated"]


async def test_a_handler_that_hangs_outside_of_steps_does_not_hold_up_its_undoing(
    store: RedisStateStore,
) -> None:
    world = Bookings()
    world.broken["receipt of car"] = BackendUnavailable("test", "this run ends here")

    async def handler(ctx: TaskContext) -> None:
        await book(ctx, world, "car")
        if ctx.attempt == 1:
            raise ValueError("no flight")
        await asyncio.Event().wait()

    assert (await fail(store, handler)).status is TaskStatus.PENDING
    del world.broken["receipt of car"]
    async with asyncio.timeout(20):
        ended = await run_once(store, handler, steps=ONCE)
    assert ended.error == "ValueError: no flight; undone: undo#1"


async def test_a_handler_that_has_handled_an_error_takes_the_same_path_again(
    store: RedisStateStore,
) -> None:
    world = Bookings()
    world.broken["receipt of tram"] = BackendUnavailable("test", "this run ends here")

    def look(what: str) -> str:
        raise KeyError(what)

    def sell_out() -> None:
        raise Sold("no seats") if not world.log else AssertionError("is not called again")

    async def handler(ctx: TaskContext) -> None:
        with suppress(LookupError):
            await ctx.step("look", look, "nothing")
        try:
            await ctx.step("bus", sell_out)
        except Sold:
            await book(ctx, world, "tram")
        raise ValueError("no")

    assert (await fail(store, handler)).status is TaskStatus.PENDING
    world.broken.clear()
    ended = await run_once(store, handler, steps=ONCE)
    assert ended.error == "ValueError: no; undone: undo#1"
    assert world.log == ["book tram", *["undo receipt of tram"] * 2]


async def test_a_worker_that_stops_in_the_middle_hands_the_rest_to_the_next(
    store: RedisStateStore,
) -> None:
    world, begun = Bookings(), asyncio.Event()

    async def slow(ctx: TaskContext) -> None:
        world.log.append(f"run {ctx.attempt}")
        begun.set()
        if ctx.attempt == 1:
            await asyncio.Event().wait()

    async def handler(ctx: TaskContext) -> None:
        await book(ctx, world, "car")
        ctx.on_failure(slow, ctx)
        await book(ctx, world, "hotel")
        raise ValueError("no")

    async with pool(store, {"h": handler}, steps=ONCE) as client:
        await client.submit("h", session_id=SESSION, task_id=TASK)
        async with asyncio.timeout(60):
            await begun.wait()
        state = await client.get(SESSION, TASK)
        assert state is not None
        assert state.status is TaskStatus.RUNNING
    state = await store.tasks.load(SESSION, TASK)
    assert state is not None
    assert state.status is TaskStatus.PENDING
    async with pool(store, {"h": handler}, steps=ONCE) as client:
        ended = await client.wait(SESSION, TASK, timeout_s=60)
    assert ended.error == "ValueError: no; undone: undo#2, slow#1, undo#1"
    assert world.log[2:] == ["undo receipt of hotel", "run 1", "run 2", "undo receipt of car"]


async def test_a_compensation_that_new_code_lacks_is_reported(store: RedisStateStore) -> None:
    world = Bookings()

    async def before(ctx: TaskContext) -> None:
        await book(ctx, world, "car")
        await ctx.checkpoint()
        begin_again()

    async def after(ctx: TaskContext) -> None:
        await ctx.step("book", world.book, "car")
        raise ValueError("no")

    await fail(store, before)
    ended = await run_once(store, after, steps=ONCE)
    assert ended.error == "ValueError: no; not undone: undo#1 (not registered again)"
