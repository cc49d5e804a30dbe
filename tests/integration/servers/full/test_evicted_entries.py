"""The server has evicted a task's entry of the watch list: waiting for the task puts it back."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker.client import client as client_module
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.transitions import TaskTransitions
from redis_state.worker.tasks.views import stream as watching
from tests.support.processes.pools import SESSION, client_of
from tests.support.samples import task as sample_task
from tests.support.tasks.crash_states import (
    close_queues,
    entry_in_ms,
    make_due,
    orphaned,
    send,
    started,
    submitted,
    sweeper_of,
)


async def _evict_entries(store: RedisStateStore) -> None:
    """Evict the watch list, as a server does that evicts whole keys."""
    for shard in range(WATCH_SHARDS):
        await send(store, "DEL", store.base.keys.watch(shard))


@pytest.mark.parametrize("waits", ["wait", "watch"])
async def test_a_task_whose_entry_was_evicted_is_taken_over_because_somebody_waits_for_it(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    for module in (client_module, watching):
        monkeypatch.setattr(module, "_CHECK_EVERY_S", 0.05)
    monkeypatch.setattr(watching, "_CHECK_SOON_MS", 1)
    task = await orphaned(store)
    await _evict_entries(store)
    sweeper = sweeper_of(store)
    assert (await sweeper.run_once()).looked == 0

    async def takes_over() -> bool:
        return (await sweeper.run_once()).taken_over == 1

    async def end() -> None:
        async with client_of(store) as client:
            if waits == "wait":
                assert (await client.wait(SESSION, task)).status is TaskStatus.COMPLETE
            else:
                assert [entry async for entry in client.watch(SESSION, task)]

    try:
        ended = asyncio.create_task(end())
        await eventually(takes_over, "the task is given to another worker", timeout_s=60)
        await TaskTransitions(store).finish_run(await started(store, task), TaskStatus.COMPLETE)
        await asyncio.wait_for(ended, 60)
    finally:
        await close_queues()


async def test_what_stands_on_the_watch_list_keeps_its_time_while_somebody_waits(
    store: RedisStateStore,
) -> None:
    task = await submitted(store)
    entry = watch_entry(SESSION, task)
    await make_due(store, entry)
    await watching.put_back(store, SESSION, task)
    assert (await entry_in_ms(store, entry) or 0) < 0
    # A host's task is no worker's: nothing looks at it.
    await store.save_task(sample_task("of a host"))
    await watching.put_back(store, "session", "of a host")
    assert await entry_in_ms(store, watch_entry("session", "of a host")) is None
