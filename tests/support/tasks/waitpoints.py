"""Tasks that pause, their tokens, and pauses below a handler's."""

from __future__ import annotations

import asyncio
from typing import Any

from redis_state import RedisStateStore
from redis_state.primitives.lease import new_owner
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from redis_state.worker.tasks.waitpoints.open_pauses import list_open_pauses
from redis_state.worker.tasks.waitpoints.pause_model import PauseRequest
from tests.support.processes.pools import SESSION

NAMES = [f"p{number}" for number in range(10)]


async def ten(ctx: TaskContext) -> list[Any]:
    """Open ten pauses at once, then wait for one after the other."""
    pauses = await asyncio.gather(*(ctx.open_pause("which?", name=name) for name in NAMES))
    found = [await ctx.wait_for(pause) for pause in pauses]
    return [[decision.approved, decision.value, decision.actor] for decision in found]


async def ask(ctx: TaskContext) -> list[Any]:
    """Ask for an approval, and return the decision."""
    decision = await ctx.approval("May I?")
    return [decision.approved, decision.value, decision.actor]


async def tokens_of(store: RedisStateStore, task: str, count: int) -> dict[str, str]:
    """Wait until a task has told of so many pauses; return their tokens by name."""

    async def found() -> dict[str, str] | None:
        open_now = await list_open_pauses(store, SESSION)
        tokens = {one.name: one.token for one in open_now if one.task_id == task and one.token}
        return tokens if len(tokens) == count else None

    tokens = await eventually(found, f"{count} pauses are open")
    assert tokens is not None
    return tokens


async def task_of(store: RedisStateStore, task_id: str) -> StartedRun:
    """Start a task that has just been submitted or handed over, as a worker does."""
    found = await TaskTransitions(store).start(
        SESSION, task_id, owner=new_owner(), lease_ms=60_000, worker="w"
    )
    assert isinstance(found, StartedRun), found
    return found


def question(store: RedisStateStore) -> PauseRequest:
    """Make what a handler asks of a pause."""
    return PauseRequest.read(store.settings, "why", None, {"name": "x"}, reveal=True)
