"""What the tests of workers share: a worker in this process, and a client of its queue."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from redis_state import RedisStateStore, Settings
from redis_state.models import (
    StateUpdate,
    SteeringEvent,
    SteeringEventType,
    TaskState,
    TaskStatus,
)
from redis_state.testing import eventually
from redis_state.transport.keys import Keys
from redis_state.worker import AgentWorker, Handler, TaskClient

SESSION = "s"


def agent(settings: Settings, handlers: Mapping[str, Handler], **options: Any) -> AgentWorker:
    """Make a worker on the test's own queue."""
    return AgentWorker(
        handlers, settings=settings, queue=queue_of(settings), poll_s=0.01, **options
    )


def queue_of(settings: Settings) -> str:
    """Name the test's own queue. Beside its namespace: a job may outlive a worker that stops."""
    return f"queue-{settings.namespace}"


def key_of_queue(settings: Settings, queue: str | None = None) -> str:
    """Name the key of the test's own queue, or of another one."""
    return Keys(settings.namespace).queue(queue or queue_of(settings)).queue


@asynccontextmanager
async def serving(worker: AgentWorker) -> AsyncGenerator[asyncio.Task[None], None]:
    """Serve for the length of the block, then hand over what still runs."""
    task = asyncio.create_task(worker.serve(handle_signals=False))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()


@asynccontextmanager
async def pool(
    store: RedisStateStore, handlers: Mapping[str, Handler], **options: Any
) -> AsyncGenerator[TaskClient, None]:
    """Serve handlers, and give a client of theirs."""
    worker = agent(store.settings, handlers, **options)
    async with serving(worker), client_of(store) as client:
        yield client


@asynccontextmanager
async def client_of(store: RedisStateStore) -> AsyncGenerator[TaskClient, None]:
    """Give a client of the test's queue: over HTTP, if `make test-http-client` asks for that."""
    async with TaskClient(store, queue=queue_of(store.settings)) as client:
        if os.environ.get("REDIS_STATE_TEST_CLIENT") != "http":
            yield client
            return
        from tests.support.http.half_http import half_over_http  # noqa: PLC0415 - it imports this

        async with half_over_http(client) as half:
            yield half


async def becomes(
    client: TaskClient,
    task_id: str,
    status: TaskStatus,
    *,
    session_id: str = SESSION,
    timeout_s: float = 30.0,
) -> TaskState:
    """Wait until a task is in a state."""

    async def found() -> TaskState | None:
        state = await client.get(session_id, task_id)
        return state if state is not None and state.status is status else None

    state = await eventually(found, f"{task_id} is {status.value}", timeout_s=timeout_s)
    assert state is not None
    return state


async def found_are(client: TaskClient, status: TaskStatus, count: int, **filters: Any) -> None:
    """Wait until so many tasks are found in a state: the index follows behind their records."""

    async def so_many() -> bool:
        page = await client.find(status=status, **filters)
        return len({task.task_id for task in page.tasks}) == len(page.tasks) == count

    await eventually(so_many, f"{count} are found as {status.value}", timeout_s=60)


async def updates_of(store: RedisStateStore, task_id: str) -> list[StateUpdate]:
    """List a task's updates."""
    return await store.list_updates(SESSION, task_id=task_id)


async def statuses(store: RedisStateStore, task_id: str) -> list[str]:
    """List the states that a task was told to be in."""
    return [
        update.content["status"]
        for update in await updates_of(store, task_id)
        if update.update_type.value == "STATUS_CHANGE"
    ]


async def steered_before(
    store: RedisStateStore, task_id: str, kind: SteeringEventType, **payload: Any
) -> None:
    """Steer a task that is not there yet, as a host may that saves events itself."""
    event = SteeringEvent(
        session_id=SESSION, task_id=task_id, event_type=kind, payload=payload, source="host"
    )
    await store.save_steering(event)


async def open_token(store: RedisStateStore, task_id: str, *, after: int = 0) -> str:
    """Wait for a task's pause, and for no earlier than the one after so many; return its id.

    The task has stopped by then: decided between opening and stopping, it would go on in its run.
    """

    async def found() -> str | None:
        tokens: list[str] = [
            update.content["pause_id"]
            for update in await updates_of(store, task_id)
            if update.update_type.value == "CHECKPOINT"
        ]
        state = await store.tasks.load(SESSION, task_id)
        stopped = state is not None and state.status is not TaskStatus.RUNNING
        return tokens[after] if len(tokens) > after and stopped else None

    token = await eventually(found, f"{task_id} is paused for the {after + 1}th time")
    assert token is not None
    return token


async def watched(store: RedisStateStore) -> int:
    """Count the entries of the watch list."""
    sender = store.transport.sender
    counts = [
        await sender.send("ZCARD", store.base.keys.watch(shard), repeatable=True)
        for shard in range(16)
    ]
    return sum(map(int, counts))


async def queued(store: RedisStateStore) -> list[str]:
    """List what the queue holds, the first to be taken first, without the namespace."""
    sender = store.transport.sender
    found: list[bytes] = await sender.send(
        "ZRANGE", key_of_queue(store.settings), 0, -1, repeatable=True
    )
    return [name.decode().removeprefix(f"{store.base.keys.jobs_tag}/") for name in found]


def job_of(store: RedisStateStore, task_id: str, epoch: int = 0) -> str:
    """Name the job of a task's run, as the queue has it."""
    return f"{store.base.keys.jobs_tag}/{SESSION}/{task_id}:{epoch}"


def arq_key(store: RedisStateStore, kind: str, task_id: str, epoch: int = 0) -> str:
    """Name one of the keys that arq keeps of a task's job."""
    return f"arq:{kind}:{job_of(store, task_id, epoch)}"
