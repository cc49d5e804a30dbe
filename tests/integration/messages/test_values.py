"""Values out of a task: each published once, the last of a key stands, and absence is a value."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import InvalidField, InvalidMessage, LimitReached, RedisStateStore, TaskUnknown
from redis_state.models import TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.tasks.messaging.payloads import MAX_PAYLOAD_BYTES
from redis_state.worker.tasks.messaging.values import MAX_VALUES
from tests.support.processes.pools import SESSION, client_of, pool, updates_of
from tests.support.servers.changes.rollback import rolling_back
from tests.support.tasks.runs import TASK, begin_again, make, run_to_the_end

ODD = ["", "a:b#1", "{x}", "\ud800", "\N{GRINNING FACE}", "a\0b\n", "é" * 128, "value:", "entries"]


async def published(store: RedisStateStore) -> list[tuple[str, Any]]:
    return [
        (update.content["key"], update.content["value"])
        for update in await updates_of(store, TASK)
        if update.update_type is UpdateType.NOTIFICATION
    ]


async def test_a_replay_publishes_no_value_twice_and_the_last_of_a_key_stands(
    store: RedisStateStore,
) -> None:
    runs: list[int] = []

    async def handler(ctx: TaskContext) -> None:
        runs.append(ctx.epoch)
        await ctx.publish_value("at", [len(runs), 1])  # what a replay writes differently
        await ctx.publish_value("other", None)
        await ctx.publish_value("at", [len(runs), 2])
        if len(runs) < 3:
            begin_again()
        await ctx.publish_value("at", [len(runs), 3])

    assert (await run_to_the_end(store, handler)).status is TaskStatus.COMPLETE
    assert await published(store) == [
        ("at", [1, 1]),
        ("other", None),
        ("at", [1, 2]),
        ("at", [3, 3]),
    ]
    async with client_of(store) as client:
        values = await client.values(SESSION, TASK)
        assert [(each.key, each.value, each.epoch) for each in values] == [
            ("at", [3, 3], runs[2]),
            ("other", None, runs[0]),
        ]
        assert await client.value(SESSION, TASK, "at", type=tuple[int, int]) == (3, 3)
        assert await client.value(SESSION, TASK, "other", default="d") is None
        assert await client.value(SESSION, TASK, "none", default="d") == "d"
        with pytest.raises(InvalidMessage) as raised:
            await client.value(SESSION, TASK, "at", type=dict[str, int])
        assert (raised.value.problems, raised.value.payload) == (["payload: dict_type"], [3, 3])


async def test_work_that_is_done_again_publishes_again_until_its_step_is_recorded(
    store: RedisStateStore,
) -> None:
    runs: list[int] = []

    async def handler(ctx: TaskContext) -> None:
        runs.append(ctx.epoch)

        async def work() -> None:
            await ctx.publish_value("draft", len(runs))
            if len(runs) == 1:
                begin_again()

        await ctx.step("work", work)
        if len(runs) == 2:
            begin_again()

    assert (await run_to_the_end(store, handler)).status is TaskStatus.COMPLETE
    assert len(runs) == 3
    assert await published(store) == [("draft", 1), ("draft", 2)]


@pytest.mark.parametrize("key", ODD)
async def test_any_text_is_a_key_and_what_is_published_is_read(
    store: RedisStateStore, key: str
) -> None:
    runs: list[int] = []

    async def handler(ctx: TaskContext) -> None:
        runs.append(ctx.epoch)
        await ctx.publish_value(key, {"of": key})
        if len(runs) == 1:
            begin_again()

    state = await run_to_the_end(store, handler)
    async with client_of(store) as client:
        if key == "":
            assert str(state.error).startswith("InvalidField: key")
            return
        assert state.status is TaskStatus.COMPLETE
        assert len(runs) == 2
        assert await client.value(SESSION, TASK, key) == {"of": key}
        assert [each.key for each in await client.values(SESSION, TASK)] == [key]


async def test_too_many_too_large_and_too_long_are_refused_where_they_are_given(
    store: RedisStateStore,
) -> None:
    refused: list[list[str]] = []

    async def handler(ctx: TaskContext) -> None:
        mine: list[str] = []
        refused.append(mine)
        for number in range(MAX_VALUES):
            await ctx.publish_value(f"{number}", number)
        for key, value in (("more", 1), ("0", "x" * MAX_PAYLOAD_BYTES), ("k" * 257, 1), (3, 1)):
            try:
                await ctx.publish_value(key, value)  # type: ignore[arg-type]
            except (LimitReached, InvalidField) as error:
                mine.append(type(error).__name__)
        await ctx.publish_value("0", "again")
        if len(refused) == 1:
            begin_again()

    assert (await run_to_the_end(store, handler)).status is TaskStatus.COMPLETE
    assert refused == [["LimitReached", *["InvalidField"] * 3]] * 2
    assert len(await published(store)) == MAX_VALUES + 1
    async with client_of(store) as client:
        assert len(await client.values(SESSION, TASK)) == MAX_VALUES
        assert await client.value(SESSION, TASK, "0") == "again"


async def test_a_value_is_waited_for_but_not_beyond_the_tasks_end(store: RedisStateStore) -> None:
    gate = asyncio.Event()

    async def handler(ctx: TaskContext) -> None:
        await gate.wait()
        await ctx.publish_value("port", 8080)
        await ctx.publish_value("open", value=True)

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)
        waiting = [
            asyncio.create_task(client.value(SESSION, task_id, key, wait=60, default="none"))
            for key in ("port", "open", "never")
        ]
        assert await client.value(SESSION, task_id, "port", wait=0) is None
        gate.set()
        assert await asyncio.gather(*waiting) == [8080, True, "none"]
        with pytest.raises(TaskUnknown):
            await client.value(SESSION, "no such task", "port", wait=60)
        assert await client.value(SESSION, "no such task", "port", default=4) == 4
        with pytest.raises(InvalidField, match="wait"):
            await client.value(SESSION, task_id, "never", wait=-1)


async def test_who_waits_for_a_value_of_a_task_that_is_deleted_is_told(
    store: RedisStateStore,
) -> None:
    await make(store)
    async with client_of(store) as client:
        waiting = asyncio.create_task(client.value(SESSION, TASK, "x", wait=60))
        await store.clear_session(SESSION)
        with pytest.raises(TaskUnknown):
            await waiting


async def test_a_new_task_of_an_old_id_has_no_values_and_values_die_with_the_task(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> None:
        await ctx.publish_value("x", 1)

    await run_to_the_end(store, handler)
    sender, keys = store.transport.sender, store.tasks.keys(SESSION, TASK)
    lives = [
        int(await sender.send("PEXPIRETIME", key, repeatable=True))
        for key in (keys.task, keys.journal)
    ]
    assert 0 < lives[0] <= lives[1] + 1_000
    await store.tasks.clear(SESSION, TASK)
    await make(store)
    async with client_of(store) as client:
        assert await client.values(SESSION, TASK) == []


@dataclass
class Report:
    done: int
    note: str


async def test_a_type_is_written_and_read(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> None:
        await ctx.publish_value("report", Report(3, "fine"))

    await run_to_the_end(store, handler)
    async with client_of(store) as client:
        found = await client.value(SESSION, TASK, "report", type=Report)
        assert found == Report(3, "fine")
        with pytest.raises(InvalidField, match="type"):
            await client.value(SESSION, TASK, "report", type=time)


async def test_a_server_that_went_back_gets_the_values_again() -> None:
    runs: list[int] = []
    async with rolling_back() as server, RedisStateStore.from_url(server.url) as store:

        async def handler(ctx: TaskContext) -> None:
            runs.append(ctx.epoch)
            await ctx.publish_value("x", 1)
            if len(runs) == 1:
                await server.mark()
            await ctx.publish_value("x", 2)
            await ctx.publish_value("y", len(runs))
            if len(runs) == 1:
                await server.go_back()
                await ctx.publish_value("z", "on top of a hole")

        state = await run_to_the_end(store, handler)
        assert (state.status, len(runs)) == (TaskStatus.COMPLETE, 2)
        async with TaskClient(store) as client:
            found = {each.key: each.value for each in await client.values(SESSION, TASK)}
        assert found == {"x": 2, "y": 2}
        assert await published(store) == [("x", 1), ("x", 2), ("y", 2)]


async def test_a_watcher_sees_each_value_when_it_is_published(store: RedisStateStore) -> None:
    gate = asyncio.Event()

    async def handler(ctx: TaskContext) -> None:
        await ctx.publish_value("n", 1)
        await gate.wait()
        await ctx.publish_value("n", 2)

    seen: list[int] = []
    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)

        async def watch() -> None:
            async for entry in client.watch(SESSION, task_id):
                told = entry.value.update_type is UpdateType.NOTIFICATION
                seen.extend([entry.value.content["value"]] if told else [])

        watching = asyncio.create_task(watch())
        await eventually(lambda: seen == [1], "the first value is seen")
        gate.set()
        await watching
    assert seen == [1, 2]
