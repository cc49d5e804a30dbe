"""A replay publishes nothing twice: it knows an update by its text, its place, or its name."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus, UpdateType
from redis_state.worker import RetryPolicy, TaskClient, TaskContext, retried
from tests.support.processes.pools import SESSION
from tests.support.tasks.replays import emitted, say, texts
from tests.support.tasks.runs import TASK, begin_again, make, run_once


async def test_an_approval_after_steering_repeats_nothing_and_invents_nothing(
    store: RedisStateStore, client: TaskClient
) -> None:
    calls: list[str] = []

    async def handler(ctx: TaskContext) -> None:
        topic = "otters"
        for number in range(4):
            if number == 2 and ctx.attempt == 1:
                await say(store, ctx, "beavers")
            for text in texts(ctx.inbox.take()):
                topic = text
            await ctx.thinking(f"{number}: {topic}")
            found = await ctx.step("search", search, topic)
            await ctx.tool_call("search", topic, found)
        await ctx.approval("publish?")
        await ctx.result("published")

    def search(topic: str) -> str:
        calls.append(topic)
        return f"search({topic})"

    await make(store)
    assert (await run_once(store, handler)).status is TaskStatus.PAUSED
    before = await emitted(store)
    (pause,) = await client.pauses(SESSION)
    assert pause.token is not None
    await client.approve(pause.token)
    assert (await run_once(store, handler)).status is TaskStatus.COMPLETE
    assert await emitted(store) == [*before, "published"]
    assert calls == ["otters", "otters", "beavers", "beavers"]
    found: list[dict[str, Any]] = [row for row in before if isinstance(row, dict) and "tool" in row]
    assert [(row["arguments"], row["result"]) for row in found] == [
        (topic, f"search({topic})") for topic in calls
    ]


async def test_what_differs_by_a_time_or_a_random_id_is_no_second_row(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> None:
        for number in range(3):
            await ctx.progress("working", id=uuid.uuid4().hex, number=number)
        if ctx.attempt < 3:
            begin_again()
        await ctx.progress("done", id=uuid.uuid4().hex, number=3)

    await make(store)
    first = None
    for _ in range(3):
        await run_once(store, handler)
        first = first or await emitted(store)
    assert first is not None
    rows = await emitted(store)
    assert rows[:3] == first
    assert [row["number"] for row in rows] == [0, 1, 2, 3]


async def test_parallel_parts_may_emit_in_another_order(store: RedisStateStore) -> None:
    async def part(ctx: TaskContext, name: str, turns: int, rows: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        for number in range(rows):
            await ctx.progress(f"{name}{number}")

    async def handler(ctx: TaskContext) -> None:
        first = ctx.attempt == 1
        names = ["a", "b", "c"] if first else ["a", "b", "c", "d"]
        # Later parts emit first in a replay, and get further than before.
        turns = {name: 50 * (len(names) - n if not first else n) for n, name in enumerate(names)}
        rows = {"a": 1, "b": 3, "c": 2} if first else dict.fromkeys(names, 4)
        await asyncio.gather(*(part(ctx, name, turns[name], rows[name]) for name in names))
        if first:
            begin_again()

    await make(store)
    await run_once(store, handler)
    before = await emitted(store)
    assert len(before) == 6
    await run_once(store, handler)
    rows = [row["message"] for row in await emitted(store)]
    assert rows[:6] == [row["message"] for row in before]
    assert sorted(rows) == sorted(f"{name}{number}" for name in "abcd" for number in range(4))
    for name in "abcd":
        assert [row for row in rows if row[0] == name] == [f"{name}{n}" for n in range(4)]


async def test_parallel_branches_may_begin_with_a_time(store: RedisStateStore) -> None:
    async def part(ctx: TaskContext, name: str, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await ctx.progress("begun", id=uuid.uuid4().hex, name=name)
        await ctx.progress("end", name=name)

    async def handler(ctx: TaskContext) -> None:
        order = ["a", "b"] if ctx.attempt == 1 else ["b", "a"]
        await asyncio.gather(
            *(part(ctx.branch(name), name, 50 * order.index(name)) for name in ["a", "b"])
        )
        if ctx.attempt == 1:
            begin_again()
        await ctx.progress("all", name="")

    await make(store)
    for _ in range(2):
        await run_once(store, handler)
    rows = [(row["message"], row["name"]) for row in await emitted(store)]
    ends = [("begun", "a"), ("end", "a"), ("begun", "b"), ("end", "b"), ("all", "")]
    assert sorted(rows) == sorted(ends)


async def test_what_retention_has_dropped_is_not_brought_back(settings: Settings) -> None:
    short = settings.model_copy(update={"max_updates_per_session": 5})

    async def handler(ctx: TaskContext) -> None:
        for number in range(100):
            await ctx.progress(f"{number}")
        if ctx.attempt == 1:
            begin_again()
        await ctx.result("done")

    async with RedisStateStore(short) as store:
        await make(store)
        await run_once(store, handler)
        cursor = await store.update_cursor(SESSION)
        await run_once(store, handler)
        page = await store.read_updates(SESSION, after=cursor, task_id=TASK)
        reported = [update.content for update in page.values]
    assert [content for content in reported if "status" not in content] == ["done"]


async def test_an_update_inside_of_a_step_is_published_once_whatever_attempt_it_is_of(
    store: RedisStateStore,
) -> None:
    tries: list[int] = []

    async def work(ctx: TaskContext) -> str:
        await ctx.progress("trying")
        tries.append(ctx.attempt)
        if len(tries) < 3:
            raise OSError
        if len(tries) == 3:
            begin_again()
        await ctx.progress("worked")
        return "ok"

    async def handler(ctx: TaskContext) -> None:
        policy = RetryPolicy(attempts=4, wait_initial_s=0.001, on=(OSError,))
        await ctx.step("work", retried(work, policy), ctx)
        await ctx.emit(UpdateType.NOTIFICATION, "noticed")

    await make(store)
    for _ in range(2):
        await run_once(store, handler)
    rows = [row["message"] for row in await emitted(store)]
    assert rows == ["trying", "trying", "trying", "worked"]
    reported = await store.list_updates(SESSION, task_id=TASK, limit=100)
    notices = [one.content for one in reported if one.update_type is UpdateType.NOTIFICATION]
    # Both failed attempts, once each; and what the handler itself noticed is not taken for one.
    assert [notice if isinstance(notice, str) else notice["attempt"] for notice in notices] == [
        1,
        2,
        "noticed",
    ]


async def test_a_handler_that_resumes_from_a_state_of_its_own_names_its_updates(
    store: RedisStateStore,
) -> None:
    done = 0

    async def handler(ctx: TaskContext) -> None:
        nonlocal done
        for number in range(max(0, done - 1), 6):
            await ctx.emit(UpdateType.PROGRESS, {"item": number}, key=f"item {number}")
            done = number + 1
            if done in (2, 4) and ctx.attempt < 3:
                begin_again()

    await make(store)
    for _ in range(3):
        await run_once(store, handler)
    assert [row["item"] for row in await emitted(store)] == list(range(6))


async def test_each_row_tells_which_run_published_it(
    store: RedisStateStore, client: TaskClient
) -> None:
    epochs: list[int] = []

    async def handler(ctx: TaskContext) -> None:
        epochs.append(ctx.epoch)
        await ctx.progress("first")
        await ctx.approval("go on?")
        await ctx.progress("second")

    await make(store)
    await run_once(store, handler)
    (pause,) = await client.pauses(SESSION)
    assert pause.token is not None
    await client.approve(pause.token)
    await run_once(store, handler)
    page = await store.read_updates(SESSION, task_id=TASK)
    found = [(one.run, one.value.content) for one in page.entries]
    runs = [
        (run, content.get("message") or content.get("status") or content["pause"])
        for run, content in found
    ]
    one, two = epochs
    assert one < two
    assert runs == [
        (None, "PENDING"),
        (one, "RUNNING"),
        (one, "first"),
        (one, "await_approval"),
        (one, "PAUSED"),
        (None, "PENDING"),
        (two, "RUNNING"),
        (two, "second"),
        (two, "COMPLETE"),
    ]
    watched = store.watch_updates(SESSION, task_id=TASK)
    assert [(await anext(watched)).run for _ in runs] == [run for run, _ in runs]
    await watched.aclose()
