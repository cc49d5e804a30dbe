"""A child whose parent's journal is damaged ends as any other does."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from redis_state.worker.tasks.views.dead_list import list_first_dead
from tests.support.processes.pools import SESSION, pool
from tests.support.tasks.runs import TASK


async def send(store: RedisStateStore, *command: str | bytes | int) -> Any:
    return await store.transport.sender.send(*command, repeatable=True)


@pytest.mark.role("any", why="it damages a key")
async def test_a_child_ends_and_its_parent_finds_that_once_its_journal_is_repaired(
    store: RedisStateStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = store.base.keys.journal(SESSION, TASK)
    kept: list[bytes] = []
    runs: list[str] = []

    async def parent(ctx: TaskContext) -> Any:
        child = await ctx.spawn("child")
        return await ctx.join(child)

    async def child(ctx: TaskContext) -> str:
        runs.append(ctx.task.task_id)
        if not kept:
            kept.append(await send(store, "DUMP", journal))
            await send(store, "SET", journal, "x", "PX", 60_000)
        return "of the child"

    async with pool(store, {"parent": parent, "child": child}) as client:
        await client.submit("parent", session_id=SESSION, task_id=TASK)
        ended = await client.wait(SESSION, TASK, timeout_s=30)
        assert ended.status is TaskStatus.FAILED
        assert (ended.error or "").startswith("the task cannot be read: CorruptState: " + journal)
        assert [dead.task_id for dead in await list_first_dead(store, 10)] == [TASK]
        ended = await client.wait(SESSION, runs[0], timeout_s=30)
        assert (ended.status, ended.result) == (TaskStatus.COMPLETE, "of the child")
        await send(store, "RESTORE", journal, 60_000, kept[0], "REPLACE")
        await client.retry(SESSION, TASK)
        assert (await client.wait(SESSION, TASK, timeout_s=30)).result == "of the child"

        async def both_listed() -> bool:
            found = await client.find(session_id=SESSION, status=TaskStatus.COMPLETE)
            return {task.task_id for task in found.tasks} == {TASK, runs[0]}

        await eventually(both_listed, "the index lists both as complete")
    assert len(runs) == 1
    assert not [line for line in caplog.messages if "again" in line]
