"""A task whose moves cannot be announced is a dead letter that says so, and holds nothing up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import CorruptState
from redis_state.models import TaskState, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from redis_state.worker.tasks.views.dead_list import list_first_dead
from tests.support.processes.pools import SESSION, client_of, pool
from tests.support.tasks.runs import TASK, make, run_once, take

BOTH = pytest.mark.parametrize("part", ["rows", "ids"])


async def send(store: RedisStateStore, *command: str | bytes | int) -> Any:
    return await store.transport.sender.send(*command, repeatable=True)


async def damage(store: RedisStateStore, part: str) -> tuple[str, bytes]:
    """Put something else in the place of a part of the updates; return what repairs it."""
    key: str = getattr(store.updates.keys(SESSION), part)
    was: bytes = await send(store, "DUMP", key)
    await send(store, "SET", key, "x", "PX", 60_000)
    return key, was


async def repair(store: RedisStateStore, kept: tuple[str, bytes]) -> None:
    await send(store, "RESTORE", kept[0], 60_000, kept[1], "REPLACE")


async def check_dead(store: RedisStateStore, ended: TaskState, key: str, script: str) -> None:
    """Check that a task is a dead letter by its updates, and that nobody counts as dead."""
    assert ended.status is TaskStatus.FAILED
    why = f"CorruptState: {key}: {script} found a key of another type"
    assert ended.error == f"the task cannot be read: {why}"
    assert [dead.task_id for dead in await list_first_dead(store, 10)] == [TASK]
    view = await store.tasks.look(SESSION, TASK)
    assert view is not None
    assert (view.crashes, view.left_ms) == (0, 0)


async def retried(
    store: RedisStateStore, handler: Callable[[TaskContext], Awaitable[Any]]
) -> TaskState:
    async with client_of(store) as client:
        await client.retry(SESSION, TASK)
    return await run_once(store, handler)


@BOTH
@pytest.mark.role("any", why="it damages a key")
async def test_a_task_that_cannot_be_started_is_failed_and_a_repaired_one_runs(
    store: RedisStateStore, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(ctx: TaskContext) -> str:
        return await ctx.step("a", str, "done")

    await make(store)
    kept = await damage(store, part)
    ended = await run_once(store, handler)
    await check_dead(store, ended, kept[0], "start_task")
    assert len([line for line in caplog.messages if "is not announced" in line]) == 1
    async with client_of(store) as client:
        with pytest.raises(CorruptState) as refused:
            await client.retry(SESSION, TASK)
    assert kept[0] in str(refused.value)
    await repair(store, kept)
    assert (await retried(store, handler)).result == "done"
    assert [update.content["status"] for update in await store.list_updates(SESSION)] == [
        *("PENDING", "PENDING", "RUNNING", "COMPLETE"),
    ]


@BOTH
@pytest.mark.role("any", why="it damages a key")
async def test_a_run_whose_end_cannot_be_announced_is_failed_and_a_repaired_one_ends(
    store: RedisStateStore, part: str
) -> None:
    kept, steps = list[tuple[str, bytes]](), list[str]()

    async def handler(ctx: TaskContext) -> str:
        await ctx.step("a", steps.append, "a")
        if not kept:
            kept.append(await damage(store, part))
        return "done"

    await make(store)
    await check_dead(store, await run_once(store, handler), kept[0][0], "move_task")
    await repair(store, kept[0])
    assert (await retried(store, handler)).result == "done"
    assert steps == ["a"]


@BOTH
@pytest.mark.role("any", why="it damages a key")
async def test_a_task_of_a_dead_worker_that_cannot_be_taken_over_is_failed(
    store: RedisStateStore, part: str
) -> None:
    async def handler(ctx: TaskContext) -> str:
        return await ctx.step("a", str, "done")

    await make(store)
    await take(store)
    await send(store, "HSET", store.base.keys.lease(SESSION, TASK), "expires", 0)
    kept = await damage(store, part)
    await check_dead(store, await run_once(store, handler), kept[0], "start_task")
    # What it held was deleted: the updates begin anew.
    await send(store, "DEL", kept[0])
    assert (await retried(store, handler)).result == "done"


@BOTH
@pytest.mark.role("any", why="it damages a key")
async def test_a_worker_runs_other_sessions_beside_one_whose_updates_are_damaged(
    store: RedisStateStore, part: str
) -> None:
    async def work(ctx: TaskContext) -> str:
        return ctx.task.task_id

    async with client_of(store) as client:
        for task in (TASK, "second"):
            await client.submit("work", session_id=SESSION, task_id=task)
        await client.submit("work", session_id="another", task_id="third")
    kept = await damage(store, part)
    async with pool(store, {"work": work}) as client:
        assert (await client.wait("another", "third", timeout_s=30)).result == "third"

        for task in (TASK, "second"):
            assert (await ended(store, task)).status is TaskStatus.FAILED
        await repair(store, kept)
        await client.retry(SESSION, TASK)
        assert (await client.wait(SESSION, TASK, timeout_s=30)).result == TASK


async def ended(store: RedisStateStore, task: str) -> TaskState:
    """Wait for an end that no update announces."""
    found: list[TaskState] = []

    async def terminal() -> bool:
        state = await store.tasks.load(SESSION, task)
        found[:] = [] if state is None else [state]
        return bool(found) and found[0].status.is_terminal

    await eventually(terminal, f"{task} has ended")
    return found[0]
