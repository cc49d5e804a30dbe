"""A task whose journal has lost entries while it waited is a dead letter. No step runs again."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskState, TaskStatus
from redis_state.worker import TaskContext
from redis_state.worker.tasks.views.dead_list import list_first_dead
from tests.support.processes.pools import SESSION, client_of
from tests.support.tasks.children import child_of, sweep
from tests.support.tasks.runs import TASK, make, run_once
from tests.support.tasks.waitpoints import tokens_of

PAUSES = ["pause", "message", "child"]


async def send(store: RedisStateStore, *command: str | bytes | int) -> Any:
    return await store.transport.sender.send(*command, repeatable=True)


class Work:
    """A handler that records two steps, and then waits."""

    def __init__(self, store: RedisStateStore, waits: str) -> None:
        self.done: list[str] = []
        self._store = store
        self._waits = waits

    async def run(self, ctx: TaskContext) -> list[str]:
        if ctx.task.task_id != TASK:
            return []
        await ctx.step("a", self.done.append, "a")
        await ctx.step("b", self.done.append, "b")
        if self._waits == "pause":
            await ctx.approval("May I?", name="may")
        elif self._waits == "message":
            await ctx.receive("go")
        else:
            await ctx.join(await ctx.spawn("h"))
        return self.done

    async def begin(self) -> str:
        """Leave a task that waits; return the key of its journal."""
        await make(self._store)
        assert (await self.again()).status is TaskStatus.PAUSED
        return self._store.base.keys.journal(SESSION, TASK)

    async def again(self) -> TaskState:
        return await run_once(self._store, self.run)

    async def end_wait(self) -> None:
        """Do what the task waits for."""
        async with client_of(self._store) as client:
            if self._waits == "pause":
                tokens = await tokens_of(self._store, TASK, 1)
                await client.approve(tokens["may"], "anna")
            elif self._waits == "message":
                await client.signal(SESSION, TASK, "go")
            else:
                [child] = await child_of(client, TASK)
                await run_once(self._store, self.run, task_id=child.task_id)
                await sweep(self._store, TASK)


@pytest.mark.parametrize("waits", PAUSES)
@pytest.mark.parametrize("gone", ["step:a#1", None])
@pytest.mark.role("any", why="it damages a key")
async def test_a_journal_that_lost_entries_while_its_task_waited_fails_it(
    store: RedisStateStore, waits: str, gone: str | None
) -> None:
    work = Work(store, waits)
    journal = await work.begin()
    if gone is None:
        await send(store, "DEL", journal)
    else:
        assert await send(store, "HDEL", journal, gone) == 1
    await work.end_wait()
    ended = await work.again()
    assert ended.status is TaskStatus.FAILED
    assert work.done == ["a", "b"]
    assert f"CorruptState: {journal}: it has " in (ended.error or "")
    assert [dead.task_id for dead in await list_first_dead(store, 10)] == [TASK]


@pytest.mark.parametrize("waits", PAUSES)
@pytest.mark.role("any", why="it damages a key")
async def test_a_retry_goes_on_with_a_repaired_journal(store: RedisStateStore, waits: str) -> None:
    work = Work(store, waits)
    journal = await work.begin()
    row = await send(store, "HGET", journal, "step:b#1")
    await send(store, "HDEL", journal, "step:b#1")
    await work.end_wait()
    assert (await work.again()).status is TaskStatus.FAILED
    await send(store, "HSET", journal, "step:b#1", row)
    async with client_of(store) as client:
        await client.retry(SESSION, TASK)
    ended = await work.again()
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, ["a", "b"])


@pytest.mark.role("any", why="it damages a key")
async def test_a_retry_without_the_entries_does_their_steps_again(store: RedisStateStore) -> None:
    work = Work(store, "pause")
    journal = await work.begin()
    await send(store, "HDEL", journal, "step:a#1")
    await work.end_wait()
    assert (await work.again()).status is TaskStatus.FAILED
    async with client_of(store) as client:
        await client.retry(SESSION, TASK)
    assert (await work.again()).status is TaskStatus.COMPLETE
    assert work.done == ["a", "b", "a"]


@pytest.mark.parametrize("waits", PAUSES)
async def test_a_retry_that_leaves_entries_out_is_no_damage(
    store: RedisStateStore, waits: str
) -> None:
    """The count of before is that of a longer journal."""
    work = Work(store, waits)
    await work.begin()
    await work.end_wait()
    fails = True

    async def handler(ctx: TaskContext) -> list[str]:
        done = await work.run(ctx)
        await ctx.step("c", work.done.append, "c")
        if fails:
            raise ValueError("c")
        return done

    assert (await run_once(store, handler)).status is TaskStatus.FAILED
    # As a retry of an earlier version does, which knows no count.
    await send(store, "HDEL", store.base.keys.journal(SESSION, TASK), "step:c#1", "step:b#1")
    async with client_of(store) as client:
        await client.retry(SESSION, TASK)
    fails = False
    assert (await run_once(store, handler)).status is TaskStatus.COMPLETE
