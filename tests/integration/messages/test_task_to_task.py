"""Tasks that talk to each other, across sessions: once, whatever the runs of either."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import (
    InvalidField,
    InvalidTransition,
    RedisStateStore,
    RequestRefused,
    TaskUnknown,
)
from redis_state.models import TaskStatus
from redis_state.worker import TaskContext
from tests.support.processes.pools import SESSION, client_of, pool
from tests.support.tasks.runs import TASK, begin_again, make, run_once

OTHER = "other {session}"


async def test_a_task_sends_once_however_often_it_runs(store: RedisStateStore) -> None:
    async def collect(ctx: TaskContext) -> list[Any]:
        found = [await ctx.receive_message("item", hold_s=0.05) for _ in range(6)]
        assert {one.sender for one in found} == {f"task:{OTHER}/sender"}
        return [one.payload for one in found]

    async def sender(ctx: TaskContext) -> None:
        for number in range(3):
            for twice in range(2):
                # Of equal payloads each is one.
                await ctx.send(SESSION, ctx.input, "item", [number, twice % 1])
            if ctx.attempt <= number:
                begin_again()

    async with pool(store, {"collect": collect, "sender": sender}) as client:
        collector = await client.submit("collect", session_id=SESSION)
        await client.submit("sender", collector, session_id=OTHER, task_id="sender")
        found = await client.result(SESSION, collector, timeout_s=60)
        await client.result(OTHER, "sender", timeout_s=60)
    assert found == [[number, 0] for number in (0, 0, 1, 1, 2, 2)]


async def test_a_crash_between_the_message_and_its_record_sends_it_once(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sender(ctx: TaskContext) -> str:
        if ctx.attempt == 1:
            note = type(store.base.scripts).record_step

            def die(*_: Any, **__: Any) -> None:
                monkeypatch.setattr(type(store.base.scripts), "record_step", note)
                begin_again()

            monkeypatch.setattr(type(store.base.scripts), "record_step", die)
        return str(await ctx.send(OTHER, "receiver", "item", ctx.attempt))

    async with client_of(store) as client:
        await client.submit("receive", session_id=OTHER, task_id="receiver")
        await make(store)
        assert (await run_once(store, sender)).status is TaskStatus.PENDING
        sent = await run_once(store, sender)
        assert sent.status is TaskStatus.COMPLETE
        journal = store.base.keys.journal(OTHER, "receiver")
        # One message waits: what the first run has sent.
        assert (await store.transport.commands.hget(journal, "mail") or b"").startswith(b"1 ")
        box = await store.transport.commands.hget(journal, "mail:1:signal:item")
        assert box is not None
        assert box.endswith(b",1]")
        assert str(sent.result).encode() in box


async def test_a_later_task_of_the_senders_id_sends_its_own(store: RedisStateStore) -> None:
    async def sender(ctx: TaskContext) -> str:
        return str(await ctx.send(OTHER, "receiver", "item"))

    async with client_of(store) as client:
        await client.submit("receive", session_id=OTHER, task_id="receiver")
        ids: set[str] = set()
        for _ in range(2):
            await store.tasks.clear(SESSION, TASK)
            await make(store)
            ids.add(str((await run_once(store, sender)).result))
    assert len(ids) == 2


async def test_a_task_asks_another_and_its_reply_is_recorded(store: RedisStateStore) -> None:
    async def answer(ctx: TaskContext) -> int:
        for _ in range(2):
            request = await ctx.receive_request("price", type=str, hold_s=0.05)
            if request.payload == "bad":
                await request.refuse("unknown article")
            else:
                await request.reply({"price": 10})
        return 2

    async def buy(ctx: TaskContext) -> list[Any]:
        price = await ctx.request(OTHER, "shop", "price", "pen", type=dict[str, int])
        if ctx.attempt == 1:
            begin_again()
        try:
            await ctx.request(OTHER, "shop", "price", "bad")
        except RequestRefused as error:
            return [price, error.reason]
        raise AssertionError

    async with pool(store, {"answer": answer, "buy": buy}) as client:
        await client.submit("answer", session_id=OTHER, task_id="shop")
        task_id = await client.submit("buy", session_id=SESSION)
        found = await client.result(SESSION, task_id, timeout_s=60)
        assert found == [{"price": 10}, "unknown article"]
        assert await client.result(OTHER, "shop", timeout_s=60) == 2


async def test_a_message_to_nobody_is_an_error_that_the_handler_may_handle(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> list[str]:
        found: list[str] = []
        calls = (
            lambda: ctx.send(OTHER, "no such task", "a"),
            lambda: ctx.request(OTHER, "no such task", "a"),
            lambda: ctx.send(OTHER, "ended", "a"),
            lambda: ctx.send(OTHER, "ended", ""),
            lambda: ctx.send(OTHER, "ended", "a", "x", type=int),
        )
        for call in calls:
            try:
                await call()
            except (TaskUnknown, InvalidTransition, InvalidField) as error:
                found.append(type(error).__name__)
        return found

    async def nothing(_: TaskContext) -> None:
        return None

    async with pool(store, {"h": handler, "nothing": nothing}) as client:
        await client.submit("nothing", session_id=OTHER, task_id="ended")
        await client.result(OTHER, "ended", timeout_s=60)
        task_id = await client.submit("h", session_id=SESSION)
        assert await client.result(SESSION, task_id, timeout_s=60) == [
            "TaskUnknown",
            "TaskUnknown",
            "InvalidTransition",
            "InvalidField",
            "InvalidField",
        ]


async def test_two_tasks_play_ping_pong(store: RedisStateStore) -> None:
    rounds = 20

    async def play(ctx: TaskContext) -> list[int]:
        session_id, other, begins = ctx.input
        found: list[int] = []
        ball = 0
        if begins:
            await ctx.send(session_id, other, "ball", ball)
        while len(found) < rounds:
            ball = await ctx.receive("ball", type=int, hold_s=0)
            found.append(ball)
            if not (begins and len(found) == rounds):
                await ctx.send(session_id, other, "ball", ball + 1)
        return found

    async with pool(store, {"play": play}) as client:
        await client.submit("play", [SESSION, "b", False], session_id=OTHER, task_id="a")
        await client.submit("play", [OTHER, "a", True], session_id=SESSION, task_id="b")
        results = await asyncio.gather(
            client.result(OTHER, "a", timeout_s=60), client.result(SESSION, "b", timeout_s=60)
        )
    assert list(results) == [list(range(0, 2 * rounds, 2)), list(range(1, 2 * rounds, 2))]
