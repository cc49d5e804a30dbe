"""A unit that ends with its run: nobody else's cancellation is lost there, and none is left."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.integrations.agent_runs.units import ended_by
from redis_state.models import TaskStatus
from redis_state.worker import TaskCancelled, TaskContext
from tests.support.tasks.runs import run_to_the_end

pytestmark = pytest.mark.worker


async def turn(count: int) -> None:
    """Let other asyncio tasks run, so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def is_cancelled(ctx: TaskContext, turns: int) -> bool:
    """Cancel who is in a unit, or leaves it, so many turns behind its beginning."""

    async def unit() -> None:
        async with ended_by(ctx.inbox):
            await turn(3)
        await turn(50)

    doing = asyncio.create_task(unit())
    await turn(turns)
    doing.cancel()
    await asyncio.wait({doing})
    return doing.cancelled()


async def test_a_cancellation_at_any_turn_of_the_loop_ends_who_is_in_a_unit(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> list[int]:
        return [turns for turns in range(20) if not await is_cancelled(ctx, turns)]

    state = await run_to_the_end(store, handler)
    assert (state.status, state.result) == (TaskStatus.COMPLETE, [])


async def test_a_unit_that_handles_its_cut_ends_with_the_task_and_leaves_no_cancellation(
    store: RedisStateStore,
) -> None:
    left: list[int] = []

    async def handled(ctx: TaskContext) -> None:
        async with ended_by(ctx.inbox):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def unit(ctx: TaskContext) -> None:
        with pytest.raises(TaskCancelled):
            await handled(ctx)
        doing = asyncio.current_task()
        assert doing is not None
        left.append(doing.cancelling())

    async def handler(ctx: TaskContext) -> None:
        doing = asyncio.create_task(unit(ctx))
        await turn(3)
        ctx.inbox.cancel("enough")
        await doing

    state = await run_to_the_end(store, handler)
    assert state.status is TaskStatus.CANCELLED
    assert left == [0]
