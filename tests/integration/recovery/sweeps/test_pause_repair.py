"""The lists of open pauses are gone: sweepers list what tasks wait for again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.worker import TaskContext
from redis_state.worker.recovery.pause_repair import PauseRepair
from redis_state.worker.recovery.sweeper import Sweeper
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.waitpoints.open_pauses import OpenPause, list_open_pauses
from tests.support.processes.pools import SESSION, becomes, pool
from tests.support.servers.sets.nodes import ask_each
from tests.support.tasks.crash_states import make_due

pytestmark = pytest.mark.role("any", why="deletes keys as an operator does")


async def two(ctx: TaskContext) -> list[Any]:
    """Open two pauses, and wait for the first one, then for the second."""
    pauses = [await ctx.open_pause("why", name=name) for name in ("a", "b")]
    return [(await ctx.wait_for(pause)).value for pause in pauses]


@pytest.mark.parametrize("sessions_too", [False, True], ids=["of-all", "of-the-session-too"])
async def test_what_a_task_waits_for_is_listed_again_after_both_lists_were_lost(
    store: RedisStateStore, *, sessions_too: bool
) -> None:
    keys = store.base.keys
    lost = [keys.open_pauses(), keys.opened_pauses()]
    async with pool(store, {"two": two}) as client:
        task = await client.submit("two", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        before = await client.pauses()
        assert [each.name for each in before] == ["a", "b"]
        send = store.transport.sender.send
        for key in lost:
            assert await send("DEL", key, repeatable=True) == 1
        if sessions_too:
            removed = ("ZREMRANGEBYSCORE", keys.tasks(SESSION), "-inf", "(0")
            assert await send(*removed, repeatable=True) == 2
        assert await client.pauses() == []
        sweeper = Sweeper(store, client._queue)
        await make_due(store, watch_entry(SESSION, task))
        await sweeper.run_once()
        found = await client.pauses()
        assert found == (before[:1] if sessions_too else before)
        # Those of one millisecond have no order between them in pages.
        paged = (await client.list_pauses()).pauses
        assert sorted(paged, key=lambda pause: pause.name) == found
        # What is decided is off the list, and stays off.
        for each in before:
            assert each.token is not None
            await client.approve(each.token, each.name)
        done = await client.wait(SESSION, task, timeout_s=60)
        assert done.result == ["a", "b"]
        await make_due(store, watch_entry(SESSION, task))
        await sweeper.run_once()
        assert await client.pauses() == []


@pytest.mark.parametrize("damage", ["another type", "an end that is no number"])
async def test_a_damaged_pause_keeps_no_other_off_the_list(
    store: RedisStateStore, damage: str
) -> None:
    keys, send = store.base.keys, store.transport.sender.send
    async with pool(store, {"two": two}) as client:
        task = await client.submit("two", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        first, second = await client.pauses()
        assert second.pause_id is not None
        damaged = keys.session_token(second.pause_id)
        assert damaged is not None
        if damage == "another type":
            await send("SET", damaged, "x", "PX", 60_000, repeatable=True)
        else:
            await send("HSET", damaged, "expires", "x", repeatable=True)
        # A process of an earlier version has listed it in one of both.
        assert await send("ZREM", keys.opened_pauses(), damaged, repeatable=True) == 1
        assert await client.pauses() == [first]
        for key in (keys.open_pauses(), keys.opened_pauses()):
            assert await send("DEL", key, repeatable=True) == 1
        await make_due(store, watch_entry(SESSION, task))
        await Sweeper(store, client._queue).run_once()
        assert await client.pauses() == [first]


async def many_paused(
    store: RedisStateStore, many: int
) -> tuple[list[TaskStatusView], list[OpenPause]]:
    """Have tasks wait in one session, and lose the lists of all pauses."""
    async with pool(store, {"two": two}) as client:
        tasks = [await client.submit("two", session_id=SESSION) for _ in range(many)]
        for task in tasks:
            await becomes(client, task, TaskStatus.PAUSED)
    # The pool is gone: only the test reads.
    before = await list_open_pauses(store)
    assert len(before) == 2 * many
    keys = store.base.keys
    for key in (keys.open_pauses(), keys.opened_pauses()):
        assert await store.transport.sender.send("DEL", key, repeatable=True) == 1
    found = [await store.tasks.look(SESSION, task) for task in tasks]
    return [view for view in found if view is not None], before


async def reads(store: RedisStateStore) -> int:
    """Count how often the server has read fields of hashes."""
    infos: list[bytes] = await ask_each(store.transport, "INFO", "commandstats")
    counts = [
        line.partition(b"calls=")[2].partition(b",")[0]
        for info in infos
        for line in info.splitlines()
        if line.startswith(b"cmdstat_hmget:")
    ]
    return sum(map(int, counts))


async def test_the_tasks_of_a_session_do_not_each_read_the_tokens_of_all(
    store: RedisStateStore,
) -> None:
    many = 20
    views, before = await many_paused(store, many)
    assert len(views) == many
    repair, read = PauseRepair(store), await reads(store)
    sent = store.transport.sender.batches
    assert await asyncio.gather(*map(repair.settle, views)) == [False] * many
    # Fewer writes than pauses.
    assert store.transport.sender.batches - sent < 2 * many
    # Both tokens of each once, and twice more what each waits for: people, or only time.
    assert await reads(store) - read <= 4 * many
    assert await list_open_pauses(store) == before


async def test_a_session_is_listed_by_another_if_the_first_one_is_cancelled(
    store: RedisStateStore,
) -> None:
    views, before = await many_paused(store, 3)
    repair = PauseRepair(store)
    first, *others = [asyncio.ensure_future(repair.settle(view)) for view in views]
    while not repair._listing:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0)
    assert first.cancel()
    assert await asyncio.gather(*others) == [False, False]
    assert first.cancelled()
    assert await list_open_pauses(store) == before
