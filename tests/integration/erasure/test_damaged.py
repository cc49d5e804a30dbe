"""A session with a damaged key is not erased by halves without a word: the error names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import CorruptState
from redis_state.transport.keys import Keys
from redis_state.worker import TaskContext
from tests.support.processes.pools import SESSION, pool
from tests.support.tasks.runs import TASK

DAMAGED: dict[str, Callable[[Keys], str]] = {
    "record": lambda keys: keys.task(SESSION, TASK),
    "journal": lambda keys: keys.journal(SESSION, TASK),
    "lease": lambda keys: keys.lease(SESSION, TASK),
    "index": lambda keys: keys.tasks(SESSION),
    "updates": lambda keys: keys.updates(SESSION).rows,
}


async def send(store: RedisStateStore, *command: str | bytes | int) -> Any:
    return await store.transport.sender.send(*command, repeatable=True)


@pytest.mark.parametrize("damaged", list(DAMAGED))
@pytest.mark.role("any", why="it damages a key")
async def test_an_erasure_names_what_is_damaged_and_ends_once_that_is_deleted(
    store: RedisStateStore, damaged: str
) -> None:
    async def work(ctx: TaskContext) -> str:
        return await ctx.step("a", str, "done")

    async with pool(store, {"work": work}) as client:
        await client.submit("work", session_id=SESSION, task_id=TASK)
        await client.wait(SESSION, TASK, timeout_s=30)
        key = DAMAGED[damaged](store.base.keys)
        await send(store, "SET", key, "x", "PX", 60_000)
        with pytest.raises(CorruptState) as told:
            await client.forget(SESSION)
        assert told.value.key == key
        await send(store, "DEL", key)
        await client.forget(SESSION)
    assert await send(store, "KEYS", f"*{{{SESSION}}}:*{TASK}*") == []
    assert await send(store, "KEYS", f"*{{{SESSION}}}:updates*") == []
