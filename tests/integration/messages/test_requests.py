"""Requests to a running task: one reply each, also after a death, and each failure by its name."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import (
    InvalidField,
    InvalidMessage,
    NoReceiver,
    RedisStateStore,
    RequestRefused,
    RequestTimeout,
    RequestUnanswered,
    TaskUnknown,
)
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.tasks.messaging.payloads import MAX_PAYLOAD_BYTES
from tests.support.processes.pools import SESSION, becomes, client_of, pool
from tests.support.servers.changes.rollback import rolling_back
from tests.support.tasks.runs import TASK, begin_again, make, run_once


class Plan(BaseModel):
    steps: int


async def test_a_request_is_answered_by_a_task_that_waits_without_a_worker(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> int:
        total = 0
        for _ in range(3):
            request = await ctx.receive_request("add", type=int, hold_s=0)
            total += request.payload
            await request.reply({"total": total, "of": request.sender})
        return total

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)
        for number in (1, 2, 3):
            await becomes(client, task_id, TaskStatus.PAUSED)
            reply = await client.request(SESSION, task_id, "add", number, sender=f"u{number}")
            assert reply == {"total": number * (number + 1) // 2, "of": f"u{number}"}
        assert await client.result(SESSION, task_id, timeout_s=60) == 6


async def test_many_callers_get_each_their_own_reply(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> None:
        for _ in range(40):
            request = await ctx.receive_request("double", type=int)
            await request.reply(2 * request.payload)

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)
        asking = (client.request(SESSION, task_id, "double", number) for number in range(40))
        assert await asyncio.gather(*asking) == [2 * number for number in range(40)]


async def test_the_reply_stands_for_the_same_key_and_for_a_later_run(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> None:
        request = await ctx.receive_request("who")
        await request.reply(ctx.attempt)
        await request.reply("a second reply")
        await request.refuse("too late")
        if ctx.attempt < 3:
            begin_again()

    await make(store)
    async with client_of(store) as client:

        async def ask() -> Any:
            return await client.request(SESSION, TASK, "who", idempotency_key="k", timeout_s=60)

        first = asyncio.create_task(ask())
        states = [await run_once(store, handler) for _ in range(3)]
        assert states[-1].status is TaskStatus.COMPLETE
        assert await first == 1
        # The task is over, and its replies are kept with it.
        assert await ask() == 1
        assert await client.request(SESSION, TASK, "who", idempotency_key="k", type=int) == 1
        with pytest.raises(InvalidMessage):
            await client.request(SESSION, TASK, "who", idempotency_key="k", type=list[int])
        with pytest.raises(RequestUnanswered, match="COMPLETE"):
            await client.request(SESSION, TASK, "who", idempotency_key="another")


async def test_a_run_that_dies_before_its_reply_gets_the_request_again(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> None:
        request = await ctx.receive_request("who")
        if ctx.attempt == 1:
            begin_again()
        await request.reply([ctx.attempt, request.payload])

    await make(store)
    async with client_of(store) as client:
        asking = asyncio.create_task(client.request(SESSION, TASK, "who", "x", timeout_s=60))
        await eventually(lambda: _waits(store), "the request is there")
        await run_once(store, handler)
        await run_once(store, handler)
        assert await asking == [2, "x"]


async def _waits(store: RedisStateStore) -> bool:
    journal = store.base.keys.journal(SESSION, TASK)
    return bool(await store.transport.commands.hget(journal, "mail"))


async def test_each_way_to_get_no_reply_has_its_error(store: RedisStateStore) -> None:
    gate = asyncio.Event()

    async def handler(ctx: TaskContext) -> None:
        first = await ctx.receive_request("plan")
        await first.refuse("not now")
        await ctx.receive_request("plan")  # it does not reply
        await gate.wait()
        if ctx.input == "fails":
            raise ValueError

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", "fails", session_id=SESSION)
        with pytest.raises(RequestRefused) as refused:
            await client.request(SESSION, task_id, "plan", "secret")
        assert (refused.value.reason, "not now" in str(refused.value)) == ("not now", True)
        assert "secret" not in str(refused.value)
        with pytest.raises(RequestTimeout) as late:
            await client.request(SESSION, task_id, "plan", timeout_s=0.2)
        assert not isinstance(late.value, NoReceiver)
        assert isinstance(late.value, TimeoutError)
        with pytest.raises(NoReceiver) as unheard:
            await client.request(SESSION, task_id, "unknown name", timeout_s=0.2)
        asking = [
            asyncio.create_task(
                client.request(SESSION, task_id, name, idempotency_key=key, timeout_s=60)
            )
            for name, key in (
                ("plan", late.value.request_id),
                ("unknown name", unheard.value.request_id),
            )
        ]
        gate.set()
        for outcome in await asyncio.gather(*asking, return_exceptions=True):
            assert isinstance(outcome, RequestUnanswered)
            assert outcome.status == "FAILED"
        with pytest.raises(RequestUnanswered):
            await client.request(SESSION, task_id, "plan")
        with pytest.raises(TaskUnknown):
            await client.request(SESSION, "no such task", "plan")
        for bad in (-1, "1"):
            with pytest.raises(InvalidField, match="timeout_s"):
                await client.request(SESSION, task_id, "plan", timeout_s=bad)  # type: ignore[arg-type]


async def test_a_request_of_a_wrong_type_is_refused_and_the_handler_gets_the_next(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> list[int]:
        found: list[int] = []
        for _ in range(2):
            request = await ctx.receive_request("plan", type=Plan)
            found.append(request.payload.steps)
            await request.reply(request.payload)
        if ctx.attempt == 1:
            begin_again()
        return found

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)
        for steps in (1, 2):
            with pytest.raises(RequestRefused) as refused:
                await client.request(SESSION, task_id, "plan", {"steps": "secret"})
            assert refused.value.reason == "invalid payload: steps: int_parsing"
            assert await client.request(
                SESSION, task_id, "plan", Plan(steps=steps), type=Plan
            ) == Plan(steps=steps)
        assert await client.result(SESSION, task_id, timeout_s=60) == [1, 2]


async def test_a_cancelled_task_tells_who_waits_for_its_reply(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> None:
        await ctx.receive_request("never asked for", timeout=timedelta(hours=1), hold_s=0)

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)
        asking = asyncio.create_task(client.request(SESSION, task_id, "x", timeout_s=60))
        await becomes(client, task_id, TaskStatus.PAUSED)
        await client.cancel(SESSION, task_id)
        with pytest.raises(RequestUnanswered, match="CANCELLED"):
            await asking


async def test_a_signal_and_a_request_of_one_name_and_one_key_are_two(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> Any:
        request = await ctx.receive_request("a")
        signal = await ctx.receive("a")
        await request.reply(signal)

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)
        await client.signal(SESSION, task_id, "a", "signal", idempotency_key="k")
        assert await client.request(SESSION, task_id, "a", idempotency_key="k") == "signal"


async def test_a_reply_is_bounded_where_it_is_given(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> str:
        request = await ctx.receive_request("a")
        with pytest.raises(InvalidField, match="value"):
            await request.reply("x" * MAX_PAYLOAD_BYTES)
        await request.reply("short")
        return "replied"

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)
        assert await client.request(SESSION, task_id, "a") == "short"


async def test_a_reply_that_the_server_lost_is_given_again_by_the_next_run() -> None:
    async with (
        rolling_back() as server,
        RedisStateStore.from_url(server.url) as store,
        TaskClient(store) as client,
    ):

        async def handler(ctx: TaskContext) -> None:
            request = await ctx.receive_request("a")
            if ctx.attempt == 1:
                await server.mark()
            await request.reply(f"run {ctx.attempt}")
            if ctx.attempt == 1:
                await server.go_back()
                await ctx.progress("on top of a hole")

        await make(store)
        asking = asyncio.create_task(
            client.request(SESSION, TASK, "a", idempotency_key="k", timeout_s=60)
        )
        await eventually(lambda: _waits(store), "the request is there")
        for _ in range(2):
            await run_once(store, handler)
        # The caller may have had the first reply; who asks again gets what the server has.
        assert await asking in ("run 1", "run 2")
        assert await client.request(SESSION, TASK, "a", idempotency_key="k") == "run 2"
