"""Who keeps a task whose handler does not give way, and until when."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus
from redis_state.primitives.lease import Leases
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from redis_state.worker.pool.heartbeat import HeartbeatThread
from redis_state.worker.tasks.started import NotStarted, StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION, agent, client_of, pool, serving, statuses
from tests.support.processes.worker_processes import begin, stop, worker_process
from tests.support.servers.faults import Proxy
from tests.support.tasks.runs import steal

LEASE_S = 1.0


async def _try_to_take(store: RedisStateStore, task: str) -> StartedRun | NotStarted:
    return await TaskTransitions(store).start(
        SESSION, task, owner="thief", lease_ms=60_000, worker="thief"
    )


async def _take_or_end(store: RedisStateStore, task: str) -> tuple[StartedRun | None, int]:
    """Try to take a task over until that succeeds or it has ended; count the refusals."""
    refused = 0
    async with asyncio.timeout(60):
        while True:
            found = await _try_to_take(store, task)
            if isinstance(found, StartedRun):
                return found, refused
            if found.reason != "held":
                return None, refused
            refused += 1
            await asyncio.sleep(LEASE_S / 20)


@pytest.mark.slow
async def test_a_thread_keeps_the_task_of_a_handler_that_does_not_give_way(
    store: RedisStateStore, settings: Settings
) -> None:
    async with (
        client_of(store) as client,
        worker_process(settings, "one", lease_s=LEASE_S, heartbeat="thread"),
    ):
        task = await begin(client, store, "busy", 3 * LEASE_S)
        taken, refused = await _take_or_end(store, task)
        assert taken is None
        assert refused
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert (ended.status, ended.result) == (TaskStatus.COMPLETE, 1)
        assert (await statuses(store, task)).count("RUNNING") == 1


@pytest.mark.slow
async def test_a_loop_loses_the_task_of_a_handler_that_does_not_give_way(
    store: RedisStateStore, settings: Settings
) -> None:
    async with (
        client_of(store) as client,
        worker_process(settings, "one", lease_s=LEASE_S, heartbeat="loop") as process,
    ):
        task = await begin(client, store, "blocked", 3 * LEASE_S)
        taken, _ = await _take_or_end(store, task)
        assert taken is not None
        assert taken.attempts == 2
        await TaskTransitions(store).finish_run(taken, TaskStatus.COMPLETE, result="the thief's")
        # It finds out when it gives way, and writes nothing.
        assert await stop(process) == 0
        assert (await client.wait(SESSION, task)).result == "the thief's"
        assert await statuses(store, task) == ["PENDING", "RUNNING", "RUNNING", "COMPLETE"]


@pytest.mark.slow
async def test_a_thread_lets_go_of_a_handler_that_hangs(
    store: RedisStateStore, settings: Settings
) -> None:
    limits: dict[str, Any] = {"task_timeout_s": LEASE_S, "grace_s": LEASE_S}
    async with (
        client_of(store) as client,
        worker_process(settings, "one", lease_s=LEASE_S, heartbeat="thread", **limits),
    ):
        task = await begin(client, store, "blocked", 3600)
        taken, refused = await _take_or_end(store, task)
        assert taken is not None
        assert refused > 0
        await TaskTransitions(store).finish_run(taken, TaskStatus.COMPLETE)


@pytest.mark.slow
async def test_a_frozen_process_with_a_thread_writes_nothing_after_its_lease(
    store: RedisStateStore, settings: Settings
) -> None:
    async with (
        client_of(store) as client,
        worker_process(settings, "one", lease_s=LEASE_S, heartbeat="thread") as process,
    ):
        task = await begin(client, store, "stalled")
        process.send_signal(signal.SIGSTOP)
        taken, _ = await _take_or_end(store, task)
        assert taken is not None
        before = await statuses(store, task)
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        async with asyncio.timeout(60):
            reported = (await process.stdout.readline()).split()
        assert reported[::2] == [b"refused", b"by"]
        assert int(reported[1]) < int(reported[3]) == taken.held.epoch
        assert await statuses(store, task) == before
        await TaskTransitions(store).finish_run(taken, TaskStatus.COMPLETE, result="ours")
        assert await stop(process) == 0
        assert (await client.wait(SESSION, task)).result == "ours"


async def test_a_lease_lost_to_another_cancels_the_handler_from_the_thread(
    store: RedisStateStore,
) -> None:
    cancelled = asyncio.Event()

    async def wait(ctx: TaskContext) -> None:
        await ctx.progress("begun")
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with pool(store, {"wait": wait}, lease_s=1.5, heartbeat="thread") as client:
        task = await begin(client, store, "wait")
        taken = await steal(store, task)
        async with asyncio.timeout(60):
            await cancelled.wait()
        await TaskTransitions(store).finish_run(taken, TaskStatus.COMPLETE)


async def test_the_thread_ends_with_its_worker(store: RedisStateStore) -> None:
    def threads() -> list[str]:
        named = [thread.name for thread in threading.enumerate()]
        return [name for name in named if name == "redis_state heartbeat"]

    async with pool(store, {"nap": _nap}, heartbeat="thread") as client:
        task = await client.submit("nap", session_id=SESSION)
        await client.wait(SESSION, task, timeout_s=60)
        assert threads() == ["redis_state heartbeat"]
    assert threads() == []


async def test_a_worker_that_is_stopped_before_it_reached_its_store_ends_in_good_order(
    settings: Settings, caplog: pytest.LogCaptureFixture, unused_tcp_port: int
) -> None:
    away = settings.model_copy(
        update={
            "url": SecretStr(f"redis://127.0.0.1:{unused_tcp_port}/0"),
            "queue_url": settings.url,
            "connect_timeout_s": 0.2,
        }
    )
    async with serving(agent(away, {"nap": _nap}, heartbeat="thread")):
        await eventually(lambda: "no tasks are taken" in caplog.text, "it tries to reach the store")
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []
    rest = [task.get_name() for task in asyncio.all_tasks()]
    assert [name for name in rest if name.startswith("redis_state")] == []


async def _nap(_: TaskContext) -> None:
    await asyncio.sleep(0)


async def test_a_thread_keeps_a_lease_through_an_outage(
    store: RedisStateStore, settings: Settings
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        through = RedisStateStore(settings.model_copy(update={"url": SecretStr(proxy.url)}))
        thread = HeartbeatThread(through)
        await thread.start()
        leases = Leases(store.base.scripts, keep_ms=60_000)
        there = Leases(through.base.scripts, keep_ms=60_000, loop=thread.loop)
        key = store.base.keys.lease(SESSION, "t")
        held = await leases.acquire(key, duration_ms=800)
        assert held is not None
        lost: list[Any] = []
        with there.keep(held, duration_ms=800, on_lost=lost.append):

            async def until() -> int:
                return int(
                    await store.transport.sender.send("HGET", key, "expires", repeatable=True)
                )

            for _ in range(5):
                before = await until()

                async def renewed(before: int = before) -> bool:
                    return await until() > before

                await eventually(renewed, "it is renewed")
                assert proxy.cut()
        assert lost == []
        await thread.aclose()
        await through.aclose()
    await leases.release(held)
