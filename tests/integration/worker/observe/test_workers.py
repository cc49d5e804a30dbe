"""The registry of workers, and the queues of one worker."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings, __version__
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import AgentWorker, Handler, TaskClient, TaskContext, WorkerRegistry
from redis_state.worker.observe.registry import WorkerIdentity, WorkerRecord
from redis_state.worker.observe.stats import WorkerStats
from tests.support.processes.pools import (
    SESSION,
    agent,
    becomes,
    client_of,
    job_of,
    key_of_queue,
    open_token,
    queue_of,
    serving,
)
from tests.support.processes.worker_processes import begin, listed, stop, worker_process
from tests.support.servers.faults import Proxy


@pytest.mark.slow
async def test_a_worker_is_listed_with_what_it_does_until_it_stops(
    store: RedisStateStore, settings: Settings
) -> None:
    async with (
        client_of(store) as client,
        worker_process(settings, "one", max_tasks=3, interval_s=0.2) as process,
    ):
        first = (await listed(client, "one"))["one"]
        assert (first.host, first.pid) == (socket.gethostname(), process.pid)
        assert (first.version, first.max_tasks, first.heartbeat) == (__version__, 3, "loop")
        assert (first.queues, first.draining) == ((queue_of(settings),), False)
        assert "nap" in first.handlers
        assert (first.running_count, first.running) == (0, ())
        assert first.started_ms <= first.last_seen_ms
        done = await client.submit("nap", 0, session_id=SESSION)
        await client.wait(SESSION, done, timeout_s=60)
        paused = await client.submit("ask", session_id=SESSION)
        await becomes(client, paused, TaskStatus.PAUSED)
        failed = await client.submit("nobody", session_id=SESSION)
        await becomes(client, failed, TaskStatus.FAILED)
        task = await begin(client, store, "nap", 3.0)

        async def busy() -> bool:
            info = (await listed(client, "one"))["one"]
            return info.running == ((SESSION, task),) and info.running_count == 1

        await eventually(busy, "it says what it runs")
        info = (await listed(client, "one"))["one"]
        counted = {name: count for name, count in info.counters.items() if count}
        assert counted == {"started": 4, "completed": 1, "paused": 1, "failed": 1}
        assert info.started_ms == first.started_ms
        assert info.last_seen_ms > first.last_seen_ms
        process.send_signal(signal.SIGTERM)

        async def draining() -> bool:
            return (await listed(client, "one"))["one"].draining

        await eventually(draining, "it says that it drains")
        async with asyncio.timeout(60):
            assert await process.wait() == 0
        assert await client.workers() == []
        left = await store.transport.sender.send(
            "EXISTS", store.base.keys.workers(), repeatable=True
        )
        assert left == 0
        await client.cancel(SESSION, paused)


@pytest.mark.slow
async def test_a_worker_that_was_killed_is_listed_until_its_record_expires(
    store: RedisStateStore, settings: Settings
) -> None:
    async with client_of(store) as client, AsyncExitStack() as running:
        one = await running.enter_async_context(worker_process(settings, "one", interval_s=0.4))
        await running.enter_async_context(worker_process(settings, "two", interval_s=0.4))
        await listed(client, "one", "two")
        await stop(one, signal.SIGKILL)
        (silent,) = [info for info in await client.workers() if info.name == "one"]
        assert silent.pid == one.pid
        assert 0 <= silent.silent_s < 1.2 + 0.5
        assert sorted(await listed(client, "two")) == ["two"]


async def test_two_workers_of_one_name_are_two_and_leave_each_by_itself(
    store: RedisStateStore,
) -> None:
    handlers: dict[str, Handler] = {"answer": _answer}
    async with client_of(store) as client, serving(agent(store.settings, handlers, name="same")):
        await eventually(lambda: _count(client, 1), "the first is listed")
        async with serving(agent(store.settings, handlers, name="same")):
            await eventually(lambda: _count(client, 2), "both are listed")
        assert len(await client.workers()) == 1
    assert await WorkerRegistry(store).list() == []


async def _count(client: TaskClient, number: int) -> bool:
    return len(await client.workers()) == number


async def test_a_presence_lives_through_an_outage_and_says_nothing_of_it(
    store: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with Proxy(store.settings.url.get_secret_value()) as proxy:
        short = {"url": SecretStr(proxy.url), "call_timeout_s": 1.0, "connect_timeout_s": 1.0}
        async with RedisStateStore(store.settings.model_copy(update=short)) as through:
            about = WorkerIdentity("w", ["q"], ["h"], 1, "loop")
            worker_record = WorkerRecord(through, about, WorkerStats(), interval_s=0.1)
            keeping = asyncio.create_task(worker_record.keep())
            registry = WorkerRegistry(store)
            await eventually(registry.list, "it is listed")
            proxy.refuse()
            proxy.cut()
            await eventually(lambda: _is_empty(registry), "its record has expired")
            assert proxy.refused
            proxy.refuse(refusing=False)
            await eventually(registry.list, "it is listed again")
            keeping.cancel()
            await asyncio.wait({keeping})
            await worker_record.withdraw()
    assert await registry.list() == []
    assert caplog.records == []


async def test_a_worker_that_was_cut_off_is_steady_a_records_life_later(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_s = 0.0
    monkeypatch.setattr(f"{WorkerRecord.__module__}.monotonic", lambda: passed_s)
    async with Proxy(store.settings.url.get_secret_value()) as proxy:
        short = {"url": SecretStr(proxy.url), "call_timeout_s": 1.0, "connect_timeout_s": 1.0}
        async with RedisStateStore(store.settings.model_copy(update=short)) as through:
            about = WorkerIdentity("w", ["q"], ["h"], 1, "loop")
            record = WorkerRecord(through, about, WorkerStats(), interval_s=10)
            steady = [record.is_steady]
            await record.say()
            steady.append(record.is_steady)
            proxy.refuse()
            proxy.cut()
            await record.say()
            steady.append(record.is_steady)
            proxy.refuse(refusing=False)
            await record.say()
            steady.append(record.is_steady)
            passed_s = 25.0
            await record.say()
            steady.append(record.is_steady)
            passed_s = 31.0
            steady.append(record.is_steady)
            # A process that was stopped for long knows no more than one that was cut off.
            passed_s = 56.0
            steady.append(record.is_steady)
            await record.say()
            steady.append(record.is_steady)
            assert steady == [True, True, False, False, False, True, False, False]
            await record.withdraw()
    registry = WorkerRegistry(store)
    assert await registry.was_served("q", "h")
    assert not await registry.was_served("h", "q")
    await store.transport.sender.send(
        "ZINCRBY", store.base.keys.served(), -600_001, "q h", repeatable=True
    )
    assert not await registry.was_served("q", "h")


async def _is_empty(registry: WorkerRegistry) -> bool:
    return not await registry.list()


async def test_a_record_that_cannot_be_read_is_left_out_and_the_others_are_listed(
    store: RedisStateStore,
) -> None:
    about = WorkerIdentity("w", ["q"], ["h"], 1, "loop")
    for _ in range(2):
        await WorkerRecord(store, about, WorkerStats()).say()
    registry = WorkerRegistry(store)
    first, _ = await registry.list()
    key = store.base.keys.worker(f"{first.name}#{first.instance}")
    await store.transport.sender.send("HSET", key, "document", b"{}", repeatable=True)
    (other,) = await registry.list()
    assert other.instance != first.instance
    assert len(await store.base.unreadable("workers")) == 1


# Several queues in one process


async def _answer(_: TaskContext) -> int:
    return 42


def _queues(settings: Settings) -> tuple[str, str]:
    return f"high-{settings.namespace}", f"low-{settings.namespace}"


def _serving_both(settings: Settings, handlers: dict[str, Any], **options: Any) -> AgentWorker:
    return AgentWorker(
        handlers, settings=settings, queues=_queues(settings), poll_s=0.01, **options
    )


async def test_queues_share_their_slots_and_the_first_is_preferred(
    store: RedisStateStore,
) -> None:
    high, low = _queues(store.settings)
    order: list[str] = []
    now: Counter[str] = Counter()
    full = asyncio.Event()
    most = 0

    async def note(ctx: TaskContext) -> None:
        nonlocal most
        order.append(ctx.input)
        now[ctx.input] += 1
        most = max(most, now.total())
        if now.total() == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0.02)
        now[ctx.input] -= 1

    async with TaskClient(store, queue=low) as client:
        tasks = [await client.submit("note", "low", session_id=SESSION) for _ in range(12)]
        tasks += [
            await client.submit("note", "high", session_id=SESSION, queue=high) for _ in range(12)
        ]
        async with serving(_serving_both(store.settings, {"note": note}, max_tasks=3)):
            for task in tasks:
                await client.wait(SESSION, task, timeout_s=60)
    assert Counter(order) == {"high": 12, "low": 12}
    assert most == 3
    # The low ones were there first. One of them may find the slot that becomes free in a poll
    # after the high queue was asked.
    assert order[:3] == ["high"] * 3
    assert order[:12].count("high") >= 8


async def test_a_queue_with_a_limit_holds_no_more_slots_and_keeps_its_order(
    store: RedisStateStore,
) -> None:
    high, low = _queues(store.settings)
    order: list[int] = []
    seen: list[tuple[int, int]] = []
    full = asyncio.Event()
    now: Counter[str] = Counter()

    async def note(ctx: TaskContext) -> None:
        kind, number = ctx.input
        now[kind] += 1
        seen.append((now["limited"], now.total()))
        if kind == "limited":
            order.append(number)
        if now.total() == 4:
            full.set()
        await full.wait()
        await asyncio.sleep(0.02)
        now[kind] -= 1

    async with TaskClient(store, queue=low) as client:
        tasks: list[str] = []
        for number in range(8):
            for kind, queue in (("limited", high), ("free", low)):
                # Jobs of one millisecond are taken in the order of their ids.
                task = await client.submit(
                    "note",
                    [kind, number],
                    session_id=SESSION,
                    task_id=f"{kind}-{number}",
                    queue=queue,
                )
                tasks.append(task)
        worker = _serving_both(store.settings, {"note": note}, max_tasks=4, queue_limits={high: 1})
        async with serving(worker):
            for task in tasks:
                await client.wait(SESSION, task, timeout_s=60)
    assert max(limited for limited, _ in seen) == 1
    assert max(total for _, total in seen) == 4
    assert order == list(range(8))


async def test_a_task_waits_in_its_own_queue_whoever_has_it_wait(store: RedisStateStore) -> None:
    high, low = _queues(store.settings)

    async def ask(ctx: TaskContext) -> bool:
        return (await ctx.approval("?")).approved

    send = store.transport.sender.send
    async with TaskClient(store, queue=high) as one, TaskClient(store, queue=low) as other:
        task = await one.submit("ask", session_id=SESSION)
        high_key, low_key = (key_of_queue(store.settings, queue) for queue in (high, low))
        job = job_of(store, task)
        before = await send("ZSCORE", high_key, job, repeatable=True)
        await other.steer(SESSION, task, SteeringEventType.PRIORITIZE, {"priority": 5})
        assert float(await send("ZSCORE", high_key, job, repeatable=True)) < float(before)
        async with serving(_serving_both(store.settings, {"ask": ask})):
            token = await open_token(store, task)
        await other.approve(token)
        await other.submit("ask", session_id=SESSION, task_id=task)
        after = job_of(store, task, 1).encode()
        assert after in await send("ZRANGE", high_key, 0, -1, repeatable=True)
        assert await send("ZCARD", low_key, repeatable=True) == 0
        async with serving(_serving_both(store.settings, {"ask": ask})):
            assert (await one.wait(SESSION, task, timeout_s=60)).result is True


async def test_a_worker_of_several_queues_goes_on_after_it_lost_the_server(
    store: RedisStateStore,
) -> None:
    queues = _queues(store.settings)
    async with Proxy(store.settings.url.get_secret_value()) as proxy:
        through = store.settings.model_copy(update={"url": SecretStr(proxy.url)})
        worker = _serving_both(through, {"answer": _answer}, max_tasks=2)
        async with serving(worker), TaskClient(store) as client:
            for number in range(4):
                if number:
                    assert proxy.cut()
                tasks = [
                    await client.submit("answer", session_id=SESSION, queue=queues[each % 2])
                    for each in range(6)
                ]
                for task in tasks:
                    assert (await client.wait(SESSION, task, timeout_s=60)).result == 42


@pytest.mark.slow
async def test_two_queues_in_a_process_are_both_drained_on_sigterm(
    store: RedisStateStore, settings: Settings
) -> None:
    queues = _queues(settings)
    async with (
        TaskClient(store) as client,
        worker_process(settings, "one", queues=queues, grace_s=0.3) as process,
    ):
        tasks: list[str] = []
        for queue in queues:
            task = await client.submit("linger", session_id=SESSION, queue=queue)
            await becomes(client, task, TaskStatus.RUNNING)
            tasks.append(task)
        assert await stop(process) == 0
        for task, queue in zip(tasks, queues, strict=True):
            await becomes(client, task, TaskStatus.PENDING)
            key = key_of_queue(settings, queue)
            assert await store.transport.sender.send("ZCARD", key, repeatable=True) == 1
            await client.cancel(SESSION, task)
            await store.transport.sender.send("DEL", key, repeatable=True)


def test_the_command_line_names_several_queues(settings: Settings) -> None:
    worker = AgentWorker({}, settings=settings, queue="own", queue_limits={"own": 2})
    chosen = worker.with_queues("high", "own")
    assert chosen.queue_names == ("high", "own")
    assert chosen.queue_limits == {"own": 2}
    assert worker.with_queues("other").queue_limits == {}
