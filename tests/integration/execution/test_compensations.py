"""What a failed handler did is undone: in reverse, each once, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable
from redis_state.models import TaskState, TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import (
    Budget,
    Handler,
    RetryPolicy,
    StepPolicy,
    TaskContext,
    guarded,
    retried,
)
from redis_state.worker.tasks.execution.compensation import Compensation, read_compensations
from tests.support.processes.pools import (
    SESSION,
    becomes,
    open_token,
    pool,
    statuses,
    updates_of,
)
from tests.support.servers.nodes import subscribers
from tests.support.tasks.runs import TASK, begin_again, make, run_once

IN_WORK = (
    "undo: cannot be registered in the work of a step or of another undo, which a later run does "
    "not do again: register it in the handler"
)
ONCE = StepPolicy(retry=RetryPolicy(attempts=1))


async def notices(store: RedisStateStore, task_id: str = TASK) -> list[Any]:
    return [
        update.content
        for update in await updates_of(store, task_id)
        if update.update_type is UpdateType.NOTIFICATION
    ]


async def ends(store: RedisStateStore, task_id: str = TASK) -> list[tuple[str, str]]:
    found = await read_compensations(store, SESSION, task_id)
    return [(one.name, one.state) for one in found]


class Sold(Exception):
    """An error with a class of its own."""


class Nameless:
    """What can be called and has no name."""

    def __call__(self) -> None:
        """Do nothing."""


class Bookings:
    """The outside world: what was booked and undone, and where it goes wrong."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.broken: dict[str, BaseException] = {}

    def book(self, what: str) -> str:
        self.log.append(f"book {what}")
        return f"receipt of {what}"

    def undo(self, receipt: str) -> None:
        self.log.append(f"undo {receipt}")
        if receipt in self.broken:
            raise self.broken[receipt]


async def book(ctx: TaskContext, world: Bookings, *what: str, **options: Any) -> None:
    for each in what:
        receipt = await ctx.step("book", world.book, each)
        ctx.on_failure(world.undo, receipt, **options)


async def fail(store: RedisStateStore, handler: Any, **options: Any) -> TaskState:
    await make(store)
    return await run_once(store, handler, steps=options.pop("steps", ONCE), **options)


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


async def test_a_run_that_ends_in_the_middle_is_continued_by_the_next(
    store: RedisStateStore,
) -> None:
    """It calls no step again, not even the one that had failed, and undoes the rest."""
    world = Bookings()
    world.broken["receipt of hotel"] = BackendUnavailable("test", "this run ends here")
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
    assert len(progress) <= 2


async def test_an_undo_cannot_wait_for_anyone(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> None:
        ctx.on_failure(ctx.pause, name="pause")
        ctx.on_failure(ctx.on_failure, print, name="another")
        raise ValueError("no")

    ended = await fail(store, handler)
    stated = "not undone: another#1 (InvalidField), pause#1 (InvalidField)"
    assert ended.error == f"ValueError: no; {stated}"


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

    ended = await fail(store, plain)
    assert (ended.error, await notices(store)) == ("ValueError: no", [])
    journal = store.base.keys.journal(SESSION, TASK)
    names: list[bytes] = await store.transport.sender.send("HKEYS", journal, repeatable=True)
    assert {name for name in names if b"undo" in name or b"comp" in name} == set()
