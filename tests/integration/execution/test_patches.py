"""A patch: new code for new tasks, old code for tasks that have passed the point."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskState, TaskStatus
from redis_state.worker import Handler, StepPolicy, TaskContext
from redis_state.worker.tasks.recorded.journal import Journals
from tests.support.processes.pools import SESSION, open_token, pool
from tests.support.tasks.runs import TASK, begin_again, make, run_once

FAIL = StepPolicy(on_changed="fail")


async def runs(store: RedisStateStore, *handlers: Handler) -> TaskState:
    """Run a task by one version of its handler after the other."""
    await make(store)
    *earlier, last = handlers
    for handler in earlier:
        await run_once(store, handler, steps=FAIL)
    return await run_once(store, last, steps=FAIL)


async def answers(store: RedisStateStore) -> dict[str, Any]:
    journal, _ = await Journals(store.base).read(store.tasks.keys(SESSION, TASK))
    return {name: note for name, note in journal.items() if name.startswith("patch:")}


def old(*names: str) -> Handler:
    """Do some steps, and end the run as a crash does."""

    async def handler(ctx: TaskContext) -> None:
        for name in names:
            await ctx.step(name, str, name)
        begin_again()

    return handler


async def new(ctx: TaskContext) -> list[str]:
    found = [await ctx.step("a", str, "a")]
    if ctx.patched("more"):
        found.append(await ctx.step("new", str, "new"))
    return [*found, await ctx.step("b", str, "b")]


@pytest.mark.parametrize(
    ("before", "result", "answer"),
    [
        ([], ["a", "new", "b"], True),
        (["a"], ["a", "new", "b"], True),
        (["a", "b"], ["a", "b"], False),
    ],
    ids=["new", "before the point", "past the point"],
)
async def test_only_a_task_that_passed_the_point_takes_the_old_path(
    store: RedisStateStore, before: list[str], result: list[str], *, answer: bool
) -> None:
    ended = await runs(store, old(*before), new)
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, result)
    assert await answers(store) == {"patch:more": answer}


@pytest.mark.parametrize("before", [["a"], ["a", "b"]], ids=["new path", "old path"])
async def test_each_later_run_answers_the_same(store: RedisStateStore, before: list[str]) -> None:
    given: list[bool] = []

    async def handler(ctx: TaskContext) -> Any:
        await ctx.step("a", str)
        given.append(ctx.patched("more"))
        if given[-1]:
            await ctx.step("new", str)
        await ctx.step("b", str)
        await ctx.step(f"run {ctx.attempt}", str)
        begin_again()

    await make(store)
    await run_once(store, old(*before))
    for _ in range(4):
        await run_once(store, handler)
    assert given == [before == ["a"]] * 4


async def test_a_crash_after_the_answer_changes_nothing(store: RedisStateStore) -> None:
    """Whatever stands in the journal of what comes after the point, the answer stands in too."""
    given: list[bool] = []

    async def handler(ctx: TaskContext) -> Any:
        await ctx.step("a", str)
        given.append(ctx.patched("more"))
        if ctx.attempt == 1:
            begin_again()
        # Another asyncio task records: the handler's own has come no further than its answer.
        await asyncio.gather(*(ctx.branch("part").step("x", str, n) for n in "12"))
        if ctx.attempt == 2:
            begin_again()

    ended = await runs(store, handler, handler, handler)
    assert (ended.status, given) == (TaskStatus.COMPLETE, [True] * 3)


async def test_an_update_alone_passes_a_point(store: RedisStateStore) -> None:
    async def before(ctx: TaskContext) -> None:
        await ctx.progress("beyond")
        begin_again()

    async def after(ctx: TaskContext) -> bool:
        answer = ctx.patched("more")
        await ctx.progress("beyond")
        return answer

    assert (await runs(store, before, after)).result is False


async def test_a_new_update_before_the_point_does_not_hide_what_is_beyond(
    store: RedisStateStore,
) -> None:
    async def after(ctx: TaskContext) -> bool:
        await ctx.step("a", str)
        await ctx.progress("added")
        return ctx.patched("more") or await ctx.step("b", str) != "b"

    assert (await runs(store, old("a", "b"), after)).result is False


async def test_the_calls_of_a_loop_agree(store: RedisStateStore) -> None:
    async def before(ctx: TaskContext) -> None:
        for turn in range(3):
            await ctx.step("turn", int, turn)
        begin_again()

    async def after(ctx: TaskContext) -> list[bool]:
        given: list[bool] = []
        for turn in range(5):
            given.append(ctx.patched("more"))
            await ctx.step("turn", int, turn)
        return given

    assert (await runs(store, before, after)).result == [False] * 5


async def test_each_turn_of_a_loop_decides_for_itself_in_a_branch(store: RedisStateStore) -> None:
    async def before(ctx: TaskContext) -> None:
        for turn in range(3):
            await ctx.branch("turn").step("do", int, turn)
        begin_again()

    async def after(ctx: TaskContext) -> list[bool]:
        given: list[bool] = []
        for turn in range(5):
            part = ctx.branch("turn")
            given.append(part.patched("more"))
            await part.step("do", int, turn)
        return given

    ended = await runs(store, before, after)
    assert ended.result == [False] * 3 + [True] * 2
    assert await answers(store) == {f"patch:turn#{turn}/more": turn > 3 for turn in range(1, 6)}


async def test_concurrent_branches_decide_for_themselves(store: RedisStateStore) -> None:
    """A branch that has recorded nothing yet is new, however far the others are."""

    def handler(*, patched: bool) -> Handler:
        async def part(ctx: TaskContext, number: int) -> Any:
            answer = patched and ctx.patched("more")
            if not (ctx.attempt == 1 and number == 3):
                await ctx.step("x", int, number)
            between = patched and ctx.patched("later")
            if ctx.attempt > 1 or number == 1:
                await ctx.step("y", int, number)
            return [answer, between]

        async def whole(ctx: TaskContext) -> Any:
            parts = (part(ctx.branch("part"), number) for number in (1, 2, 3))
            found = await asyncio.gather(*parts)
            if ctx.attempt < 4:
                begin_again()
            return found

        return whole

    new_code = handler(patched=True)
    ended = await runs(store, handler(patched=False), new_code, new_code, new_code)
    assert ended.result == [[False, False], [False, True], [True, True]]


async def test_another_asyncio_task_takes_the_old_path_if_in_doubt(store: RedisStateStore) -> None:
    async def before(ctx: TaskContext) -> None:
        await asyncio.gather(ctx.step("x", int), asyncio.create_task(part(ctx, ask=False)))
        begin_again()

    async def part(ctx: TaskContext, *, ask: bool) -> bool:
        answer = ask and ctx.patched("more")
        await ctx.step("own", int)
        return answer

    async def after(ctx: TaskContext) -> bool:
        other = asyncio.create_task(part(ctx, ask=True))
        await ctx.step("x", int)
        return await other

    assert (await runs(store, before, after)).result is False


async def test_in_the_work_of_a_step_the_point_is_that_works(store: RedisStateStore) -> None:
    async def work(ctx: TaskContext) -> bool:
        answer = ctx.patched("more")
        await ctx.step("inner", int)
        if ctx.attempt == 1:
            begin_again()
        return answer

    async def handler(ctx: TaskContext) -> Any:
        await ctx.step("before", int)
        return await ctx.step("outer", work, ctx)

    assert (await runs(store, handler, handler)).result is True
    assert await answers(store) == {"patch:outer#1/more": True}


async def test_a_retired_patch_stops_a_task_that_needs_the_old_path(store: RedisStateStore) -> None:
    async def retired(ctx: TaskContext) -> list[str]:
        found = [await ctx.step("a", str, "a")]
        ctx.retire_patch("more")
        found.append(await ctx.step("new", str, "new"))
        return [*found, await ctx.step("b", str, "b")]

    async def begun_anew(ctx: TaskContext) -> None:
        await new(ctx)
        begin_again()

    ended = await runs(store, begun_anew, retired)
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, ["a", "new", "b"])
    for case, handlers in enumerate([(old("a", "b"), begun_anew), (old("a", "b"),)]):
        await make(store, f"{case}")
        for handler in (*handlers, retired):
            ended = await run_once(store, handler, task_id=f"{case}")
        stated = "called retire_patch('more') where another call is recorded: patch:more"
        assert ended.error == f"HandlerChanged: the handler of task '{case}' {stated}"


async def test_a_pause_keeps_the_answer_through_another_worker(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> list[bool]:
        answer = ctx.patched("more")
        await ctx.pause()
        return [answer, ctx.patched("more"), ctx.patched("other")]

    async with pool(store, {"h": handler}, steps=FAIL) as client:
        await client.submit("h", session_id=SESSION, task_id=TASK)
        await client.approve(await open_token(store, TASK))
        assert (await client.wait(SESSION, TASK, timeout_s=60)).result == [True] * 3


async def test_a_patch_needs_a_name(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> bool:
        return ctx.patched(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

    ended = await runs(store, handler)
    assert ended.error == "InvalidField: name: text is needed, not int"
