"""A worker and its clients when the queue's connections die without a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import OutcomeUnknown
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.transport import subscriber as subscribing
from redis_state.worker import TaskClient, TaskContext, WorkerInfo
from redis_state.worker.observe import registry as workers
from redis_state.worker.queue import loop as queue_loop
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from tests.support.processes.pools import (
    SESSION,
    agent,
    becomes,
    client_of,
    key_of_queue,
    queue_of,
    queued,
    serving,
)
from tests.support.processes.worker_processes import begin, listed, stop, worker_process
from tests.support.servers.faults import Proxy
from tests.support.servers.sets.nodes import subscribers
from tests.support.timing import spending

pytestmark = pytest.mark.worker


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[Proxy]:
    async with Proxy(settings.url.get_secret_value()) as opened:
        yield opened


def through(settings: Settings, proxy: Proxy, **options: object) -> Settings:
    return settings.model_copy(update={"url": SecretStr(proxy.url), **options})


@pytest.mark.slow
async def test_a_worker_whose_connections_all_died_takes_tasks_hears_a_cancel_and_can_be_stopped(
    store: RedisStateStore,
    settings: Settings,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_STATE_CALL_TIMEOUT_S", "1.5")
    async with (
        client_of(store) as client,
        worker_process(through(settings, proxy), "one", grace_s=0.2) as process,
    ):
        task = await begin(client, store, "linger")
        assert proxy.half_open() >= 2
        await client.cancel(SESSION, task, hard=True)
        next_one = await client.submit("nap", 0, session_id=SESSION)
        async with spending() as spent:
            await becomes(client, next_one, TaskStatus.COMPLETE, timeout_s=60)
        assert spent.s < 6
        async with spending() as spent:
            await becomes(client, task, TaskStatus.CANCELLED, timeout_s=60)
        assert spent.s < 6
        assert proxy.swallowed
        assert proxy.half_open() >= 2
        async with spending() as spent:
            assert await stop(process) == 0
        assert spent.s < 10


async def test_a_worker_that_does_not_poll_does_not_look_alive(
    store: RedisStateStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_STALLED_S", 0.4)

    async def answer(_: TaskContext) -> int:
        return 42

    own = store.settings.model_copy(
        update={"queue_url": SecretStr(proxy.url), "call_timeout_s": 0.5}
    )
    worker = agent(own, {"answer": answer}, name="one", interval_s=0.1)

    async def found(client: TaskClient, *, stalled: bool) -> WorkerInfo | None:
        info = (await listed(client, "one"))["one"]
        return info if info.stalled is stalled else None

    async with client_of(store) as client, serving(worker):
        polling = await eventually(lambda: found(client, stalled=False), "it polls")
        assert polling is not None
        assert polling.last_poll_ms is not None
        proxy.refuse()
        assert proxy.half_open()
        info = await eventually(lambda: found(client, stalled=True), "it does not poll")
        assert info is not None
        assert info.unpolled_s is not None
        # It describes itself all the while.
        assert info.silent_s < info.unpolled_s - 0.4
        proxy.refuse(refusing=False)
        task = await client.submit("answer", session_id=SESSION)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 42
        await eventually(lambda: found(client, stalled=False), "it polls again")


async def test_a_job_is_queued_in_time_over_connections_that_have_died(
    store: RedisStateStore, proxy: Proxy
) -> None:
    own = through(store.settings, proxy, call_timeout_s=1.5)
    async with RedisStateStore(own) as through_it:
        queue = Queue(through_it, name=queue_of(own))
        await asyncio.gather(*(queue.put(Job(SESSION, f"t{n}", 0, 0)) for n in range(3)))
        assert proxy.half_open() == 1
        async with spending() as spent:
            await queue.put(Job(SESSION, "late", 0, 0))
        assert spent.s < 1.5
        assert proxy.swallowed
        assert len(await queued(store)) == 4
        await queue.clear()


async def test_a_task_that_is_written_and_not_queued_is_not_said_not_to_be_there(
    store: RedisStateStore, proxy: Proxy
) -> None:
    """Who repeats without an id what is said not to have happened, has two tasks."""
    own = store.settings.model_copy(
        update={"queue_url": SecretStr(proxy.url), "call_timeout_s": 0.5}
    )
    proxy.refuse()
    async with RedisStateStore(own) as apart, TaskClient(apart, queue=queue_of(own)) as client:
        with pytest.raises(OutcomeUnknown, match="written, then: "):
            await client.submit("answer", session_id=SESSION)
        (task,) = await store.list_tasks(SESSION)
        assert task.status is TaskStatus.PENDING
        await client.cancel(SESSION, task.task_id)
        with pytest.raises(OutcomeUnknown):
            await client.retry(SESSION, task.task_id)
        (task,) = await store.list_tasks(SESSION)
        assert task.status is TaskStatus.PENDING


async def test_a_worker_is_still_woken_after_its_subscription_has_died(
    store: RedisStateStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribing, "_SILENT_S", 0.2)
    monkeypatch.setattr(queue_loop, "_LISTEN_AGAIN_S", 0.05)

    async def answer(_: TaskContext) -> int:
        return 42

    own = through(store.settings, proxy, call_timeout_s=0.5)
    # It looks by itself after an hour.
    worker = replace(agent(own, {"answer": answer}), poll_s=3600.0)
    async with client_of(store) as client, serving(worker):

        async def answered() -> None:
            task = await client.submit("answer", session_id=SESSION)
            assert (await client.wait(SESSION, task, timeout_s=60)).result == 42

        async def listening() -> bool:
            channel = f"{key_of_queue(store.settings)}:wake"
            return await subscribers(store.transport, channel) == [1]

        await eventually(listening, "it listens")
        await answered()
        assert proxy.half_open()
        await eventually(lambda: proxy.swallowed > 0, "a ping is lost")
        await eventually(listening, "it listens again")
        await answered()
