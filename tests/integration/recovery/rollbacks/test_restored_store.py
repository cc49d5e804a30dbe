"""The store's server goes back to an earlier state, and the queues' own server does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.primitives.lease import new_owner
from redis_state.testing import eventually
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.queue_history import QueueHistory
from redis_state.worker.recovery.sweeper import Sweeper
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION, client_of, pool, queue_of
from tests.support.scripts.replies import clock_ms, clock_passes
from tests.support.servers.changes.rollback import Rollback, rolling_back
from tests.support.tasks.crash_states import entry_in_ms, make_due, queued_as, send, submitted

# Whatever is due later than this was put off because it was seen in the queue.
_SOON_MS = 65_000
_DAYS = timedelta(days=9)


@pytest.fixture
async def server() -> AsyncIterator[Rollback]:
    async with rolling_back() as started:
        yield started


@pytest.fixture
async def store(settings: Settings, server: Rollback) -> AsyncIterator[RedisStateStore]:
    async with rolling_back() as queues:
        own = {"url": SecretStr(server.url), "queue_url": SecretStr(queues.url)}
        changed = settings.model_copy(update={**own, "call_timeout_s": 2})
        async with RedisStateStore(changed) as opened:
            yield opened


@pytest.fixture
async def queue(store: RedisStateStore) -> AsyncIterator[Queue]:
    opened = Queue(store, name=queue_of(store.settings))
    yield opened
    await opened.aclose()


async def _sweeper(store: RedisStateStore, queue: Queue) -> tuple[Sweeper, QueueHistory]:
    history = QueueHistory(store, queue)
    sweeper = Sweeper(store, queue, lease_ms=400, queues=[queue.name], history=history)

    async def compared() -> bool:
        return not await history.run_once()

    await eventually(compared, "the histories are known", timeout_s=30)
    return sweeper, history


async def test_tasks_that_wait_again_are_queued_at_once_however_long_they_had_waited(
    store: RedisStateStore, queue: Queue, server: Rollback
) -> None:
    sweeper, _ = await _sweeper(store, queue)
    tasks = [await submitted(store) for _ in range(5)]
    for task in tasks:
        key = store.base.keys.task(SESSION, task)
        await send(store, "HINCRBY", key, "order", -(_DAYS // timedelta(microseconds=1)))
        await queued_as(store, task)
        await make_due(store, watch_entry(SESSION, task))
    await sweeper.run_once()
    for task in tasks:
        assert (await entry_in_ms(store, watch_entry(SESSION, task)) or 0) > _SOON_MS
    await server.mark()
    runs: list[str] = []

    async def answer(_: object) -> int:
        runs.append("")
        return len(runs)

    for _ in range(2):
        async with pool(store, {"answer": answer}) as client:
            for task in tasks:
                await client.wait(SESSION, task, timeout_s=20)
            assert (await client.queues.get(queue.name)).waiting == 0
        await server.go_back()
    assert len(runs) == 10


async def test_a_permit_of_a_task_that_is_gone_with_its_worker_is_free_again(
    store: RedisStateStore, queue: Queue, server: Rollback
) -> None:
    """The power of a machine is cut that has the store and a worker. Another worker sweeps on."""
    sweeper, history = await _sweeper(store, queue)
    async with client_of(store) as client:
        await client.queues.limit(queue.name, running=1)
        await server.mark()
        await client.submit("answer", session_id=SESSION)
        [job] = await queue.claim(queue.name, limit=1)
        assert job.task is not None
        started = await TaskTransitions(store).start(
            SESSION, job.task.task_id, owner=new_owner(), lease_ms=60_000, worker="w"
        )
        assert isinstance(started, StartedRun)
        scripts = queue.scripts
        await clock_passes(scripts, await clock_ms(scripts) + 150)
        await sweeper.run_once()
        assert (await client.queues.get(queue.name)).running == 1
        await server.go_back()
        assert await client.get(SESSION, job.task.task_id) is None
        await history.run_once()
        await sweeper.run_once()
        assert (await client.queues.get(queue.name)).running == 0
