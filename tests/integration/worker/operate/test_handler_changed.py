"""A handler that does not call what earlier runs recorded is found out: at its first other call if
the order of calls is certain, else when it has returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import HandlerChanged, RedisStateStore
from redis_state.models import TaskState, TaskStatus, UpdateType
from redis_state.worker import Handler, StepPolicy, TaskContext
from redis_state.worker.tasks.recorded.journal import unvisited
from tests.support.processes.pools import SESSION, open_token, pool, updates_of
from tests.support.tasks.runs import TASK, begin_again, make, run_once

FAIL = StepPolicy(on_changed="fail")


def asking(names: Sequence[str], *, ends: bool) -> Handler:
    async def handler(ctx: TaskContext) -> Any:
        found = [await ctx.step(name, str, name) for name in names]
        if not ends:
            begin_again()
        return found

    return handler


async def two_runs(
    store: RedisStateStore, first: Handler, second: Handler, steps: StepPolicy | None = None
) -> TaskState:
    await make(store)
    assert (await run_once(store, first, steps=steps)).status is TaskStatus.PENDING
    return await run_once(store, second, steps=steps)


async def missed(store: RedisStateStore) -> list[Any]:
    return [notice["entries"] for notice in await notices(store) if "entries" in notice]


async def diverged(store: RedisStateStore) -> list[tuple[str, str]]:
    found = [notice for notice in await notices(store) if "called" in notice]
    return [(notice["called"], notice["recorded"]) for notice in found]


async def notices(store: RedisStateStore) -> list[Any]:
    found = [
        update.content
        for update in await updates_of(store, TASK)
        if update.update_type is UpdateType.NOTIFICATION
        # A child is named by one too.
        and update.content["notice"] != "child"
    ]
    assert all(notice["notice"] == "handler_changed" for notice in found)
    return found


Change = tuple[tuple[list[str], list[str]], list[tuple[str, str]], list[str]]
CHANGES: list[Change] = [
    ((["a", "b"], ["a", "b"]), [], []),
    ((["a", "b"], ["a", "b", "c"]), [], []),
    ((["a", "b"], ["a", "c"]), [("step:c#1", "step:b#1")], ["step:b#1"]),
    ((["a", "b", "c"], ["a", "c", "d", "e"]), [("step:d#1", "step:b#1")], ["step:b#1"]),
    ((["a", "b"], ["b"]), [], ["step:a#1"]),
    ((["a", "b"], []), [], ["step:a#1", "step:b#1"]),
    ((["a", "b"], ["b", "a", "c"]), [], []),
    ((["a", "b"], ["b", "x", "a", "y"]), [("step:x#1", "step:a#1")], []),
    ((["a"] * 3, ["a"] * 2), [], ["step:a#3"]),
    (([], ["a"]), [], []),
]


@pytest.mark.parametrize(
    ("change", "called", "entries"),
    CHANGES,
    ids=[
        "same",
        "longer",
        "renamed",
        "removed",
        "removed, and no more",
        "all",
        "moved",
        "moved and added",
        "shorter loop",
        "new",
    ],
)
async def test_a_step_that_is_gone_is_told_and_the_task_completes(
    store: RedisStateStore,
    caplog: pytest.LogCaptureFixture,
    change: tuple[list[str], list[str]],
    called: list[tuple[str, str]],
    entries: list[str],
) -> None:
    before, after = change
    ended = await two_runs(store, asking(before, ends=False), asking(after, ends=True))
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, after)
    assert await diverged(store) == called
    assert await missed(store) == ([entries] if entries else [])
    assert [entry in caplog.text for entry in entries] == [True] * len(entries)


async def test_a_step_that_is_gone_fails_the_task_if_the_worker_says_so(
    store: RedisStateStore,
) -> None:
    ended = await two_runs(store, asking("ab", ends=False), asking("a", ends=True), FAIL)
    assert ended.status is TaskStatus.FAILED
    stated = "HandlerChanged: the handler of task 't' never used what was recorded: step:b#1"
    assert ended.error == stated
    assert await missed(store) == []


@pytest.mark.parametrize("caught", [False, True], ids=["let pass", "caught"])
async def test_a_new_call_fails_the_task_before_its_work_runs(
    store: RedisStateStore,
    caught: bool,  # noqa: FBT001 - a parameter
) -> None:
    done: list[str] = []

    async def after(ctx: TaskContext) -> str:
        await ctx.step("a", done.append, "a")
        try:
            await ctx.step("c", done.append, "c")
        except Exception:
            if not caught:
                raise
            with suppress(Exception):
                await ctx.step("d", done.append, "d")
        return "as if nothing had happened"

    ended = await two_runs(store, asking("ab", ends=False), after, FAIL)
    stated = (
        "HandlerChanged: the handler of task 't' called step:c#1 where another call is recorded"
    )
    assert (ended.status, ended.error) == (TaskStatus.FAILED, f"{stated}: step:b#1")
    assert done == []


async def test_a_pause_and_a_child_have_their_place_too(store: RedisStateStore) -> None:
    async def before(ctx: TaskContext) -> None:
        await ctx.open_pause("await_input")
        await ctx.spawn("other")
        begin_again()

    async def after(ctx: TaskContext) -> None:
        await ctx.spawn("other")
        await ctx.open_pause("await_input", name="renamed")
        begin_again()

    async def later(ctx: TaskContext) -> None:
        await ctx.spawn("another")

    await two_runs(store, before, after)
    assert await diverged(store) == [("pause:renamed#1", "pause:await_input#1")]
    await run_once(store, later, steps=FAIL)
    state = await store.tasks.load(SESSION, TASK)
    assert state is not None
    stated = "called child:another#1 where another call is recorded: pause:await_input#1"
    assert state.error == f"HandlerChanged: the handler of task 't' {stated}"


async def test_a_decided_pause_keeps_its_place(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> Any:
        if ctx.attempt > 1:
            return await ctx.step("instead", str, "x")
        return await ctx.pause()

    async with pool(store, {"h": handler}, steps=FAIL) as client:
        await client.submit("h", session_id=SESSION, task_id=TASK)
        await client.approve(await open_token(store, TASK))
        ended = await client.wait(SESSION, TASK, timeout_s=60)
    stated = "called step:instead#1 where another call is recorded: pause:await_input#1"
    assert ended.error == f"HandlerChanged: the handler of task 't' {stated}"


async def test_what_overlaps_has_no_order_that_could_be_broken(store: RedisStateStore) -> None:
    """Which page comes first is a matter of chance, in every run."""

    async def handler(ctx: TaskContext) -> int:
        order = [3, 1, 2] if ctx.attempt == 1 else [2, 3, 1]
        fetched = {n: asyncio.ensure_future(ctx.step(f"fetch {n}", int, n)) for n in (1, 2, 3)}
        for number in order[: 2 if ctx.attempt == 1 else 3]:
            await fetched[number]
            await ctx.step(f"store {number}", int, number)
        await asyncio.gather(*fetched.values())
        if ctx.attempt == 1:
            begin_again()
        return await ctx.step("then", int, len(order))

    ended = await two_runs(store, handler, handler, FAIL)
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, 3)
    assert await notices(store) == []


async def test_asyncio_tasks_that_share_their_work_have_no_order(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> str:
        async def work(numbers: list[int]) -> None:
            for number in numbers:
                await ctx.step(f"item {number}", int, number)

        shares = [[1], [3]] if ctx.attempt == 1 else [[2, 1], [4, 3]]
        await asyncio.gather(*map(work, shares))
        if ctx.attempt == 1:
            begin_again()
        return "done"

    ended = await two_runs(store, handler, handler, FAIL)
    assert (ended.status, ended.error) == (TaskStatus.COMPLETE, None)


async def test_a_model_decides_the_order_of_keyed_steps(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> Any:
        for key in ["x", "y"] if ctx.attempt == 1 else ["z", "y", "x"]:
            await ctx.keyed_step("tool", key, str, key)
        last = await ctx.step("last", int, 1)
        if ctx.attempt == 1:
            begin_again()
        return last

    ended = await two_runs(store, handler, handler, FAIL)
    assert (ended.status, ended.error) == (TaskStatus.COMPLETE, None)


def finding(found: Sequence[str], names: Sequence[str], *, ends: bool) -> Handler:
    steps = asking(names, ends=ends)

    async def handler(ctx: TaskContext) -> Any:
        notes = ctx.keyed_branch("notes", "own", partial=True)
        for each in found:
            await notes.keyed_step("found", each, str, each)
        return await steps(ctx)

    return handler


LEFT_OUT: list[Change] = [
    ((["x"], ["a", "b"]), [], []),
    (([], ["a", "b", "c"]), [], []),
    (([], ["a", "c"]), [("step:c#1", "step:b#1")], ["step:b#1"]),
]


@pytest.mark.parametrize(("after", "called", "entries"), LEFT_OUT)
async def test_what_a_partial_branch_has_may_be_left_out_and_nothing_else(
    store: RedisStateStore,
    after: tuple[list[str], list[str]],
    called: list[tuple[str, str]],
    entries: list[str],
) -> None:
    first, second = finding(["x", "y"], ["a", "b"], ends=False), finding(*after, ends=True)
    ended = await two_runs(store, first, second)
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, after[1])
    assert await diverged(store) == called
    assert await missed(store) == ([entries] if entries else [])


async def test_a_step_that_failed_before_may_succeed_now(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> Any:
        def first() -> str:
            if ctx.attempt == 1:
                raise ValueError("not yet")
            return "first"

        with suppress(ValueError):
            await ctx.step("first", first)
        second = await ctx.branch("part").step("second", str, "second")
        if ctx.attempt == 1:
            begin_again()
        return second

    ended = await two_runs(store, handler, handler, FAIL)
    assert (ended.status, ended.error) == (TaskStatus.COMPLETE, None)


def test_a_change_names_the_call() -> None:
    changed = HandlerChanged("t", ["step:a#1"], called="step:b#1")
    assert (changed.called, changed.entries) == ("step:b#1", ["step:a#1"])


async def test_gathered_and_nested_steps_and_branches_raise_no_false_alarm(
    store: RedisStateStore,
) -> None:
    async def outer(ctx: TaskContext, name: str) -> Any:
        return [await ctx.step("inner", str, name), await ctx.branch("b").step("inner", str, name)]

    async def handler(ctx: TaskContext) -> Any:
        found = await asyncio.gather(
            *(ctx.step("outer", outer, ctx, f"{n}") for n in range(5)),
            *(ctx.branch("part").step("x", str, f"{n}") for n in range(5)),
        )
        if ctx.attempt < 3:
            begin_again()
        return len(found)

    await make(store)
    for _ in range(2):
        assert (await run_once(store, handler, steps=FAIL)).status is TaskStatus.PENDING
    ended = await run_once(store, handler, steps=FAIL)
    assert (ended.status, ended.result, ended.error) == (TaskStatus.COMPLETE, 10, None)


async def test_what_an_unfinished_step_noted_inside_is_missed_if_it_is_gone(
    store: RedisStateStore,
) -> None:
    async def outer(ctx: TaskContext) -> str:
        if ctx.attempt == 1:
            await ctx.step("inner", str)
            begin_again()
        return "done"

    async def handler(ctx: TaskContext) -> Any:
        return await ctx.step("outer", outer, ctx)

    await two_runs(store, handler, handler)
    assert await missed(store) == [["step:outer#1/inner#1"]]


async def test_a_pause_with_a_key_is_asked_for_like_any_other(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> str:
        first = await ctx.pause("a", key="same")
        if ctx.attempt > 2:
            return f"{first.value}, and the other not asked for"
        return f"{first.value}, {(await ctx.pause('b', key='other')).value}"

    async with pool(store, {"h": handler}, steps=FAIL) as client:
        await client.submit("h", session_id=SESSION, task_id=TASK)
        await client.approve(await open_token(store, TASK), 1)
        await client.approve(await open_token(store, TASK, after=1), 2)
        ended = await client.wait(SESSION, TASK, timeout_s=60)
        # What was asked for is not missed; what was not, is.
        assert ended.error is not None
        assert "pause:other#key" in ended.error
        assert "pause:same#key" not in ended.error


async def test_a_run_that_is_not_over_or_does_not_complete_says_nothing(
    store: RedisStateStore,
) -> None:
    async def paused(ctx: TaskContext) -> Any:
        await ctx.step("a", int)
        await ctx.pause()
        return await ctx.step("b", int)

    async def fails(_: TaskContext) -> None:
        raise ValueError("no")

    async with pool(store, {"paused": paused, "h": paused}, steps=FAIL) as client:
        task = await client.submit("paused", session_id=SESSION)
        await client.approve(await open_token(store, task))
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert (ended.status, ended.result) == (TaskStatus.COMPLETE, 0)
    again = await two_runs(store, asking("a", ends=False), asking([], ends=False), FAIL)
    assert again.status is TaskStatus.PENDING
    failed = await run_once(store, fails, steps=FAIL)
    assert failed.error == "ValueError: no"


async def test_a_handler_that_goes_on_after_its_pause_is_not_taken_for_one_that_has_ended(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> Any:
        if ctx.attempt == 1:
            await ctx.step("a", int)
        if ctx.attempt < 3:
            with suppress(BaseException):  # what a handler should not do
                await ctx.pause(name=f"{ctx.attempt}")
        return "over"

    async with pool(store, {"h": handler}) as client:
        await client.submit("h", session_id=SESSION, task_id=TASK)
        await client.approve(await open_token(store, TASK))
        await client.approve(await open_token(store, TASK, after=1))
        assert (await client.wait(SESSION, TASK, timeout_s=60)).result == "over"
        assert await diverged(store) == [("pause:2#1", "step:a#1")]
        assert await missed(store) == [["pause:1#1", "pause:2#1", "step:a#1"]]


async def test_a_pause_that_became_a_step_is_missed(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> Any:
        if ctx.attempt == 1:
            await ctx.step("x", str, "step")
            await ctx.pause(name="x")
        return await ctx.step("x", str, "another step")

    async with pool(store, {"h": handler}) as client:
        await client.submit("h", session_id=SESSION, task_id=TASK)
        await client.approve(await open_token(store, TASK))
        # A step and a pause may share a name: each is found by its kind.
        assert (await client.wait(SESSION, TASK, timeout_s=60)).result == "step"
        assert await missed(store) == [["pause:x#1"]]


def test_only_what_has_to_be_asked_for_is_missed() -> None:
    recorded = [
        "step:a#1",
        "step:a#1/b#1",
        "step:c#1/d#1",
        "pause:a#1/e#1",
        "other:z#1",
        "pause:p#1",
    ]
    recorded += ["child:a#1/f#1", "child:q#1"]
    missed = ["child:q#1", "pause:p#1", "step:a#1", "step:c#1/d#1"]
    assert unvisited(recorded, []) == missed
    assert unvisited(recorded, recorded) == []
    assert unvisited(["step:http://a/b#1"], []) == ["step:http://a/b#1"]


def test_a_change_names_a_few_entries_and_carries_all() -> None:
    changed = HandlerChanged("t", [f"step:{n}#1" for n in range(25)])
    assert str(changed).endswith("step:9#1 and 15 more")
    assert len(changed.entries) == 25
