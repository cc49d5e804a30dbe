"""A task whose journal is damaged is a dead letter that says so. Its worker goes on."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskState, TaskStatus
from redis_state.worker import TaskContext
from redis_state.worker.tasks import transitions
from redis_state.worker.tasks.views.dead_list import list_first_dead
from tests.support.processes.pools import SESSION, client_of, pool
from tests.support.samples import changed
from tests.support.servers.proxies.command_proxy import CommandProxy
from tests.support.tasks.runs import TASK, begin_again, make, run_once

DENIED = "NOPERM this user has no permissions to access one of the keys"


def journal_of(store: RedisStateStore) -> str:
    return store.base.keys.journal(SESSION, TASK)


async def send(store: RedisStateStore, *command: str | bytes | int) -> Any:
    return await store.transport.sender.send(*command, repeatable=True)


async def damage(store: RedisStateStore) -> bytes:
    """Put something else in the place of a journal; return what repairs it."""
    key = journal_of(store)
    was: bytes = await send(store, "DUMP", key)
    await send(store, "SET", key, "x", "PX", 60_000)
    return was


async def repair(store: RedisStateStore, was: bytes) -> None:
    await send(store, "RESTORE", journal_of(store), 60_000, was, "REPLACE")


async def check_damaged(store: RedisStateStore, ended: TaskState) -> None:
    """Check that a task is a dead letter by its journal, and that nobody counts as dead."""
    assert ended.status is TaskStatus.FAILED
    why = f"{journal_of(store)}: "
    assert (ended.error or "").startswith(f"the task cannot be read: CorruptState: {why}")
    assert "another type" in (ended.error or "")
    assert [dead.task_id for dead in await list_first_dead(store, 10)] == [TASK]
    view = await store.tasks.look(SESSION, TASK)
    assert view is not None
    assert view.crashes == 0
    assert view.left_ms == 0


@pytest.mark.role("any", why="it damages a key")
async def test_a_damaged_journal_fails_its_task_at_once_and_a_repaired_one_is_continued(
    store: RedisStateStore,
) -> None:
    done, interrupted = list[str](), list[bool]()

    async def handler(ctx: TaskContext) -> list[str]:
        await ctx.step("a", done.append, "a")
        if not interrupted:
            interrupted.append(True)
            begin_again()
        return done

    await make(store)
    assert (await run_once(store, handler)).status is TaskStatus.PENDING
    was = await damage(store)
    await check_damaged(store, await run_once(store, handler))
    await repair(store, was)
    async with client_of(store) as client:
        await client.retry(SESSION, TASK)
    ended = await run_once(store, handler)
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, ["a"])


@pytest.mark.role("any", why="it damages a key")
async def test_a_journal_that_is_damaged_in_a_run_fails_its_task_too(
    store: RedisStateStore,
) -> None:
    kept: list[bytes] = []

    async def handler(ctx: TaskContext) -> str:
        await ctx.step("a", str, "a")
        if not kept:
            kept.append(await damage(store))
        return "done"

    await make(store)
    assert (await run_once(store, handler)).status is TaskStatus.PENDING
    await check_damaged(store, await run_once(store, handler))
    await repair(store, kept[0])
    async with client_of(store) as client:
        await client.retry(SESSION, TASK)
    assert (await run_once(store, handler)).result == "done"


@pytest.mark.role("any", why="it damages a key")
async def test_a_worker_runs_other_tasks_behind_one_whose_journal_is_damaged(
    store: RedisStateStore,
) -> None:
    runs: list[str] = []

    async def work(ctx: TaskContext) -> str:
        runs.append(ctx.task.task_id)
        if ctx.task.task_id == TASK:
            await ctx.step("a", str, "a")
            await damage(store)
            begin_again()
        return ctx.task.task_id

    async with pool(store, {"work": work}) as client:
        for task in (TASK, "other"):
            await client.submit("work", session_id=SESSION, task_id=task)
        ended = await client.wait(SESSION, TASK, timeout_s=60)
        assert (await client.wait(SESSION, "other", timeout_s=60)).result == "other"
    await check_damaged(store, ended)
    assert sorted(runs) == ["other", TASK]


@pytest.mark.chaos
async def test_a_journal_that_this_user_may_not_read_is_left_to_other_workers(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []

    async def handler(ctx: TaskContext) -> str:
        runs.append(ctx.attempt)
        await ctx.step("a", str, "a")
        if len(runs) == 1:
            begin_again()
        return "done"

    await make(store)
    async with (
        CommandProxy(store.settings.url.get_secret_value()) as proxy,
        changed(store.settings, url=proxy.url) as behind,
    ):
        assert (await run_once(behind, handler)).status is TaskStatus.PENDING
        # A longer journal than comes with a start.
        monkeypatch.setattr(transitions, "STARTED_BYTES", 0)
        with proxy.answer("read_journal", DENIED):
            state = await run_once(behind, handler)
    view = await store.tasks.look(SESSION, TASK)
    assert view is not None
    assert (state.status, view.crashes, view.left_ms) == (TaskStatus.PENDING, 0, 0)
    assert (await run_once(store, handler)).result == "done"
    assert len(runs) == 2
