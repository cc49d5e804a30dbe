"""A worker and its clients when the queue's server is no longer the primary."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import BackendUnavailable
from redis_state.worker import TaskContext
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from tests.integration.transport.connections.test_failover import Pair, a_pair
from tests.support.processes.pools import SESSION, pool, queue_of
from tests.support.timing import spending

pytestmark = pytest.mark.worker


@pytest.fixture
async def pair(unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Pair]:
    async with a_pair(unused_tcp_port_factory) as made:
        yield made


async def answer(_: TaskContext) -> int:
    return 42


async def test_a_pool_goes_on_after_a_failover_behind_one_name(pair: Pair) -> None:
    settings = Settings(url=SecretStr(pair.proxy.url), namespace="failover")
    async with (
        RedisStateStore(settings) as store,
        pool(store, {"answer": answer}) as client,
    ):
        task = await client.submit("answer", session_id=SESSION)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 42
        await pair.switch()
        async with spending() as spent:
            for _ in range(3):
                task = await client.submit("answer", session_id=SESSION)
                assert (await client.wait(SESSION, task, timeout_s=60)).result == 42
        assert spent.s < 5


async def test_a_job_that_a_replica_refuses_is_queued_at_the_new_primary(pair: Pair) -> None:
    settings = Settings(url=SecretStr(pair.proxy.url), namespace="failover")
    async with RedisStateStore(settings) as store:
        queue = Queue(store, name=queue_of(settings))
        await queue.put(Job(SESSION, "before", 0, 0))
        await pair.switch()
        async with spending() as spent:
            await queue.put(Job(SESSION, "after", 0, 0))
            await queue.move(Job(SESSION, "after", 0, 1))
        assert spent.s < 1
        assert await pair.replica.send("ZCARD", queue.keys().queue, repeatable=True) == 2


async def test_a_queue_whose_server_stays_a_replica_says_so_at_the_deadline(pair: Pair) -> None:
    url = SecretStr(pair.replica_url)
    settings = Settings(url=url, namespace="failover", call_timeout_s=0.4, connect_timeout_s=0.4)
    async with RedisStateStore(settings) as store:
        queue = Queue(store, name=queue_of(settings))
        began = time.monotonic()
        async with spending() as spent:
            # At the deadline it has been refused, or the next try is on its way.
            with pytest.raises(BackendUnavailable, match=r"is a replica|sent, not answered"):
                await queue.put(Job(SESSION, "t", 0, 0))
        assert time.monotonic() - began >= 0.4
        assert spent.s < 2
