"""Steering of a task that waits for longer than steering lives."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import SteeringEvent, SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from redis_state.worker.tasks.move_parts import watch_entry
from tests.support.processes.pools import SESSION, becomes, open_token, pool
from tests.support.scripts.replies import clock_passes
from tests.support.tasks.crash_states import make_due

MESSAGE = SteeringEventType.USER_MESSAGE
DROPPED = "was dropped"


async def ask(ctx: TaskContext) -> list[Any]:
    """Wait for an approval, then return what was said meanwhile."""
    await ctx.approval("go on?")
    return [event.payload["text"] for event in ctx.inbox.take()]


def said(text: str) -> SteeringEvent:
    return SteeringEvent(
        session_id=SESSION, task_id="another", event_type=MESSAGE, payload={"text": text}
    )


async def _decide(store: RedisStateStore, client: Any, task: str) -> list[Any]:
    await client.approve(await open_token(store, task), actor="ann")
    ended = await client.wait(SESSION, task, timeout_s=60)
    assert ended.status is TaskStatus.COMPLETE
    result: list[Any] = ended.result
    return result


async def test_what_a_waiting_task_was_sent_lives_as_long_as_the_task(
    store: RedisStateStore, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    commands, log = store.transport.commands, store.base.keys.steering(SESSION)
    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        await client.steer(SESSION, task, MESSAGE, {"text": "on day 1"})
        record = store.base.keys.task(SESSION, task)
        for key in (log.rows, log.ids):
            assert await commands.pttl(key) >= await commands.pttl(record)
        # Its time is over: the next append drops what is too old.
        sent = await store.steering_cursor(SESSION)
        assert sent is not None
        await clock_passes(store.base.scripts, int(sent.split("-")[1]) + 1)
        short = settings.model_copy(update={"steering_ttl": timedelta(milliseconds=1)})
        async with RedisStateStore(short) as later:
            await later.save_steering(said("on day 20"))
        assert await _decide(store, client, task) == ["on day 1"]
    # The task is over, and what it was sent need not live longer.
    assert await commands.pttl(log.rows) <= 1.5 * store.steering.bounds.ttl_ms
    assert DROPPED not in caplog.text


@pytest.mark.parametrize("handler", ["parent", "ask"])
async def test_what_a_task_was_sent_before_it_waits_lives_as_long_as_the_task(
    store: RedisStateStore, handler: str
) -> None:
    async def parent(ctx: TaskContext) -> list[Any]:
        await ctx.join(await ctx.spawn("ask"))
        return [event.payload["text"] for event in ctx.inbox.take()]

    commands, log = store.transport.commands, store.base.keys.steering(SESSION)
    async with pool(store, {"parent": parent, "ask": ask}) as client:
        task = await client.submit(handler, session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        children = await client.children(SESSION, task)
        last = children[0].task_id if children else task
        await becomes(client, last, TaskStatus.PAUSED)
        await client.steer(SESSION, task, MESSAGE, {"text": "on day 1"})
        record = store.base.keys.task(SESSION, task)
        # Much later: only the wait for a pause is in the record from its beginning.
        for key in (log.rows, log.ids, *([record] if children else [])):
            await store.transport.sender.send("PEXPIRE", key, 60_000, repeatable=True)
        await make_due(store, watch_entry(SESSION, task))

        async def extended() -> bool:
            return int(await commands.pttl(record)) > 60_000

        await eventually(extended, "a sweeper has inspected the task")
        for key in (log.rows, log.ids):

            async def held(key: str = key) -> bool:
                return int(await commands.pttl(key)) >= int(await commands.pttl(record))

            await eventually(held, "what the task was sent lives as long")
        await client.approve(await open_token(store, last), actor="ann")
        assert (await client.wait(SESSION, task, timeout_s=60)).result == ["on day 1"]


@pytest.mark.parametrize("others", [3, 20])
async def test_a_run_warns_of_steering_that_was_dropped(
    settings: Settings, caplog: pytest.LogCaptureFixture, others: int
) -> None:
    few = settings.model_copy(update={"max_steering_events_per_session": 4})
    async with RedisStateStore(few) as store, pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        await client.steer(SESSION, task, MESSAGE, {"text": "one of many"})
        for number in range(others):
            await store.save_steering(said(f"{number}"))
        kept = others < 4
        assert await _decide(store, client, task) == (["one of many"] if kept else [])
    assert (DROPPED in caplog.text) == (not kept)


async def test_a_new_task_of_a_session_that_has_lost_steering_is_not_warned(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    few = settings.model_copy(update={"max_steering_events_per_session": 4})
    async with RedisStateStore(few) as store, pool(store, {"ask": ask}) as client:
        for number in range(20):
            await store.save_steering(said(f"{number}"))
        task = await client.submit("ask", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        await client.steer(SESSION, task, MESSAGE, {"text": "hello"})
        assert await _decide(store, client, task) == ["hello"]
    assert DROPPED not in caplog.text
