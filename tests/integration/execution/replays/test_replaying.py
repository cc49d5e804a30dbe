"""Stored journals are replayed under other code: what fits, what diverges, what cannot be decided.

And nothing happens by it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import InvalidField
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.stores.sessions.job_parts import job_of
from redis_state.testing.histories import (
    ReplayReport,
    TaskHistory,
    assert_fits,
    load_history,
    replay_history,
)
from redis_state.worker import Handler, TaskContext
from redis_state.worker.tasks.histories import read_history
from tests.support.processes.pools import SESSION, open_token, pool
from tests.support.tasks.runs import TASK, begin_again, make, run_once


async def history_of(store: RedisStateStore, task_id: str = TASK) -> TaskHistory:
    found = await read_history(store, SESSION, task_id)
    assert found is not None
    return found


async def replay(store: RedisStateStore, handler: Handler, **options: Any) -> ReplayReport:
    return await replay_history({"h": handler}, await history_of(store), **options)


async def left_by(store: RedisStateStore, handler: Handler) -> None:
    """Run a task once, and leave it as it is then."""
    await make(store)
    await run_once(store, handler)


def doing(*names: str, done: list[str] | None = None) -> Handler:
    async def handler(ctx: TaskContext) -> str:
        for name in names:
            await ctx.step(name, (done if done is not None else []).append, name)
        if done is None:
            begin_again()
        return "done"

    return handler


@pytest.mark.parametrize(
    ("names", "verdict", "why"),
    [
        ("ab", "fits", "it returns"),
        ("abc", "fits", "it continues with step:c#1"),
        ("ac", "diverges", "it calls step:c#1 where step:b#1 is recorded"),
        ("xab", "diverges", "it calls step:x#1 where step:a#1 is recorded"),
        ("a", "diverges", "it returns and has not used what is recorded"),
    ],
)
async def test_a_replay_says_at_which_call_it_does_not_fit_and_does_no_work(
    store: RedisStateStore, names: str, verdict: str, why: str
) -> None:
    await left_by(store, doing("a", "b"))
    done: list[str] = []
    report = await replay(store, doing(*names, done=done))
    assert (report.verdict.value, report.why) == (verdict, why)
    assert done == []


async def test_a_replay_passes_pauses_children_steering_and_patches(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> list[Any]:
        answer = ctx.patched("more")
        child = await ctx.spawn("other", "input")
        decision = await ctx.approval("Go on?")
        pages = await asyncio.gather(*(ctx.branch("page").step("get", int, n) for n in "12"))
        events = await ctx.inbox.wait()
        found = await ctx.join(child)
        await ctx.progress("further")
        await ctx.pause("last")
        return [answer, decision.value, pages, len(events), found]

    async def other(ctx: TaskContext) -> Any:
        return ctx.input

    async with pool(store, {"h": handler, "other": other}) as client:
        await client.submit("h", session_id=SESSION, task_id=TASK)
        await client.approve(await open_token(store, TASK), "value")
        await client.steer(SESSION, TASK, SteeringEventType.INJECT_CONTEXT, {"text": "x"})
        await open_token(store, TASK, after=1)
    report = await replay(store, handler)
    assert (report.verdict.value, report.at) == ("fits", "the decision of pause:last#1")
    assert report.patches == {"more": True}

    async def changed(ctx: TaskContext) -> None:
        ctx.patched("more")
        await ctx.spawn("other", "input")
        await ctx.approval("Go on?")
        await ctx.step("get", int, 1)

    report = await replay(store, changed)
    assert (report.verdict.value, report.called) == ("diverges", "step:get#1")
    assert report.recorded == ["step:page#1/get#1"]

    async def added(ctx: TaskContext) -> None:
        ctx.patched("more")
        await ctx.spawn("other", "input")
        await ctx.approval("Go on?")
        await asyncio.gather(*(ctx.branch("page").step("get", int, n) for n in "12"))
        await ctx.step("new", int)

    # After branches the order of calls is open.
    report = await replay(store, added)
    assert (report.verdict.value, report.at) == ("undecided", "step:new#1")
    assert "pause:last#1" in report.recorded


async def test_branches_that_stopped_at_different_places_fit(store: RedisStateStore) -> None:
    async def part(ctx: TaskContext, number: int) -> None:
        if ctx.attempt == 1 and number == 0:
            await asyncio.Event().wait()
        await ctx.step("x", int, number)
        if ctx.attempt == 1 and number == 2:
            begin_again()
        await ctx.step("y", int, number)

    async def handler(ctx: TaskContext) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(part(ctx.branch("part"), number))

    await left_by(store, handler)
    report = await replay(store, handler)
    assert_fits(report)
    assert report.at == "step:part#1/x#1"


async def test_a_large_result_comes_with_its_history(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> str:
        text = await ctx.step("large", lambda: "x" * 700_000)
        return await ctx.step(f"of {len(text)}", str)

    async def crashing(ctx: TaskContext) -> None:
        await handler(ctx)
        begin_again()

    await left_by(store, crashing)
    assert (await replay(store, handler)).why == "it returns"


async def test_what_a_handler_does_beside_its_calls_is_decided_where_it_can_be(
    store: RedisStateStore,
) -> None:
    await left_by(store, doing("a", "b"))

    async def stores(ctx: TaskContext) -> None:
        await ctx.step("a", int)
        await ctx.store.list_tasks(SESSION)

    async def waits(ctx: TaskContext) -> None:
        await ctx.step("a", int)
        await asyncio.Event().wait()

    async def raises(ctx: TaskContext) -> None:
        await ctx.step("a", int)
        raise KeyError("b")

    async def raises_later(ctx: TaskContext) -> None:
        await doing("a", "b", done=[])(ctx)
        raise KeyError("b")

    async def settings(ctx: TaskContext) -> str:
        await doing("a", "b", done=[])(ctx)
        return ctx.store.settings.namespace

    told = [(await replay(store, each, timeout_s=0.2)) for each in (stores, waits, raises)]
    assert [(one.verdict.value, one.why) for one in told] == [
        ("undecided", "it uses ctx.store.list_tasks outside of a step"),
        ("undecided", "it is not through after 0.2 s"),
        ("diverges", "it raises KeyError and has not used what is recorded"),
    ]
    assert all(one.recorded == ["step:b#1"] for one in told)
    later = await replay(store, raises_later)
    assert later.verdict.value == "undecided"
    assert later.why == "it raises KeyError after all that is recorded"
    assert_fits(await replay(store, settings))


async def test_a_failure_that_was_handled_is_replayed(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> None:
        try:
            await ctx.step("first", lambda: 1 / 0)
        except ZeroDivisionError:
            await ctx.step("second", int)
        await ctx.step("third", begin_again)

    await left_by(store, handler)
    report = await replay(store, handler)
    assert (report.verdict.value, report.at) == ("fits", "step:third#1")


async def test_a_step_that_failed_without_a_record_leaves_a_doubt(store: RedisStateStore) -> None:
    cut: list[int] = []

    async def handler(ctx: TaskContext) -> None:
        try:
            async with asyncio.timeout(None if cut else 0.01):
                await ctx.keyed_step("first", "key", asyncio.Event().wait)
        except TimeoutError:
            cut.append(1)
            await ctx.step("second", int)
        begin_again()

    await left_by(store, handler)
    report = await replay(store, handler)
    assert (report.verdict.value, report.at) == ("undecided", "step:first#=key")
    assert report.recorded == ["step:second#1"]


async def test_a_failed_task_that_fails_again_fits(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> None:
        await ctx.step("a", int)
        ctx.on_failure(print, "undone")
        raise ValueError("no")

    await left_by(store, handler)
    report = await replay(store, handler)
    assert (report.status, report.verdict.value) == ("FAILED", "fits")
    assert report.why == "it raises ValueError"


async def test_a_retired_patch_is_found(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> None:
        ctx.retire_patch("more")
        await ctx.step("a", int)

    await left_by(store, doing("a"))
    report = await replay(store, handler)
    assert (report.verdict.value, report.recorded) == ("diverges", ["patch:more"])


async def test_without_a_handler_a_task_does_not_go_on(store: RedisStateStore) -> None:
    await left_by(store, doing("a"))
    report = await replay_history({}, await history_of(store))
    assert (report.verdict.value, report.why) == ("diverges", "there is no such handler")


@pytest.mark.role("any", why="it lists the keys")
async def test_a_replay_changes_nothing_in_the_store(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> None:
        ctx.on_failure(print, name="undo")
        await ctx.step("a", int)
        await ctx.progress("a")
        ctx.inbox.take()
        if ctx.attempt == 1:
            begin_again()
        ctx.patched("new")
        await ctx.progress("b")
        await ctx.step("b", int)

    async def contents() -> dict[bytes, bytes]:
        sender = store.transport.sender
        found: list[bytes] = await sender.send(
            "KEYS", f"{store.settings.namespace}:*", repeatable=True
        )
        return {key: await sender.send("DUMP", key, repeatable=True) for key in found}

    await left_by(store, handler)
    before = await contents()
    assert_fits(await replay(store, handler))
    after = await contents()
    assert {key for key in before if before[key] != after.get(key)} == set()
    assert before.keys() == after.keys()


async def test_a_history_is_a_file_that_needs_no_server(
    store: RedisStateStore, tmp_path: Path
) -> None:
    keys: list[str] = []

    async def handler(ctx: TaskContext) -> Any:
        first = await ctx.step("a", lambda: {"of": [1, None, 1.5, "\ud800", 2**70]})
        keys.append(ctx.effect_id("b"))
        await ctx.step("sum", str, first["of"])
        if ctx.attempt == 1:
            begin_again()
        return await ctx.step("b", int)

    odd = 'ta"sk\n{}'
    await make(store, odd)
    await run_once(store, handler, task_id=odd)
    path = tmp_path / "history.json"
    (await history_of(store, odd)).save(path)
    assert path.stat().st_mode & 0o077 == 0
    record = await store.tasks.load_fields(SESSION, odd)
    assert record is not None
    assert b"secret" in job_of(record.fields)
    assert b"secret" not in path.read_bytes()
    loaded = load_history(path)
    assert loaded == await history_of(store, odd)
    report = await replay_history({"h": handler}, loaded)
    assert_fits(report)
    assert report.at == "step:b#1"
    assert len(set(keys)) == 1


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1}', '{"format": 7}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.json"
    with pytest.raises(InvalidField, match="path: cannot be read"):
        load_history(path)
    path.write_text(text)
    with pytest.raises(InvalidField, match="path: "):
        load_history(path)


async def test_what_does_not_fit_fails_a_test_with_the_reason(store: RedisStateStore) -> None:
    await left_by(store, doing("a", "b"))
    stated = "task t: diverges: it calls step:c#1 where step:b#1 is recorded"
    with pytest.raises(AssertionError, match=stated):
        assert_fits(await replay(store, doing("a", "c", done=[])))


async def test_a_thousand_steps_are_replayed(store: RedisStateStore) -> None:
    names = [f"{number}" for number in range(1000)]
    await left_by(store, doing(*names))
    report = await replay(store, doing(*names, "last", done=[]), timeout_s=60)
    assert (report.at, report.status) == ("step:last#1", TaskStatus.PENDING.value)
