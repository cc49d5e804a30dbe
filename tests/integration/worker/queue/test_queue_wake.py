"""A worker that waits is woken by what is put; its polling, made slow here, is only the net."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("arq")

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import CommandRefused
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import AgentWorker, TaskClient, TaskContext
from redis_state.worker.queue.jobs.job import Job, QueueState
from redis_state.worker.queue.queue import Queue
from tests.support.processes.pools import (
    SESSION,
    agent,
    client_of,
    key_of_queue,
    queue_of,
    queued,
    serving,
)
from tests.support.servers.sets.nodes import ask_each, subscribers

pytestmark = pytest.mark.worker

# Longer than a test may take: without being woken, none of them ends.
NEVER_S = 600.0


async def work(_context: TaskContext) -> str:
    return "done"


def patient(settings: Settings, **options: Any) -> AgentWorker:
    return AgentWorker(
        {"work": work}, settings=settings, queue=queue_of(settings), poll_s=NEVER_S, **options
    )


async def listeners(store: RedisStateStore, *queues: str) -> list[int]:
    named = queues or (queue_of(store.settings),)
    channels = [store.base.keys.queue(queue).channel for queue in named]
    return await subscribers(store.transport, *channels)


async def hears(store: RedisStateStore, *queues: str) -> None:
    async def all_of_them() -> bool:
        return min(await listeners(store, *queues)) > 0

    await eventually(all_of_them, "the worker listens to its queues")


async def completes(client: TaskClient, task_id: str) -> None:
    state = await client.wait(SESSION, task_id, timeout_s=30)
    assert state.status is TaskStatus.COMPLETE


async def test_a_task_is_begun_although_the_queue_is_hardly_ever_asked(
    store: RedisStateStore,
) -> None:
    queue = queue_of(store.settings)
    async with serving(patient(store.settings)), TaskClient(store, queue=queue) as client:
        await hears(store)
        for _ in range(5):
            await completes(client, await client.submit("work", session_id=SESSION))


async def test_a_slot_that_becomes_free_is_used_at_once(store: RedisStateStore) -> None:
    queue = queue_of(store.settings)
    async with TaskClient(store, queue=queue) as client:
        tasks = [await client.submit("work", session_id=SESSION) for _ in range(6)]
        async with serving(patient(store.settings, max_tasks=1)):
            for task_id in tasks:
                await completes(client, task_id)


async def test_each_queue_of_a_worker_wakes_it(store: RedisStateStore) -> None:
    queues = [f"{queue_of(store.settings)}-{name}" for name in ("first", "second")]
    worker = patient(store.settings).with_queues(*queues)
    async with serving(worker), TaskClient(store, queue=queues[0]) as client:
        await hears(store, *queues)
        for queue in queues:
            async with TaskClient(store, queue=queue) as other:
                await completes(client, await other.submit("work", session_id=SESSION))


async def test_a_worker_whose_subscription_was_cut_listens_again(store: RedisStateStore) -> None:
    queue = queue_of(store.settings)
    async with serving(patient(store.settings)), TaskClient(store, queue=queue) as client:
        await hears(store)
        assert sum(await ask_each(store.transport, "CLIENT", "KILL", "TYPE", "pubsub")) > 0
        await hears(store)
        await completes(client, await client.submit("work", session_id=SESSION))


@asynccontextmanager
async def putting_as(store: RedisStateStore, *rules: str) -> AsyncGenerator[Queue]:
    """Give a queue whose server knows us as a user of so many rights only."""
    user = f"narrow-{store.settings.namespace}"
    rights = ["on", ">secret", "~*", "+@all", *rules]
    await ask_each(store.transport, "ACL", "SETUSER", user, *rights)
    scheme, _, place = store.settings.url.get_secret_value().partition("://")
    url = SecretStr(f"{scheme}://{user}:secret@{place}")
    narrow = RedisStateStore(store.settings.model_copy(update={"queue_url": url}))
    queue = Queue(narrow, name=queue_of(store.settings))
    try:
        yield queue
    finally:
        await queue.aclose()
        await ask_each(store.transport, "ACL", "DELUSER", user)
        await store.transport.sender.send("DEL", key_of_queue(store.settings), repeatable=True)


@pytest.mark.role("any", why="it makes users")
async def test_who_must_not_publish_still_puts(store: RedisStateStore) -> None:
    async with putting_as(store, "resetchannels") as queue:
        await queue.put(Job(SESSION, "task", 0, 0))
        assert await queue.ensure_queued([Job(SESSION, "other", 0, 0)]) == [QueueState.QUEUED]
        assert len(await queued(store)) == 2


@pytest.mark.role("any", why="it makes users")
async def test_who_must_not_write_is_told(store: RedisStateStore) -> None:
    async with putting_as(store, "allchannels", "-zadd") as queue:
        with pytest.raises(CommandRefused):
            await queue.put(Job(SESSION, "task", 0, 0))
        with pytest.raises(CommandRefused):
            await queue.ensure_queued([Job(SESSION, "task", 0, 0)])
        assert await queued(store) == []


@pytest.mark.role("any", why="it makes users")
async def test_a_worker_that_nobody_wakes_asks_by_itself(store: RedisStateStore) -> None:
    async with client_of(store) as client, serving(agent(store.settings, {"work": work})):
        await hears(store)
        await completes(client, await client.submit("work", session_id=SESSION))
        async with putting_as(store, "resetchannels") as queue:
            task_id = await client.submit("work", session_id=SESSION, queue="elsewhere")
            await queue.put(Job(SESSION, task_id, 0, 0))
            await completes(client, task_id)


async def test_a_job_that_is_put_again_wakes_and_one_that_is_there_does_not(
    store: RedisStateStore,
) -> None:
    queue = Queue(store, name=queue_of(store.settings))
    job = Job(SESSION, "task", 0, 0)
    listening = queue.listen(queue.name)
    assert await listening.next() is None
    assert await queue.ensure_queued([job]) == [QueueState.QUEUED]
    assert await listening.next() == b""
    assert await queue.ensure_queued([job]) == [QueueState.WAITS]
    await queue.put(job)
    await queue.clear()
    await queue.put(job)
    assert await listening.next() == b""
    assert await listening.next(within_s=0.2) is None
    await queue.clear()
    store.transport.subscriber.unsubscribe(listening)
