"""What a claim takes of its key's rate is there again, whatever keeps its task from beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.testing import eventually
from redis_state.worker import Rate, TaskClient, TaskContext
from redis_state.worker.queue.queue import Queue
from tests.support.processes.pools import SESSION, agent, client_of, queue_of, serving
from tests.support.samples import changed
from tests.support.scripts.replies import clock_ms
from tests.support.servers.proxies.command_proxy import CommandProxy

pytestmark = pytest.mark.worker

_DAY = timedelta(days=1)
_DAY_MS = _DAY // timedelta(milliseconds=1)


class Note:
    """Notes which tasks have begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    async def __call__(self, ctx: TaskContext) -> None:
        self.begun.append(ctx.task.task_id)


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    async with client_of(store) as opened:
        yield opened


async def _submit(client: TaskClient, number: int, *, rate: int) -> list[str]:
    await client.queues.limit(queue_of(client.store.settings), rate=Rate(rate, _DAY))
    return [await client.submit("note", session_id=SESSION, limit_key="k") for _ in range(number)]


async def _taken(store: RedisStateStore, *, rate: int) -> float:
    """Return how many starts of the rate are taken."""
    rates = Queue(store, name=queue_of(store.settings)).keys().rates
    full_at = await store.transport.commands.zscore(rates, "k:k")
    now = await clock_ms(store.base.scripts)
    return 0.0 if full_at is None else round((float(full_at) - now) / _DAY_MS * rate, 2)


async def _claim_and_die(store: RedisStateStore) -> None:
    queue = Queue(store, name=queue_of(store.settings))
    assert len(await queue.claim(queue.name, limit=1)) == 1


async def _never(*_: object, **__: object) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("happened", [False, True])
async def test_a_start_that_the_server_never_heard_of_or_never_answered_takes_nothing(
    settings: Settings,
    store: RedisStateStore,
    client: TaskClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    happened: bool,
) -> None:
    # The worker itself gives it back, without a sweeper.
    monkeypatch.setattr("redis_state.worker.pool.process.sweep_regularly", _never)
    first, second, third = await _submit(client, 3, rate=2)
    note, again = Note(), f"task {first!r} is tried again"
    async with CommandProxy(settings.url.get_secret_value()) as proxy:
        far = changed(settings, url=proxy.url, call_timeout_s=0.5).settings
        # So long a start is tried. And then the run of one that has happened is taken over.
        worker = agent(far, {"note": note}, lease_s=3.0)
        cut = proxy.cut_after if happened else proxy.cut_before
        async with serving(worker):
            with cut("start_task", times=None, holding=first):
                await eventually(lambda: again in caplog.text, "its job is due again")
                assert first not in note.begun
            for task in (first, second):
                await client.result(SESSION, task, timeout_s=30)
    assert sorted(note.begun) == sorted([first, second])
    assert await _taken(store, rate=2) == 2
    await client.cancel(SESSION, third)


async def test_a_worker_that_dies_between_claim_and_begin_takes_nothing(
    store: RedisStateStore, client: TaskClient
) -> None:
    [task] = await _submit(client, 1, rate=1)
    await _claim_and_die(store)
    assert await _taken(store, rate=1) == 1
    note = Note()
    async with serving(agent(store.settings, {"note": note}, lease_s=0.4)):
        await client.result(SESSION, task, timeout_s=30)
    assert note.begun == [task]
    assert await _taken(store, rate=1) == 1


async def test_what_is_cancelled_behind_the_claim_of_a_dead_worker_takes_nothing(
    store: RedisStateStore, client: TaskClient
) -> None:
    first, second = await _submit(client, 2, rate=1)
    await _claim_and_die(store)
    await client.cancel(SESSION, first)
    note = Note()
    async with serving(agent(store.settings, {"note": note}, lease_s=0.4)):
        await client.result(SESSION, second, timeout_s=30)
    assert note.begun == [second]
    assert await _taken(store, rate=1) == 1
