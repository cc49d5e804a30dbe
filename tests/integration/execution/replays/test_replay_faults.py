"""Replays after faults: a lost reply, a cancelled wait, a history that goes back in mid-flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import BackendError
from redis_state.models import SteeringEvent, SteeringEventType, TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from tests.support.processes.pools import SESSION, client_of
from tests.support.servers.changes.rollback import rolling_back
from tests.support.servers.faults import Proxy
from tests.support.tasks.runs import TASK, begin_again, make, run_once


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[Proxy]:
    async with Proxy(settings.url.get_secret_value()) as opened:
        yield opened


@pytest.fixture
async def through(settings: Settings, proxy: Proxy) -> AsyncIterator[RedisStateStore]:
    """Give a store whose replies can be lost, and which waits for none for long."""
    short = {"url": SecretStr(proxy.url), "call_timeout_s": 1.0, "connect_timeout_s": 1.0}
    async with RedisStateStore(settings.model_copy(update=short)) as opened:
        yield opened


async def say(store: RedisStateStore, text: str) -> None:
    """Steer the task, and have its next run find it."""
    event = SteeringEvent(
        session_id=SESSION,
        task_id=TASK,
        event_type=SteeringEventType.USER_MESSAGE,
        payload={"text": text},
    )
    await store.save_steering(event)


def texts(events: list[SteeringEvent]) -> list[str]:
    return [event.payload["text"] for event in events]


async def published(store: RedisStateStore) -> list[Any]:
    """Give what the handler has published, without the task's changes of state."""
    rows = await store.list_updates(SESSION, task_id=TASK, limit=1_000)
    kinds = {UpdateType.PROGRESS, UpdateType.THINKING}
    return [row.content for row in rows if row.update_type in kinds]


async def test_no_run_completes_over_a_hole_that_calls_in_flight_have_filled_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rolling_back() as server, RedisStateStore.from_url(server.url) as store:
        scripts, gate = store.base.scripts, asyncio.Event()
        runs: list[int] = []
        record_step, held = scripts.record_step, {"step:c#1", "step:d#1"}

        async def note_late(*arguments: Any, **options: Any) -> Any:
            # These are under way with the mark that they began with.
            if options["entry"] in held:
                await gate.wait()
            return await record_step(*arguments, **options)

        monkeypatch.setattr(scripts, "record_step", note_late)

        def work(name: str) -> str:
            return name

        async def handler(ctx: TaskContext) -> str:
            runs.append(ctx.attempt)
            await ctx.step("first", work, "first")
            if ctx.attempt == 1:
                await server.mark()
            late = [asyncio.create_task(ctx.step(name, work, name)) for name in "cd"]
            await asyncio.sleep(0)
            await ctx.step("a", work, "a")
            await ctx.step("b", work, "b")
            if ctx.attempt == 1:
                await server.go_back()
                gate.set()
            await asyncio.gather(*late)
            await ctx.step("e", work, "e")
            return "done"

        await make(store)
        assert (await run_once(store, handler)).status is TaskStatus.PENDING
        assert (await run_once(store, handler)).result == "done"
        assert runs == [1, 2]
        journal = await store.transport.sender.send(
            "HKEYS", store.base.keys.journal(SESSION, TASK), repeatable=True
        )
        steps = {entry for entry in journal if entry.startswith(b"step:")}
        assert steps == {b"step:%b#1" % name for name in (b"first", b"a", b"b", b"c", b"d", b"e")}


