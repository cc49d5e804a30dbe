"""A run that waits has left its task by itself: it cleans up, and has lost nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.primitives.lease import Leases
from redis_state.testing import eventually
from redis_state.worker import Handler, TaskContext
from redis_state.worker.observe.stats import WorkerStats
from redis_state.worker.queue.jobs.job import JobPayload
from redis_state.worker.runs.config import RunConfig
from redis_state.worker.runs.run_task import run_task
from redis_state.worker.tasks.children.children import ChildTasks
from redis_state.worker.tasks.waitpoints.pauses import TaskPauses
from tests.support.processes.pools import SESSION, client_of
from tests.support.tasks.runs import TASK, make, run_once

LEASE_S = 0.3


async def run_briefly(store: RedisStateStore, handler: Handler) -> WorkerStats:
    """Run a task once under a short lease; return what the worker counted."""
    leases = Leases(store.base.scripts, keep_ms=60_000)
    run_config = RunConfig(
        {"h": handler}, "worker", LEASE_S, 60.0, 70.0, leases, stats=WorkerStats()
    )
    await run_task(store, run_config, JobPayload(SESSION, TASK), queue="q")
    return run_config.stats


async def pause(ctx: TaskContext) -> None:
    await ctx.pause("x")


async def join(ctx: TaskContext) -> None:
    await ctx.join(await ctx.spawn("child"))


def cleaning(
    wait: Callable[[TaskContext], Awaitable[None]],
    clean: Callable[[], Awaitable[None]],
    cleaned: list[str],
) -> Handler:
    async def handler(ctx: TaskContext) -> None:
        try:
            await wait(ctx)
        finally:
            try:
                await clean()
            except asyncio.CancelledError:
                cleaned.append("cancelled")
                raise
            cleaned.append("done")

    return handler


async def several_beats() -> None:
    await asyncio.sleep(3 * LEASE_S)


@pytest.mark.parametrize("wait", [pause, join])
async def test_who_waits_cleans_up_for_longer_than_a_lease(
    store: RedisStateStore, wait: Callable[[TaskContext], Awaitable[None]]
) -> None:
    cleaned: list[str] = []
    await make(store)
    stats = await run_briefly(store, cleaning(wait, several_beats, cleaned))
    assert cleaned == ["done"]
    assert stats.lease_lost == 0
    async with client_of(store) as client:
        state = await client.get(SESSION, TASK)
    assert state is not None
    assert state.status is TaskStatus.PAUSED


async def test_who_waits_cleans_up_although_the_next_run_has_begun(store: RedisStateStore) -> None:
    cleaned: list[str] = []
    ended: list[TaskStatus] = []

    async def again(ctx: TaskContext) -> str:
        return str((await ctx.pause("x")).value)

    async def next_run() -> None:
        async with client_of(store) as client:
            (open_now,) = await client.pauses(SESSION)
            assert open_now.token is not None
            await client.approve(open_now.token, "yes")
        ended.append((await run_once(store, again)).status)
        await several_beats()

    await make(store)
    stats = await run_briefly(store, cleaning(pause, next_run, cleaned))
    assert (cleaned, ended, stats.lease_lost) == (["done"], [TaskStatus.COMPLETE], 0)


@pytest.mark.parametrize("wait", [pause, join])
async def test_a_cancel_just_before_the_wait_counts_after_a_long_clean_up(
    store: RedisStateStore,
    monkeypatch: pytest.MonkeyPatch,
    wait: Callable[[TaskContext], Awaitable[None]],
) -> None:
    owner, name = (TaskPauses, "wait") if wait is pause else (ChildTasks, "join")
    waiting = getattr(owner, name)
    sent: list[bool] = []
    async with client_of(store) as client:

        async def late(self: Any, *arguments: Any) -> Any:
            sent.append(await client.cancel(SESSION, TASK, reason="late"))
            return await waiting(self, *arguments)

        monkeypatch.setattr(owner, name, late)
        await make(store)
        await run_briefly(store, cleaning(wait, several_beats, []))
        assert sent == [True]

        async def is_cancelled() -> bool:
            state = await client.get(SESSION, TASK)
            return state is not None and state.status is TaskStatus.CANCELLED

        await eventually(is_cancelled, "the task is cancelled")
