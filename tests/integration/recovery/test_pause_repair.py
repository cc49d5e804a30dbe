"""The lists of open pauses are gone: sweepers list what tasks wait for again."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.worker import TaskContext
from redis_state.worker.recovery.sweeper import Sweeper
from redis_state.worker.tasks.moves import watch_entry
from tests.support.processes.pools import SESSION, becomes, pool
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