@pytest.mark.parametrize("lost", ["call", "reply"])
async def test_an_update_that_failed_and_is_published_again_is_one_update(
    store: RedisStateStore, through: RedisStateStore, proxy: Proxy, lost: str
) -> None:
    failed: list[int] = []

    async def handler(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            if lost == "call":
                proxy.refuse()
                assert proxy.cut()
            else:
                proxy.silence()
        try:
            await ctx.thinking("A")
        except BackendError:
            failed.append(ctx.attempt)
            proxy.refuse(refusing=False)
            proxy.silence(silent=False)
            proxy.cut()
            await ctx.thinking("A")
        if ctx.attempt == 1:
            begin_again()
        await ctx.thinking("B")
        await ctx.thinking("C")

    await make(store)
    for _ in range(2):
        await run_once(through, handler)
    assert failed == [1]
    assert [content["text"] for content in await published(store)] == ["A", "B", "C"]


async def test_a_wait_is_delivered_what_it_was_though_other_tasks_go_on_meanwhile(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> list[str]:
        async def work() -> None:
            for number in range(3):
                await ctx.progress(f"{number}")
            if ctx.attempt == 1:
                await say(store, "go")

        beside = asyncio.create_task(work())
        events = await ctx.inbox.wait()
        await beside
        if ctx.attempt == 1:
            begin_again()
        return texts(events)

    await make(store)
    await run_once(store, handler)
    async with asyncio.timeout(20):
        assert (await run_once(store, handler)).result == ["go"]


async def test_a_wait_that_never_ended_is_waited_again_though_other_tasks_went_on(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> list[str]:
        async def work() -> None:
            for number in range(3):
                await ctx.progress(f"{number}")

        beside = asyncio.create_task(work())
        if ctx.attempt == 1:
            waiting = asyncio.create_task(ctx.inbox.wait(3600))
            await beside
            waiting.cancel()
            begin_again()
        later = asyncio.create_task(say(store, "hello"))
        events = await ctx.inbox.wait(3600)
        await asyncio.gather(beside, later)
        return texts(events)

    await make(store)
    await run_once(store, handler)
    async with asyncio.timeout(20):
        assert (await run_once(store, handler)).result == ["hello"]


async def test_what_a_cancelled_wait_had_taken_the_next_one_gets(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, gate = asyncio.Event(), asyncio.Event()
    record_entry = store.base.scripts.record_entry

    async def record_late(*arguments: Any, **options: Any) -> Any:
        recording.set()
        await gate.wait()
        return await record_entry(*arguments, **options)

    monkeypatch.setattr(store.base.scripts, "record_entry", record_late)

    async def handler(ctx: TaskContext) -> list[str]:
        waiting = asyncio.create_task(ctx.inbox.wait())
        await say(store, "important")
        await recording.wait()
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        gate.set()
        return texts(await ctx.inbox.wait(10))

    await make(store)
    assert (await run_once(store, handler)).result == ["important"]


async def test_a_thread_cannot_take_steering_and_loses_none(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> list[str]:
        with pytest.raises(RuntimeError, match="event loop"):
            await asyncio.to_thread(ctx.inbox.take)
        return texts(ctx.inbox.take())

    await make(store)
    await say(store, "kept")
    assert (await run_once(store, handler)).result == ["kept"]


async def test_keys_may_be_any_text(store: RedisStateStore) -> None:
    keys = ["a", "a|0", "b|3", "b|03", "|1", "a|" + "9" * 5000, "step:x|1"]

    async def handler(ctx: TaskContext) -> None:
        names = keys[1::2] if ctx.attempt == 1 else keys
        for key in names:
            await ctx.emit(UpdateType.PROGRESS, {"key": key}, key=key)
        if ctx.attempt == 1:
            begin_again()

    await make(store)
    await run_once(store, handler)
    assert (await run_once(store, handler)).status is TaskStatus.COMPLETE
    found = [content["key"] for content in await published(store)]
    assert sorted(found) == sorted(keys)


async def test_a_key_is_published_once_in_a_run_too(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> None:
        for _ in range(2):
            await ctx.emit(UpdateType.PROGRESS, "one", key="k")
        await asyncio.gather(*(ctx.emit(UpdateType.PROGRESS, "two", key="l") for _ in range(3)))

    await make(store)
    assert (await run_once(store, handler)).status is TaskStatus.COMPLETE
    assert await published(store) == ["one", "two"]


async def test_a_delivery_that_could_not_be_recorded_is_recorded_later(
    store: RedisStateStore, through: RedisStateStore, proxy: Proxy
) -> None:
    taken: list[list[str]] = []

    async def handler(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            proxy.refuse()
            assert proxy.cut()
        taken.append(texts(ctx.inbox.take()))
        if ctx.attempt == 1:
            with pytest.raises(BackendError):
                await ctx.checkpoint()
            proxy.refuse(refusing=False)

            async def recorded() -> bool:
                try:
                    await ctx.checkpoint()
                except BackendError:
                    return False
                return True

            await eventually(recorded, "a checkpoint passes")
        await ctx.progress("steered")
        if ctx.attempt == 1:
            begin_again()

    await make(store)
    await say(store, "kept")
    for _ in range(2):
        await run_once(through, handler)
    assert taken == [["kept"], ["kept"]]


async def test_cancelling_a_task_that_ends_meanwhile_is_in_vain_and_no_error(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handler(_: TaskContext) -> int:
        return 1

    await make(store)
    async with client_of(store) as client:
        get = client.get

        async def get_and_end(session_id: str, task_id: str) -> Any:
            state = await get(session_id, task_id)
            await run_once(store, handler)
            return state

        monkeypatch.setattr(client, "get", get_and_end)
        assert not await client.cancel(SESSION, TASK)
