"""Cancelling tasks: at a checkpoint, hard, in the queue, at a pause, and too late."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import (
    SteeringEvent,
    SteeringEventType,
    TaskStatus,
)
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from tests.support.processes.pools import (
    SESSION,
    agent,
    becomes,
    client_of,
    pool,
    serving,
    steered_before,
)
from tests.support.tasks.handlers import SOON_S, answer, forever, has_begun, is_idle
from tests.support.timing import LONG_S


async def test_cancel_stops_a_task_at_its_next_checkpoint(store: RedisStateStore) -> None:
    cleaned: list[str] = []
    begun = asyncio.Event()

    async def loop(ctx: TaskContext) -> None:
        begun.set()
        try:
            while True:
                await ctx.checkpoint()
                await asyncio.sleep(0.001)
        except Exception:  # noqa: BLE001 - a handler that goes on after any error
            cleaned.append("wrongly")
        finally:
            cleaned.append("finally")

    async with pool(store, {"loop": loop}, lease_s=SOON_S) as client:
        task = await client.submit("loop", session_id=SESSION)
        await begun.wait()
        assert await client.cancel(SESSION, task, reason="enough")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert (ended.status, ended.error) == (TaskStatus.CANCELLED, "enough")
        # The caller who cancels has ended the task; its handler learns of it a moment later.
        await eventually(lambda: cleaned, "the handler is out of its loop")
        assert cleaned == ["finally"]
        await eventually(lambda: is_idle(store), "the watch list is empty")


async def test_hard_cancel_reaches_a_task_that_never_looks_long_before_its_heartbeat(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.worker.client.client._CHECK_EVERY_S", LONG_S)
    async with pool(store, {"forever": forever}, lease_s=LONG_S) as client:
        for _ in range(5):
            task = await client.submit("forever", session_id=SESSION)
            await eventually(partial(has_begun, store, task), "it runs")
            assert await client.cancel(SESSION, task, hard=True, reason="now")
            ended = await client.wait(SESSION, task, timeout_s=60)
            assert (ended.status, ended.error) == (TaskStatus.CANCELLED, "now")


async def test_a_handler_that_swallows_a_hard_cancel_is_cancelled_all_the_same(
    store: RedisStateStore,
) -> None:
    async def swallow(ctx: TaskContext) -> str:
        with suppress(asyncio.CancelledError):
            await forever(ctx)
        return "a result that nobody wants"

    async with pool(store, {"swallow": swallow}) as client:
        task = await client.submit("swallow", session_id=SESSION)
        await eventually(lambda: has_begun(store, task), "it runs")
        await client.cancel(SESSION, task, hard=True)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert (ended.status, ended.result) == (TaskStatus.CANCELLED, None)


async def test_cancel_in_a_task_group_cancels_the_task(store: RedisStateStore) -> None:
    async def group(ctx: TaskContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_look(ctx))

    async with pool(store, {"group": group}, lease_s=SOON_S) as client:
        task = await client.submit("group", session_id=SESSION)
        await becomes(client, task, TaskStatus.RUNNING)
        await client.cancel(SESSION, task, reason="why not")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert (ended.status, ended.error) == (TaskStatus.CANCELLED, "why not")


async def _look(ctx: TaskContext) -> None:
    while True:
        await ctx.inbox.wait(0.01)


async def test_a_queued_task_is_cancelled_at_once_and_never_runs(store: RedisStateStore) -> None:
    ran: list[str] = []

    async def note(ctx: TaskContext) -> None:
        ran.append(ctx.task.task_id)

    async with client_of(store) as client:
        one = await client.submit("note", session_id=SESSION)
        two = await client.submit("note", session_id=SESSION)
        assert await client.cancel(SESSION, one)
        assert (await client.wait(SESSION, one)).status is TaskStatus.CANCELLED
        async with serving(agent(store.settings, {"note": note})):
            await client.wait(SESSION, two, timeout_s=60)
            await eventually(lambda: is_idle(store), "the cancelled one's job is dropped")
        assert ran == [two]


async def test_a_cancel_that_came_before_the_task_ends_it_at_its_start(
    store: RedisStateStore,
) -> None:
    async with pool(store, {"forever": forever}) as client:
        await steered_before(store, "early", SteeringEventType.CANCEL, hard=True)
        task = await client.submit("forever", session_id=SESSION, task_id="early")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.status is TaskStatus.CANCELLED
        assert not await has_begun(store, task)


@pytest.mark.parametrize("how", ["hard", "soft"])
async def test_a_cancel_that_meets_a_pause_is_not_lost(store: RedisStateStore, how: str) -> None:
    async def pausing(ctx: TaskContext) -> None:
        event = SteeringEvent(
            session_id=SESSION,
            task_id=ctx.task.task_id,
            event_type=SteeringEventType.CANCEL,
            payload={"hard": how == "hard"},
        )
        # Written by a process that then finds the task running, and so leaves it to the worker.
        telling = asyncio.create_task(store.save_steering(event))
        await asyncio.sleep(0)
        try:
            await ctx.pause()
        finally:
            telling.cancel()

    async with pool(store, {"pausing": pausing}, lease_s=SOON_S) as client:
        tasks = [await client.submit("pausing", session_id=SESSION) for _ in range(20)]
        for task in tasks:
            ended = await client.wait(SESSION, task, timeout_s=60)
            assert ended.status is TaskStatus.CANCELLED
        await eventually(lambda: is_idle(store), "nothing is left")


async def test_cancelling_what_is_over_does_nothing(store: RedisStateStore) -> None:
    async with pool(store, {"answer": answer}) as client:
        task = await client.submit("answer", session_id=SESSION)
        before = await client.wait(SESSION, task, timeout_s=60)
        assert not await client.cancel(SESSION, task)
        assert not await client.cancel(SESSION, task, hard=True)
        assert not await client.cancel(SESSION, "never was")
        assert await client.get(SESSION, task) == before
        assert await store.list_steering(SESSION) == []
