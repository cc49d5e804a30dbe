"""What a failed handler did is undone: in reverse, each once, with a report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable
from redis_state.models import TaskStatus, UpdateType
from redis_state.worker import (
    Rate,
    RetryPolicy,
    StepPolicy,
    TaskContext,
    retried,
)
from redis_state.worker.tasks.recorded.compensations import Compensation, read_compensations
from tests.support.processes.pools import (
    SESSION,
    pool,
    statuses,
    updates_of,
)
from tests.support.tasks.bookings import ONCE, Bookings, book, ends, fail, notices
from tests.support.tasks.runs import TASK, begin_again, make, run_once

IN_WORK = (
    "undo: cannot be registered in the work of a step or of another undo, which a later run does "
    "not do again: register it in the handler"
)


class Nameless:
    """What can be called and has no name."""

    def __call__(self) -> None:
        """Do nothing."""


async def test_what_was_done_is_undone_in_reverse_before_the_task_fails(
    store: RedisStateStore,
) -> None:
    world = Bookings()

    async def handler(ctx: TaskContext) -> None:
        await book(ctx, world, "car", "hotel")
        raise ValueError("no flight")

    ended = await fail(store, handler)
    assert world.log[2:] == ["undo receipt of hotel", "undo receipt of car"]
    assert ended.status is TaskStatus.FAILED
    assert ended.error == "ValueError: no flight; undone: undo#2, undo#1"
    begins, over = await notices(store)
    assert begins == {
        "notice": "compensating",
        "status": "FAILED",
        "error": "ValueError: no flight",
        "compensations": ["undo#2", "undo#1"],
    }
    assert over == {"notice": "compensated", "undone": ["undo#2", "undo#1"], "failed": {}}
    assert await statuses(store, TASK) == ["PENDING", "RUNNING", "FAILED"]
    assert await read_compensations(store, SESSION, TASK) == [
        Compensation("undo#1", "undone", None, on_cancel=False),
        Compensation("undo#2", "undone", None, on_cancel=False),
    ]


async def test_a_task_that_completes_undoes_nothing(store: RedisStateStore) -> None:
    world = Bookings()

    async def handler(ctx: TaskContext) -> str:
        await book(ctx, world, "car")
        return "booked"

    ended = await fail(store, handler)
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, "booked")
    assert (world.log, await notices(store)) == (["book car"], [])


async def test_one_that_fails_is_reported_and_the_others_still_run(store: RedisStateStore) -> None:
    world = Bookings()
    world.broken["receipt of hotel"] = ConnectionError("secret")

    async def handler(ctx: TaskContext) -> None:
        await book(ctx, world, "car", "hotel", "flight")
        raise ValueError("no")

    quick = StepPolicy(retry=RetryPolicy(attempts=2, wait_initial_s=0, wait_jitter_s=0))
    ended = await fail(store, handler, steps=quick)
    flight, hotel, car = (f"undo receipt of {what}" for what in ("flight", "hotel", "car"))
    assert world.log[3:] == [flight, hotel, hotel, car]
    stated = "undone: undo#3, undo#1; not undone: undo#2 (ConnectionError)"
    assert ended.error == f"ValueError: no; {stated}"
    told = await notices(store)
    assert [each["notice"] for each in told] == [
        "compensating",
        "attempt_failed",
        "attempt_failed",
        "compensated",
    ]
    assert told[-1]["failed"] == {"undo#2": "ConnectionError"}
    assert "secret" not in repr(told)
    assert await ends(store) == [
        ("undo#1", "undone"),
        ("undo#2", "failed"),
        ("undo#3", "undone"),
    ]


async def test_an_undo_is_retried_by_its_own_policy(store: RedisStateStore) -> None:
    tries: list[str] = []

    async def undo(ctx: TaskContext) -> None:
        tries.append(ctx.effect_id())
        if len(tries) < 3:
            raise ConnectionError

    async def handler(ctx: TaskContext) -> None:
        policy = RetryPolicy(attempts=5, wait_initial_s=0, wait_jitter_s=0)
        ctx.on_failure(retried(undo, policy), ctx, name="refund")
        raise ValueError("no")

    ended = await fail(store, handler)
    assert ended.error == "ValueError: no; undone: refund#1"
    assert len(tries) == 3
    assert len(set(tries)) == 1


class Form(BaseModel):
    """What a step of the next test cannot read."""

    size: int


async def test_errors_of_any_class_fail_again_on_the_same_path(store: RedisStateStore) -> None:
    world = Bookings()
    world.broken["receipt of last"] = BackendUnavailable("test", "this run ends here")

    async def together() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
            raise KeyError("one of many")

    async def handler(ctx: TaskContext) -> None:
        try:
            await ctx.step("form", Form.model_validate, {"size": "large"})
        except ValidationError:
            await book(ctx, world, "small")
        try:
            await ctx.step("group", together)
        except* KeyError:
            await book(ctx, world, "alone", "last")
        raise ValueError("no")

    assert (await fail(store, handler)).status is TaskStatus.PENDING
    world.broken.clear()
    ended = await run_once(store, handler, steps=ONCE)
    assert ended.error == "ValueError: no; undone: undo#3, undo#2, undo#1"
    undone = ["last", "last", "alone", "small"]
    assert world.log[3:] == [f"undo receipt of {what}" for what in undone]


async def test_branches_register_their_own_and_all_are_undone(store: RedisStateStore) -> None:
    world = Bookings()
    world.broken["receipt of 2"] = BackendUnavailable("test", "this run ends here")

    async def part(ctx: TaskContext, number: int) -> None:
        await book(ctx, world, f"{number}")
        if number == 3:
            raise ValueError("three is too many")
        await asyncio.Event().wait()

    async def handler(ctx: TaskContext) -> None:
        async with asyncio.TaskGroup() as group:
            for number in (1, 2, 3):
                group.create_task(part(ctx.branch("part"), number))

    ended = await fail(store, handler)
    assert ended.status is TaskStatus.PENDING
    world.broken.clear()
    ended = await run_once(store, handler, steps=ONCE)
    assert ended.status is TaskStatus.FAILED
    undone = [line for line in world.log if line.startswith("undo")]
    assert set(undone) == {f"undo receipt of {number}" for number in (1, 2, 3)}
    assert {state for _, state in await ends(store)} == {"undone"}
    assert [name for name, _ in await ends(store)] == [
        f"part#{number}/undo#1" for number in (1, 2, 3)
    ]


async def test_what_still_runs_of_the_handler_is_ended_before_anything_is_undone(
    store: RedisStateStore,
) -> None:
    order: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            order.append("stopped")

    async def handler(ctx: TaskContext) -> None:
        ctx.on_failure(order.append, "undone", name="it")
        left = asyncio.ensure_future(ctx.step("slow", slow))
        await asyncio.sleep(0)
        await ctx.step("quick", int)
        raise ValueError(f"no, {left.done()}")

    ended = await fail(store, handler)
    assert (ended.error, order) == ("ValueError: no, False; undone: it#1", ["stopped", "undone"])


async def test_an_undo_may_have_steps_of_its_own_and_publish(store: RedisStateStore) -> None:
    done: list[str] = []
    tries: list[int] = []

    async def undo(ctx: TaskContext) -> None:
        await ctx.progress("refunding")
        await ctx.step("first", done.append, "first")
        tries.append(ctx.attempt)
        if ctx.attempt == 1:
            begin_again()
        await ctx.step("second", done.append, "second")

    async def handler(ctx: TaskContext) -> None:
        ctx.on_failure(undo, ctx)
        raise ValueError("no")

    assert (await fail(store, handler)).status is TaskStatus.PENDING
    assert (await run_once(store, handler, steps=ONCE)).status is TaskStatus.FAILED
    assert (done, tries) == (["first", "second"], [1, 2])
    progress = [
        update
        for update in await updates_of(store, TASK)
        if update.update_type is UpdateType.PROGRESS
    ]
    assert 1 <= len(progress) <= 2


async def test_an_undo_cannot_wait_for_anyone(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> None:
        ctx.on_failure(ctx.pause, name="pause")
        ctx.on_failure(ctx.on_failure, print, name="another")
        raise ValueError("no")

    ended = await fail(store, handler)
    stated = "not undone: another#1 (InvalidField), pause#1 (InvalidField)"
    assert ended.error == f"ValueError: no; {stated}"


async def test_an_undo_waits_for_a_rate_in_its_own_run(store: RedisStateStore) -> None:
    undone: list[str] = []
    rate = Rate(1, timedelta(seconds=1.5))

    async def handler(ctx: TaskContext) -> None:
        async def undo(what: str) -> None:
            await ctx.take("bank", rate)
            undone.append(what)

        ctx.on_failure(undo, "car")
        ctx.on_failure(undo, "hotel")
        raise ValueError("no")

    async with pool(store, {"h": handler}) as client:
        task = await client.submit("h", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
    assert ended.error == "ValueError: no; undone: undo#2, undo#1"
    assert undone == ["hotel", "car"]


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda ctx: ctx.on_failure(None), "undo: a callable is needed"),
    "nameless": (
        lambda ctx: ctx.on_failure(Nameless()),
        "name: is needed for an undo that has none itself",
    ),
    "no text": (lambda ctx: ctx.on_failure(print, name=1), "name: text is needed, not int"),
    "in work": (lambda ctx: ctx.step("work", ctx.on_failure, print), IN_WORK),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_be_registered_is_refused(store: RedisStateStore, case: str) -> None:
    register, stated = REFUSED[case]

    async def handler(ctx: TaskContext) -> None:
        found = register(ctx)
        if found is not None:
            await found

    assert (await fail(store, handler)).error == f"InvalidField: {stated}"


async def test_a_partial_has_the_name_of_what_it_calls(store: RedisStateStore) -> None:
    world = Bookings()

    async def handler(ctx: TaskContext) -> None:
        ctx.on_failure(partial(world.undo, "it"))
        raise ValueError("no")

    assert (await fail(store, handler)).error == "ValueError: no; undone: undo#1"


async def test_a_registration_costs_one_write_and_a_handler_without_one_nothing(
    store: RedisStateStore,
) -> None:
    async def plain(ctx: TaskContext) -> None:
        await ctx.step("a", int)
        raise ValueError("no")

    async def registering(ctx: TaskContext) -> None:
        ctx.on_failure(print)
        await ctx.step("a", int)
        begin_again()

    async def entries(task_id: str) -> list[bytes]:
        journal = store.base.keys.journal(SESSION, task_id)
        names: list[bytes] = await store.transport.sender.send("HKEYS", journal, repeatable=True)
        return [name for name in names if b"undo" in name or b"comp" in name]

    ended = await fail(store, plain)
    assert (ended.error, await notices(store)) == ("ValueError: no", [])
    assert await entries(TASK) == []
    await make(store, "another")
    ended = await run_once(store, registering, steps=ONCE, task_id="another")
    assert ended.status is TaskStatus.PENDING
    assert await entries("another") == [b"undo:#print#1"]
