"""A task from outside: watched to its end, asked for its result, cancelled at once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import (
    CursorGap,
    RedisStateStore,
    TaskFailed,
    TaskNotCompleted,
    TaskWasCancelled,
)
from redis_state.errors import CorruptState, TaskUnknown
from redis_state.models import SteeringEventType, TaskState, TaskStatus
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.transitions import TaskTransitions
from redis_state.worker.tasks.views import stream as watching
from tests.support.processes.pools import (
    SESSION,
    becomes,
    client_of,
    key_of_queue,
    open_token,
    pool,
    queue_of,
    updates_of,
)
from tests.support.tasks.runs import TASK, make, take
from tests.support.timing import LONG_S


async def ask(ctx: TaskContext) -> bool:
    await ctx.progress("before")
    return (await ctx.approval("Go on?")).approved


async def forever(ctx: TaskContext) -> None:
    await ctx.progress("begun")
    while True:
        await ctx.checkpoint()
        await asyncio.sleep(0.005)


async def seen(client: TaskClient, task: str, after: str | None = None) -> list[Any]:
    async with aclosing(client.watch(SESSION, task, after=after)) as entries:
        values = [entry.value async for entry in entries]
    return [value.content.get("status") or value.update_type.value for value in values]


async def test_a_task_is_watched_from_its_first_update_to_its_last(store: RedisStateStore) -> None:
    async with pool(store, {"ask": ask}) as client:
        other = await client.submit("ask", session_id=SESSION)
        task = await client.submit("ask", session_id=SESSION)
        watching = asyncio.create_task(seen(client, task))
        await client.approve(await open_token(store, task))
        found = await asyncio.wait_for(watching, 60)
        assert found[:2] == ["PENDING", "RUNNING"]
        assert found[-1] == "COMPLETE"
        assert len(found) == len(await updates_of(store, task))
        # It is over: the same again, without waiting for anything.
        assert await asyncio.wait_for(seen(client, task), 60) == found
        await client.cancel(SESSION, other)


async def test_watching_goes_on_from_a_cursor_in_another_process(store: RedisStateStore) -> None:
    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        cursor: str | None = None
        first: list[str] = []
        async with aclosing(client.watch(SESSION, task)) as entries:
            async for entry in entries:
                cursor = entry.cursor
                first.append(entry.value.update_id)
                if entry.value.update_type.value == "CHECKPOINT":
                    break
        await client.reject(await open_token(store, task))
        async with client_of(store) as another:
            rest = [one.value.update_id async for one in another.watch(SESSION, task, after=cursor)]
        assert [*first, *rest] == [update.update_id for update in await updates_of(store, task)]
        with pytest.raises(CursorGap):
            await seen(client, task, after="999999-1")


async def test_a_task_whose_updates_are_gone_is_seen_to_end(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_CHECK_EVERY_S", 0.05)
    async with client_of(store) as client:
        await make(store)
        watched = asyncio.create_task(seen(client, TASK))
        started = await take(store)
        await TaskTransitions(store).finish_run(started, TaskStatus.COMPLETE)
        assert (await asyncio.wait_for(watched, 60))[-1] == "COMPLETE"
        await make(store, "other")
        watched = asyncio.create_task(seen(client, "other"))
        # Its end as its record has it, and no word of it.
        key = store.base.keys.task(SESSION, "other")
        await store.transport.sender.send("HSET", key, "status", "FAILED", repeatable=True)
        assert await asyncio.wait_for(watched, 60) == ["PENDING"]


async def test_what_is_no_task_cannot_be_watched(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_CHECK_EVERY_S", 0.05)
    async with client_of(store) as client:
        with pytest.raises(TaskUnknown, match="there is no task"):
            await seen(client, "none")
        await make(store)
        watched = asyncio.create_task(seen(client, TASK))
        await store.transport.sender.send(
            "DEL", store.base.keys.task(SESSION, TASK), repeatable=True
        )
        with pytest.raises(TaskUnknown, match="there is no task"):
            await asyncio.wait_for(watched, 60)


async def test_a_result_is_returned_or_the_reason_raised(store: RedisStateStore) -> None:
    async def work(ctx: TaskContext) -> Any:
        if ctx.input == "fail":
            raise ValueError("no luck")
        return {"got": ctx.input}

    async with pool(store, {"work": work, "forever": forever}) as client:
        fine = await client.submit("work", [1], session_id=SESSION)
        assert await client.result(SESSION, fine, timeout_s=60) == {"got": [1]}
        wrong = await client.submit("work", "fail", session_id=SESSION)
        with pytest.raises(TaskFailed, match="FAILED: ValueError: no luck") as failed:
            await client.result(SESSION, wrong, timeout_s=60)
        assert (failed.value.task_id, failed.value.reason) == (wrong, "ValueError: no luck")
        endless = await client.submit("forever", session_id=SESSION)
        with pytest.raises(TimeoutError):
            await client.result(SESSION, endless, timeout_s=0.05)
        await client.cancel(SESSION, endless)
        with pytest.raises(TaskWasCancelled, match="no reason was given") as cancelled:
            await client.result(SESSION, endless, timeout_s=60)
        assert isinstance(cancelled.value, TaskNotCompleted)
        with pytest.raises(TaskUnknown):
            await client.result(SESSION, "none")


async def test_all_that_is_not_over_is_listed_whatever_its_session(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        tasks = {await client.submit("h", session_id=f"s{number}") for number in range(40)}
        over = await client.submit("h", session_id="s0")
        await client.cancel("s0", over)
        assert {state.task_id for state in await client.unfinished()} == tasks
        assert len(await client.unfinished(limit=7)) == 7
        assert not await client.unfinished(limit=0)


async def test_each_unfinished_task_is_listed_once_while_tasks_change(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a page is read, its tasks start, and sweepers inspect them."""
    made = [f"t{number}" for number in range(60)]
    for name in made:
        await make(store, name)
    load, watch = store.tasks.load, WatchList(store.base.scripts, store.base.keys)

    async def load_and_change(session_id: str, task_id: str) -> TaskState | None:
        state = await load(session_id, task_id)
        await watch.put(watch_entry(session_id, task_id), delay_ms=60_000)
        if made.index(task_id) % 2:
            await take(store, task_id)
        return state

    monkeypatch.setattr(store.tasks, "load", load_and_change)
    monkeypatch.setattr(watching, "LARGEST_PAGE", 7)
    async with client_of(store) as client:
        assert [one.task_id for one in await client.unfinished(limit=1000)] == made


