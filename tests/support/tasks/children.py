"""Parents and children under test: what they run, and how far they have come."""

from __future__ import annotations

import asyncio
from typing import Any

from redis_state import RedisStateStore
from redis_state.models import TaskState
from redis_state.testing import eventually
from redis_state.worker import ChildTask, Handler, TaskClient, TaskContext
from redis_state.worker.recovery.report import SweepReport
from redis_state.worker.tasks.children.children import ChildTasks
from redis_state.worker.tasks.children.requests import SpawnRequest
from redis_state.worker.tasks.move_parts import watch_entry
from tests.support.processes.pools import SESSION
from tests.support.tasks.crash_states import make_due, sweeper_of
from tests.support.tasks.runs import make, take


async def double(ctx: TaskContext) -> int:
    """Return twice the input."""
    return int(2 * ctx.input)


def double_of(number: int) -> Handler:
    """Give a handler that returns twice a number."""

    async def handler(_: TaskContext) -> int:
        return 2 * number

    return handler


async def which_run(ctx: TaskContext) -> str:
    """Return which run this is."""
    return f"run {ctx.attempt}"


async def until_cancelled(ctx: TaskContext) -> None:
    """Publish progress, and then pass checkpoints until cancelled."""
    await ctx.progress("begun")
    while True:
        await ctx.checkpoint()
        await asyncio.sleep(0.005)


async def sweep(store: RedisStateStore, task: str) -> SweepReport:
    """Have a sweeper look at a task now."""
    await make_due(store, watch_entry(SESSION, task))
    return await sweeper_of(store).run_once()


async def state_of(store: RedisStateStore, task: str) -> TaskState:
    """Read a task that is there."""
    state = await store.tasks.load(SESSION, task)
    assert state is not None
    return state


async def child_of(client: TaskClient, task: str, *, count: int = 1) -> list[TaskState]:
    """Wait until a task has so many children."""

    async def found() -> list[TaskState] | None:
        children = list(await client.children(SESSION, task))
        return children if len(children) == count else None

    children = await eventually(found, f"{task} has {count} children")
    assert children is not None
    return children


async def spawn_one(store: RedisStateStore, **options: Any) -> ChildTask:
    """Have a running task spawn a child, and leave it running."""
    await make(store)
    started = await take(store)
    requested = SpawnRequest.read(started, "h", None, options)  # type: ignore[arg-type]
    return await ChildTasks(store).spawn(started, "child:h#1", requested)
