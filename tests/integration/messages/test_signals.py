"""Signals to a task: each delivered once, in order, at the same place of every run."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import (
    InvalidField,
    InvalidMessage,
    InvalidTransition,
    KeyReused,
    LimitReached,
    ReceiveTimeout,
    RedisStateStore,
    TaskUnknown,
)
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import StepPolicy, TaskClient, TaskContext
from redis_state.worker.recovery.sweeper import Sweeper
from redis_state.worker.tasks.messaging.messages import MAX_WAITING, MAX_WAITING_BYTES
from redis_state.worker.tasks.messaging.payloads import MAX_PAYLOAD_BYTES
from tests.support.processes.pools import SESSION, becomes, client_of, pool, queued, statuses
from tests.support.servers.changes.rollback import rolling_back
from tests.support.tasks.runs import TASK, begin_again, make, run_once, run_to_the_end

NOW = timedelta()
ODD = ["a:b#1", "{x}", "\ud800", "\N{GRINNING FACE}", "a\0b\n", "é" * 128, "signal:x", "0 0"]


class Review(BaseModel):
    score: int
    note: str = ""


async def test_signals_wait_in_order_and_a_later_run_gets_them_at_the_same_places(
    store: RedisStateStore,
) -> None:
    found: list[list[Any]] = []

    async def handler(ctx: TaskContext) -> list[Any]:
        mine: list[Any] = []
        found.append(mine)
        mine.append(await ctx.receive("a"))
        mine.append(await ctx.receive("b"))
        mine.append(await ctx.receive("a"))
        if len(found) < 3:
            begin_again()
        mine.append(await ctx.receive("a"))
        return mine

    await make(store)
    async with client_of(store) as client:
        for name, payload in [("a", 1), ("a", {"two": 2}), ("b", None), ("a", [3])]:
            await client.signal(SESSION, TASK, name, payload)
    states = [await run_once(store, handler) for _ in range(3)]
    assert states[-1].result == [1, None, {"two": 2}, [3]]
    assert found == [[1, None, {"two": 2}]] * 2 + [[1, None, {"two": 2}, [3]]]


async def test_one_key_is_one_signal_also_after_the_tasks_end(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> list[Any]:
        return [await ctx.receive("a"), await ctx.receive("b"), await ctx.receive("a")]

    await make(store)
    async with client_of(store) as client:
        for _ in range(3):
            sent = [
                await client.signal(SESSION, TASK, name, {"n": 0, "m": 1}, idempotency_key="k")
                for name in ("a", "b")
            ]
            assert sent == ["k", "k"]
        with pytest.raises(KeyReused, match="signal"):
            await client.signal(SESSION, TASK, "a", 1, idempotency_key="k")
        await client.signal(SESSION, TASK, "a", "other")
        assert (await run_once(store, handler)).result == [{"n": 0, "m": 1}] * 2 + ["other"]
        again = await client.signal(SESSION, TASK, "a", {"m": 1, "n": 0}, idempotency_key="k")
        assert again == "k"
        with pytest.raises(KeyReused):
            await client.signal(SESSION, TASK, "a", 9, idempotency_key="k")
        with pytest.raises(InvalidTransition):
            await client.signal(SESSION, TASK, "a", 9, idempotency_key="new")
        with pytest.raises(TaskUnknown):
            await client.signal(SESSION, "no such task", "a")


async def test_a_running_handler_hears_a_signal_and_keeps_its_worker(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> list[Any]:
        await ctx.progress("ready")
        return [await ctx.receive("n", hold_s=60) for _ in range(20)]

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)
        for number in range(20):
            await client.signal(SESSION, task_id, "n", number)
        assert await client.result(SESSION, task_id, timeout_s=60) == list(range(20))
        assert await statuses(store, task_id) == ["PENDING", "RUNNING", "COMPLETE"]


async def test_a_task_that_waits_frees_its_worker_and_a_signal_wakes_it(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> list[Any]:
        return [await ctx.receive("n", hold_s=0) for _ in range(3)]

    async def other(_: TaskContext) -> str:
        return "done"

    async with pool(store, {"h": handler, "other": other}, max_tasks=1) as client:
        task_id = await client.submit("h", session_id=SESSION)
        for number in range(3):
            await becomes(client, task_id, TaskStatus.PAUSED)
            # Its slot is free.
            idle = await client.submit("other", session_id=SESSION)
            assert await client.result(SESSION, idle, timeout_s=60) == "done"
            await client.signal(SESSION, task_id, "other name", "waits in its box")
            assert (await statuses(store, task_id))[-1] == "PAUSED"
            await client.signal(SESSION, task_id, "n", number)
            again = partial(_runs, store, task_id, number + 2)
            await eventually(again, "it runs again")
        assert await client.result(SESSION, task_id, timeout_s=60) == [0, 1, 2]


async def _runs(store: RedisStateStore, task_id: str, count: int) -> bool:
    return (await statuses(store, task_id)).count("RUNNING") >= count


async def test_a_timeout_is_recorded_and_counts_over_all_runs(store: RedisStateStore) -> None:
    caught: list[str] = []

    async def handler(ctx: TaskContext) -> Any:
        try:
            await ctx.receive("late", timeout=timedelta(milliseconds=200), hold_s=0)
        except ReceiveTimeout as error:
            caught.append(error.name)
        if len(caught) == 1:
            begin_again()
        return await ctx.receive("late", timeout=NOW)

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)
        await eventually(lambda: len(caught) >= 1, "the timeout is caught")
        await client.signal(SESSION, task_id, "late", "after the timeout")
        assert await client.result(SESSION, task_id, timeout_s=60) == "after the timeout"
    assert caught == ["late", "late"]


async def test_a_wait_while_the_worker_is_kept_times_out_too(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> str:
        with pytest.raises(ReceiveTimeout):
            await ctx.receive("never", timeout=timedelta(milliseconds=50), hold_s=60)
        return "timed out"

    assert (await run_to_the_end(store, handler)).result == "timed out"


async def test_a_bad_payload_is_an_error_where_it_is_known_to_be_bad_and_is_not_lost(
    store: RedisStateStore,
) -> None:
    seen: list[Any] = []

    async def handler(ctx: TaskContext) -> Any:
        try:
            await ctx.receive("review", type=Review)
        except InvalidMessage as error:
            seen.append([str(error), error.payload])
        if len(seen) == 1:
            begin_again()
        review = await ctx.receive("review", type=Review)
        assert isinstance(review, Review)
        return review.score

    await make(store)
    async with client_of(store) as client:
        with pytest.raises(InvalidField, match=r"payload: score: int_parsing") as refused:
            await client.signal(SESSION, TASK, "review", {"score": "secret"}, type=Review)
        assert "secret" not in str(refused.value)
        await client.signal(SESSION, TASK, "review", {"score": "secret"})
        await client.signal(SESSION, TASK, "review", Review(score=7))
    await run_once(store, handler)
    assert (await run_once(store, handler)).result == 7
    text = "'review' is not of the type that is needed: score: int_parsing"
    assert seen == [[text, {"score": "secret"}]] * 2


@pytest.mark.parametrize("name", ODD)
async def test_any_text_is_a_name_a_key_and_a_payload(store: RedisStateStore, name: str) -> None:
    async def handler(ctx: TaskContext) -> Any:
        message = await ctx.receive_message(name, hold_s=0)
        return [message.payload, message.message_id, message.sender]

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=name, task_id=name)

        async def paused() -> bool:
            state = await client.get(name, task_id)
            return state is not None and state.status is TaskStatus.PAUSED

        await eventually(paused, "it waits")
        await client.signal(name, task_id, name, {name: name}, idempotency_key=name, sender=name)
        assert await client.result(name, task_id, timeout_s=60) == [{name: name}, name, name]


async def test_what_cannot_be_sent_is_refused_where_it_is_given(store: RedisStateStore) -> None:
    await make(store)
    async with client_of(store) as client:
        for name in ("", "x" * 257, 3):
            with pytest.raises(InvalidField, match="name"):
                await client.signal(SESSION, TASK, name)  # type: ignore[arg-type]
        with pytest.raises(InvalidField, match="payload"):
            await client.signal(SESSION, TASK, "a", "x" * MAX_PAYLOAD_BYTES)
        with pytest.raises(InvalidField, match="idempotency_key"):
            await client.signal(SESSION, TASK, "a", idempotency_key="")
        large = "x" * (MAX_PAYLOAD_BYTES - 2)
        for _ in range(MAX_WAITING_BYTES // MAX_PAYLOAD_BYTES - 1):
            await client.signal(SESSION, TASK, "a", large)
        with pytest.raises(LimitReached):
            await client.signal(SESSION, TASK, "a", large)
        await store.tasks.clear(SESSION, TASK)
        await make(store)
        for number in range(MAX_WAITING):
            await client.signal(SESSION, TASK, f"box {number}", number)
        with pytest.raises(LimitReached):
            await client.signal(SESSION, TASK, "a", 1)

    async def handler(ctx: TaskContext) -> Any:
        for bad in (timedelta(days=-1), timedelta(days=9_999), 3):
            with pytest.raises(InvalidField, match="timeout"):
                await ctx.receive("a", timeout=bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidField, match="hold_s"):
            await ctx.receive("a", hold_s=-1)
        found = [await ctx.receive(f"box {number}", timeout=NOW) for number in range(MAX_WAITING)]
        return found == list(range(MAX_WAITING))

    assert (await run_once(store, handler)).result is True
    # What was taken leaves nothing behind but the journal of the run.
    journal = await store.transport.sender.send(
        "HKEYS", store.base.keys.journal(SESSION, TASK), repeatable=True
    )
    kinds: defaultdict[bytes, int] = defaultdict(int)
    for entry in journal:
        kinds[entry.partition(b":")[0]] += 1
    assert kinds[b"box"] == 0
    assert kinds[b"mail"] == 1  # the totals
    assert kinds[b"signal"] == MAX_WAITING


async def test_forty_senders_lose_nothing_and_each_ones_order_is_kept(
    store: RedisStateStore,
) -> None:
    senders, each = 40, 10

    async def handler(ctx: TaskContext) -> list[Any]:
        return [await ctx.receive("n", hold_s=0.05) for _ in range(senders * each)]

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)

        async def send(sender: int) -> None:
            for number in range(each):
                key = f"{sender}-{number}"
                for _ in range(2):  # a caller that repeats itself
                    await client.signal(
                        SESSION, task_id, "n", [sender, number], idempotency_key=key
                    )
                if number % 4 == 0:
                    await asyncio.sleep(0.05)

        await asyncio.gather(*(send(sender) for sender in range(senders)))
        found = await client.result(SESSION, task_id, timeout_s=60)
    assert sorted(found) == sorted([s, n] for s in range(senders) for n in range(each))
    for sender in range(senders):
        assert [n for s, n in found if s == sender] == list(range(each))


async def test_parts_of_a_handler_that_wait_at_once_are_all_woken(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> list[Any]:
        return list(
            await asyncio.gather(*(ctx.receive(name, hold_s=0.05) for name in ("a", "b", "c")))
        )

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)
        for count, name in enumerate(("c", "a", "b")):
            waits = partial(_pauses, store, task_id, count + 1)
            await eventually(waits, "it waits")
            await client.signal(SESSION, task_id, name, name)
        assert await client.result(SESSION, task_id, timeout_s=60) == ["a", "b", "c"]


async def _pauses(store: RedisStateStore, task_id: str, count: int) -> bool:
    found = await statuses(store, task_id)
    return found.count("PAUSED") >= count and found[-1] == "PAUSED"


async def test_a_sender_that_dies_after_it_woke_a_task_leaves_it_to_a_sweeper(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handler(ctx: TaskContext) -> Any:
        return await ctx.receive("n", hold_s=0)

    await make(store)
    assert (await run_once(store, handler)).status is TaskStatus.PAUSED
    async with client_of(store) as client:
        messages = client._messages
        monkeypatch.setattr(messages, "_queue", None)
        await client.signal(SESSION, TASK, "n", 5)
        state = await client.get(SESSION, TASK)
        assert state is not None
        assert state.status is TaskStatus.PENDING
        assert await queued(store) == []
        sweeper = Sweeper(store, client._queue)

        async def swept() -> bool:
            await sweeper.run_once()
            return bool(await queued(store))

        await eventually(swept, "a sweeper queues it", timeout_s=30)
    assert (await run_once(store, handler)).result == 5


async def test_cancelling_a_task_that_waits_for_a_signal(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> Any:
        return await ctx.receive("n", hold_s=ctx.input)

    async with pool(store, {"h": handler}) as client:
        for hold_s, status in ((0, TaskStatus.PAUSED), (60, TaskStatus.RUNNING)):
            task_id = await client.submit("h", hold_s, session_id=SESSION)
            await becomes(client, task_id, status)
            assert await client.cancel(SESSION, task_id)
            await becomes(client, task_id, TaskStatus.CANCELLED)
            with pytest.raises(InvalidTransition):
                await client.signal(SESSION, task_id, "n", 1)


async def test_a_task_that_is_paused_for_another_reason_is_not_woken_by_a_signal(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> Any:
        first = await ctx.receive("n", hold_s=0)
        decision = await ctx.approval("Go on?")
        return [first, decision.approved, await ctx.receive("n", hold_s=0)]

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)
        await becomes(client, task_id, TaskStatus.PAUSED)
        await client.signal(SESSION, task_id, "n", 1)
        (pause,) = await eventually(lambda: client.pauses(SESSION), "it asks") or []
        await becomes(client, task_id, TaskStatus.PAUSED)
        await client.signal(SESSION, task_id, "n", 2)
        found = await client.inspect(SESSION, task_id)
        assert found is not None
        assert found.state.status is TaskStatus.PAUSED
        assert pause.pause_id is not None
        await client.approve(pause.pause_id)
        assert await client.result(SESSION, task_id, timeout_s=60) == [1, True, 2]


async def test_a_handler_that_stops_asking_is_found_out(store: RedisStateStore) -> None:
    async def first(ctx: TaskContext) -> None:
        await ctx.receive("old name")
        begin_again()

    async def second(_: TaskContext) -> None:
        return None

    await make(store)
    async with client_of(store) as client:
        await client.signal(SESSION, TASK, "old name")
    await run_once(store, first)
    state = await run_once(store, second, steps=StepPolicy(on_changed="fail"))
    assert state.status is TaskStatus.FAILED
    assert "signal:old name#1" in str(state.error)


async def test_a_signal_that_the_server_lost_is_sent_again_and_received_once() -> None:
    found: list[list[Any]] = []
    async with (
        rolling_back() as server,
        RedisStateStore.from_url(server.url) as store,
        TaskClient(store) as client,
    ):
        await make(store)

        async def send(payload: int) -> None:
            await client.signal(SESSION, TASK, "n", payload, idempotency_key=str(payload))

        async def handler(ctx: TaskContext) -> list[Any]:
            mine: list[Any] = []
            found.append(mine)
            mine.append(await ctx.receive("n"))
            if len(found) == 1:
                await server.mark()
                await send(2)
                mine.append(await ctx.receive("n"))
                await server.go_back()
                await send(2)
                await send(3)
            mine.append(await ctx.receive("n"))
            mine.append(await ctx.receive("n"))
            return mine

        await send(1)
        states = [await run_once(store, handler) for _ in range(3)]
        assert (states[-1].status, states[-1].result) == (TaskStatus.COMPLETE, [1, 2, 3])
        # The first run saw a second signal that the server then lost: it could not go on.
        assert found[0] == [1, 2]


async def test_a_task_that_expires_while_it_waits_was_given_its_deadline(
    store: RedisStateStore,
) -> None:
    """The task and its journal live beyond the time for which it waits."""

    async def handler(ctx: TaskContext) -> Any:
        return await ctx.receive("n", hold_s=0, timeout=timedelta(hours=5))

    await make(store)
    assert (await run_once(store, handler)).status is TaskStatus.PAUSED
    keys = store.tasks.keys(SESSION, TASK)
    least = store.tasks.ttl_ms("PAUSED") + 4 * 3600 * 1000
    for key in (keys.task, keys.journal):
        assert int(await store.transport.sender.send("PTTL", key, repeatable=True)) > least


async def test_the_run_goes_on_while_a_step_works_beside_a_call_that_waits(
    store: RedisStateStore,
) -> None:
    runs: list[int] = []

    async def handler(ctx: TaskContext) -> list[Any]:
        runs.append(ctx.attempt)

        async def work() -> str:
            await asyncio.sleep(1.5)
            return "done"

        return list(await asyncio.gather(ctx.receive("stop", hold_s=0), ctx.step("work", work)))

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)
        await becomes(client, task_id, TaskStatus.PAUSED)
        assert [one.step for one in await client.snapshots(SESSION, task_id)] == ["work#1"]
        await client.signal(SESSION, task_id, "stop", "now")
        assert await client.result(SESSION, task_id, timeout_s=60) == ["now", "done"]
    assert runs == [1, 2]


async def test_a_call_in_a_task_of_its_own_keeps_the_worker_and_may_be_made_again_and_again(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> list[Any]:
        found: list[Any] = []
        coming = asyncio.create_task(ctx.receive("n"))
        await ctx.progress("listens")
        while len(found) < 5:
            await asyncio.wait({coming}, timeout=0.05)
            if coming.done():
                found.append(coming.result())
                coming = asyncio.create_task(ctx.receive("n"))
        coming.cancel()
        return found

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)
        for number in range(5):
            await client.signal(SESSION, task_id, "n", number)
        assert await client.result(SESSION, task_id, timeout_s=60) == list(range(5))
        assert "PAUSED" not in await statuses(store, task_id)


async def test_a_cancelled_call_loses_no_message(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> list[Any]:
        found: list[Any] = []
        for _ in range(20):
            # Cancelled at whatever moment, some while the message is being taken.
            with suppress(TimeoutError):
                async with asyncio.timeout(0.0005 * (len(found) + 1)):
                    found.append(await ctx.receive("n"))
        while len(found) < 20:
            found.append(await ctx.receive("n"))
        return found

    await make(store)
    async with client_of(store) as client:
        for number in range(20):
            await client.signal(SESSION, TASK, "n", number)
    assert (await run_once(store, handler)).result == list(range(20))
