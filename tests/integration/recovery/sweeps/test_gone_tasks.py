"""A task that is gone leaves no entry on the watch list, in whatever band it was."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.erasure import Eraser
from redis_state.primitives.watchlist.watchlist import ENDED_MS, WatchList, check_after
from redis_state.testing import eventually
from redis_state.worker.tasks.move_parts import watch_entry
from tests.support.processes.pools import SESSION, watched
from tests.support.scripts.replies import HOUR
from tests.support.tasks.crash_states import (
    close_queues,
    make_due,
    paused,
    send,
    sweeper_of,
)


@pytest.fixture(autouse=True)
async def _no_queue_stays_open() -> AsyncIterator[None]:
    yield
    await close_queues()


async def _cleared(store: RedisStateStore, task: str) -> None:
    await store.tasks.clear(SESSION, task)


async def _erased(store: RedisStateStore, _: str) -> None:
    async with Eraser(store) as eraser:
        await eraser.forget(SESSION)


async def _expired(store: RedisStateStore, task: str) -> None:
    keys = store.tasks.keys(SESSION, task)
    await send(store, "PEXPIRE", keys.task, 0)
    await make_due(store, watch_entry(SESSION, task))


@pytest.mark.role("any", why="erasing reads the names of all keys")
@pytest.mark.parametrize("goes", [_cleared, _erased, _expired])
@pytest.mark.parametrize("delay_ms", [HOUR, check_after(HOUR), ENDED_MS])
async def test_the_entry_of_a_task_that_is_gone_is_removed(
    store: RedisStateStore,
    goes: Callable[[RedisStateStore, str], Awaitable[None]],
    delay_ms: int,
) -> None:
    task, _ = await paused(store)
    watch = WatchList(store.base.scripts, store.base.keys)
    await watch.put(watch_entry(SESSION, task), delay_ms=delay_ms, sooner=True)
    await goes(store, task)
    sweeper = sweeper_of(store)

    async def is_removed() -> bool:
        await sweeper.run_once()
        return not await watched(store)

    await eventually(is_removed, "the entry is removed")