async def test_a_task_is_inspected_with_what_its_workers_know(store: RedisStateStore) -> None:
    async with pool(store, {"ask": ask}, name="w1") as client:
        assert await client.inspect(SESSION, "none") is None
        task = await client.submit("ask", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        view = await client.inspect(SESSION, task)
        assert view is not None
        assert (view.handler, view.worker, view.queue) == ("ask", "w1", queue_of(store.settings))
        assert (view.attempts, view.crashes, view.parent, view.isolated) == (1, 0, None, False)
        assert view.waits_for is None
        await client.cancel(SESSION, task)
        key = store.base.keys.task(SESSION, task)
        await store.transport.sender.send("HSET", key, "job", "{", repeatable=True)
        with pytest.raises(CorruptState):
            await client.inspect(SESSION, task)


# Control, measured from outside


async def test_a_waiting_task_is_cancelled_before_the_call_returns(store: RedisStateStore) -> None:
    async with pool(store, {"ask": ask}) as client:
        paused = await client.submit("ask", session_id=SESSION)
        await becomes(client, paused, TaskStatus.PAUSED)
        queued = await client.submit(
            "ask", session_id=SESSION, queue=f"no-{queue_of(store.settings)}"
        )
        for task in (paused, queued):
            assert await client.cancel(SESSION, task, reason="enough")
            state = await client.get(SESSION, task)
            assert state is not None
            assert (state.status, state.error) == (TaskStatus.CANCELLED, "enough")


@pytest.mark.parametrize("hard", [False, True])
async def test_a_cancel_reaches_a_running_task_far_sooner_than_its_next_look_at_anything(
    store: RedisStateStore,
    monkeypatch: pytest.MonkeyPatch,
    hard: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr("redis_state.worker.client.client._CHECK_EVERY_S", LONG_S)

    async def sleeper(ctx: TaskContext) -> None:
        await ctx.progress("begun")
        await ctx.inbox.wait() if not hard else await asyncio.Event().wait()

    async with pool(store, {"sleeper": sleeper}, lease_s=LONG_S) as client:
        for _ in range(10):
            task = await client.submit("sleeper", session_id=SESSION)

            async def begun(task: str = task) -> bool:
                updates = await updates_of(store, task)
                return any(one.update_type.value == "PROGRESS" for one in updates)

            await eventually(begun, "it has begun")
            await client.cancel(SESSION, task, hard=hard)
            # Whatever would find it by looking, looks after the end of this test.
            await client.wait(SESSION, task, timeout_s=60)


async def test_priority_moves_a_task_in_whichever_queue_it_waits(store: RedisStateStore) -> None:
    queues = [f"{name}-{queue_of(store.settings)}" for name in ("one", "two")]

    async def first(queue: str) -> str:
        found: list[bytes] = await store.transport.sender.send(
            "ZRANGE", key_of_queue(store.settings, queue), 0, 0, repeatable=True
        )
        return found[0].decode().rsplit("/", 1)[1].partition(":")[0]

    async with client_of(store) as client:
        for queue in queues:
            tasks = [
                await client.submit("h", session_id=SESSION, queue=queue, priority=2)
                for _ in range(3)
            ]
            last = tasks[-1]
            assert await first(queue) in tasks[:2]
            await client.steer(SESSION, last, SteeringEventType.PRIORITIZE, {"priority": 9})
            assert await first(queue) == last
            await client.steer(SESSION, last, SteeringEventType.PRIORITIZE, {"priority": 0})
            assert await first(queue) != last


async def test_what_a_handler_is_told_is_cut_to_the_limits(store: RedisStateStore) -> None:
    async def listen(ctx: TaskContext) -> list[Any]:
        reported: list[Any] = []
        while len(reported) < 3:
            reported += [[one.event_type.value, one.payload] for one in await ctx.inbox.wait()]
        return reported

    long = "x" * 10_000
    async with pool(store, {"listen": listen}) as client:
        task = await client.submit("listen", session_id=SESSION)
        for kind, payload in (
            (SteeringEventType.INJECT_CONTEXT, {"text": long}),
            (SteeringEventType.REDIRECT, {"goal": "g", "constraints": {"a": [0] * 99}}),
            (SteeringEventType.USER_MESSAGE, {"text": "m", **{f"k{n}": n for n in range(99)}}),
        ):
            await client.steer(SESSION, task, kind, payload)
        injected, redirected, message = await client.result(SESSION, task, timeout_s=60)
    assert len(injected[1]["text"]) == 4_096
    assert len(redirected[1]["constraints"]["a"]) == 51
    assert len(message[1]) == 65
