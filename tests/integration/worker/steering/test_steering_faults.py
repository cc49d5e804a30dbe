"""A fault stops a run from hearing its steering for a while only, and stands in the log."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import SteeringValidationError
from redis_state.models import SteeringEvent, SteeringEventType, TaskStatus
from redis_state.settings import make_settings
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from tests.support.processes.pools import SESSION, pool
from tests.support.servers.faults import run_server, short_directory
from tests.support.tasks.runs import TASK, make, run_once
from tests.support.timing import LONG_S

HEARD = SteeringEventType.USER_MESSAGE


def following() -> list[asyncio.Task[object]]:
    """Give the asyncio tasks of this loop that hear steering."""
    named = ((task, getattr(task.get_coro(), "__qualname__", "")) for task in asyncio.all_tasks())
    return [task for task, name in named if name == "SteeringFollower.follow"]


async def listen(ctx: TaskContext) -> list[str]:
    await ctx.progress("listens")
    return [str(event.payload.get("text")) for event in await ctx.inbox.wait()]


@pytest.mark.parametrize("days", [0, 6, 8])
async def test_what_was_said_before_a_task_counts_if_no_earlier_task_of_its_id_can_have_ended_since(
    store: RedisStateStore, days: int
) -> None:
    """The record of an earlier one is kept for `finished_task_ttl`, which is seven days."""
    said = {"text": "go on"}
    await store.save_steering(
        SteeringEvent(session_id=SESSION, task_id=TASK, event_type=HEARD, payload=said)
    )
    await make(store)
    task = store.tasks.keys(SESSION, TASK).task
    made_us = int(await store.transport.commands.hget(task, "order") or 0)
    later = made_us + days * 86_400_000_000
    await store.transport.sender.send("HSET", task, "order", later, repeatable=True)

    async def take(ctx: TaskContext) -> list[str]:
        return [str(event.payload.get("text")) for event in ctx.inbox.take()]

    assert (await run_once(store, take)).result == (["go on"] if days < 7 else [])


async def test_a_cleared_task_leaves_its_steering_to_no_later_one(store: RedisStateStore) -> None:
    await make(store)
    cancel = SteeringEvent(
        session_id=SESSION, task_id=TASK, event_type=SteeringEventType.CANCEL, payload={}
    )
    await store.save_steering(cancel)
    await store.tasks.clear(SESSION, TASK)
    # What it has published is trimmed away by others.
    await store.updates.clear(SESSION)
    await make(store)

    async def go_on(_: TaskContext) -> str:
        return "done"

    assert (await run_once(store, go_on)).result == "done"


@pytest.mark.role("any", why="configures a server of its own")
async def test_steering_is_heard_again_once_the_server_is_as_the_settings_want_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        short_directory() as directory,
        run_server(directory, "--appendonly", "yes", "--appendfsync", "always") as url,
    ):
        plain = make_settings(url, call_timeout_s=LONG_S)
        durable = make_settings(url, guarantee="durable", call_timeout_s=LONG_S)
        async with (
            RedisStateStore(plain) as operator,
            RedisStateStore(durable) as store,
            TaskClient(operator) as client,
        ):
            ask = operator.transport.sender.send
            await make(store)
            running = asyncio.create_task(run_once(store, listen))
            await eventually(following, "the run follows its steering")
            await ask("CONFIG", "SET", "appendfsync", "everysec", repeatable=True)
            for kind in ("normal", "pubsub"):
                await ask("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes", repeatable=True)

            def is_told() -> bool:
                return "cannot promise guarantee='durable'" in caplog.text

            await eventually(is_told, "the run says that it hears nothing", timeout_s=60)
            await ask("CONFIG", "SET", "appendfsync", "always", repeatable=True)
            await client.steer(SESSION, TASK, HEARD, {"text": "go on"})
            async with asyncio.timeout(60):
                assert (await running).result == ["go on"]


async def test_a_task_is_cancelled_although_something_has_stopped_its_follower(
    store: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    stopped: list[asyncio.Task[object]] = []

    async def careless(ctx: TaskContext) -> None:
        await ctx.progress("listens")
        stopped.extend(following())
        for task in stopped:
            task.cancel()
        await asyncio.wait(stopped)
        await ctx.inbox.wait()

    async with pool(store, {"careless": careless}) as client:
        task = await client.submit("careless", session_id=SESSION)
        await eventually(lambda: stopped and stopped[0].cancelled(), "the follower is cancelled")
        assert await client.cancel(SESSION, task)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.status is TaskStatus.CANCELLED
    assert "was not followed any more" in caplog.text


async def test_a_priority_that_no_server_takes_is_refused_and_ends_no_process(
    store: RedisStateStore,
) -> None:
    async with TaskClient(store) as client:
        await make(store)
        with pytest.raises(SteeringValidationError, match="2048 bits"):
            # Its text has more digits than Python writes by default.
            await client.steer(SESSION, TASK, SteeringEventType.PRIORITIZE, {"priority": 10**5000})
        state = await client.get(SESSION, TASK)
        assert state is not None
        assert state.priority == 0


async def test_a_priority_that_is_no_number_is_passed_over(store: RedisStateStore) -> None:
    """The rules are a client's: what another writer stores reaches the run as it is."""
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: unheard.append(said))

    async def prioritize(value: object) -> None:
        kind = SteeringEventType.PRIORITIZE
        event = SteeringEvent(
            session_id=SESSION, task_id=TASK, event_type=kind, payload={"priority": value}
        )
        await store.save_steering(event)

    await make(store)
    running = asyncio.create_task(run_once(store, listen))
    await eventually(following, "the run follows its steering")
    for value in (True, None, "9", 7):
        await prioritize(value)
    async with TaskClient(store) as client:
        await client.steer(SESSION, TASK, HEARD, {"text": "go on"})
    async with asyncio.timeout(60):
        ended = await running
    assert (ended.result, ended.priority) == (["go on"], 7)
    gc.collect()
    assert not unheard


class Stopped(BaseException):
    """Ends an asyncio task, as no Exception does."""


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (RuntimeError, "is not heard: RuntimeError"),
        (Stopped, "was not followed any more: Stopped"),
    ],
)
async def test_steering_is_heard_again_after_any_fault_which_is_told_by_its_type(
    store: RedisStateStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fault: type[BaseException],
    line: str,
) -> None:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: unheard.append(said))
    watch, faults = store.steering.watch, [fault("secret")]

    async def odd(*args: Any, **options: Any) -> AsyncGenerator[Any]:
        if faults:
            raise faults.pop()
        async with aclosing(watch(*args, **options)) as entries:
            async for entry in entries:
                yield entry

    monkeypatch.setattr(store.steering, "watch", odd)
    await make(store)
    running = asyncio.create_task(run_once(store, listen))
    await eventually(lambda: line in caplog.text, "the fault is in the log")
    async with TaskClient(store) as client:
        await client.steer(SESSION, TASK, HEARD, {"text": "go on"})
    async with asyncio.timeout(60):
        assert (await running).result == ["go on"]
    gc.collect()
    assert not unheard
