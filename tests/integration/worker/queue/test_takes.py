"""Takes of a rate: what waits for one, and what each attempt of a step takes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.worker import Budget, Rate, RetryPolicy, TaskContext, guarded, retried
from redis_state.worker.queue.queue import Queue
from redis_state.worker.queue.rates import take
from tests.support.processes.pools import SESSION, pool, statuses
from tests.support.servers.command_proxy import CommandProxy


async def test_each_attempt_of_a_step_takes(store: RedisStateStore) -> None:
    rate = Rate(10, timedelta(days=1))

    async def call(ctx: TaskContext) -> None:
        await ctx.take("model", rate)
        raise ConnectionError

    async def handler(ctx: TaskContext) -> None:
        policy = RetryPolicy(attempts=3, wait_initial_s=0, wait_jitter_s=0)
        await ctx.take("model", rate)
        with pytest.raises(ConnectionError):
            await ctx.step("call", retried(call, policy), ctx)
        await ctx.step("call", retried(call, policy), ctx)

    async with pool(store, {"h": handler}) as client:
        task = await client.submit("h", session_id=SESSION)
        await client.wait(SESSION, task)
        assert [await take(Queue(store), "model", rate, cost) > 0 for cost in (4, 3)] == [
            True,
            False,
        ]


async def test_an_undo_waits_for_a_rate_and_keeps_its_worker(store: RedisStateStore) -> None:
    rate = Rate(1, timedelta(seconds=1.2))

    async def handler(ctx: TaskContext) -> None:
        async def refund() -> None:
            await ctx.take("refunds", rate)

        ctx.on_failure(refund)
        await ctx.take("refunds", rate)
        raise ValueError("no")

    async with pool(store, {"h": handler}) as client:
        task = await client.submit("h", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.error == "ValueError: no; undone: refund#1"


async def test_short_waits_in_a_row_free_the_worker_and_are_no_steps(
    store: RedisStateStore,
) -> None:
    rate = Rate(1, timedelta(seconds=0.4))

    async def handler(ctx: TaskContext) -> str:
        await ctx.take("model", rate)
        return "taken"

    async def steal() -> None:
        while not await take(Queue(store), "model", rate, 1):
            pass

    handlers = {"h": guarded(Budget(steps=1))(handler)}
    async with CommandProxy(store.settings.url.get_secret_value()) as proxy:
        settings = store.settings.model_copy(update={"url": SecretStr(proxy.url)})
        async with RedisStateStore(settings) as near:
            with proxy.meanwhile("take_rate", steal, times=3):
                async with pool(near, handlers) as client:
                    task = await client.submit("h", session_id=SESSION)
                    ended = await client.wait(SESSION, task, timeout_s=60)
                    assert (ended.error, ended.result) == (None, "taken")
                    assert "PAUSED" in await statuses(store, task)
                    assert len(await client.snapshots(SESSION, task)) == 1
