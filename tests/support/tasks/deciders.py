"""A refund that two of three approve, and what is shown of its pause."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import BaseModel, Field

from redis_state import RedisStateStore
from redis_state.worker import OpenPause, TaskClient, TaskContext
from tests.support.processes.pools import SESSION, open_token, updates_of

SECRET = "s3cret"
HOUR = timedelta(hours=1)
THREE = ("ann", "ben", "cid")


class Refund(BaseModel):
    """What is decided."""

    limit: int = Field(ge=1)


async def two_of_three(ctx: TaskContext) -> list[Any]:
    """Ask three for two approvals, and return the decision with its votes."""
    decision = await ctx.approval("Refund?", schema=Refund, approvals=2, of=THREE)
    votes = [[vote.actor, vote.approved, _shown(vote.value)] for vote in decision.votes]
    if ctx.input == "again":
        await ctx.pause("again", name="again")
    return [decision.approved, _shown(decision.value), decision.actor, votes]


def _shown(value: Any) -> Any:
    return f"limit {value.limit}" if isinstance(value, Refund) else value


async def opened(
    store: RedisStateStore, client: TaskClient, handler: str = "ask", given: Any = None
) -> tuple[str, str]:
    """Submit a task; return its id, and the token of its pause."""
    task = await client.submit(handler, given, session_id=SESSION)
    return task, await open_token(store, task)


async def notices(store: RedisStateStore, task: str) -> list[dict[str, Any]]:
    """List the notices of a task."""
    found = await updates_of(store, task)
    return [one.content for one in found if one.update_type.value == "NOTIFICATION"]


async def shown(client: TaskClient, token: str) -> OpenPause:
    """Read a pause that is open."""
    pause = await client.pause(token)
    assert pause is not None
    return pause


async def states(client: TaskClient, token: str) -> dict[str, str]:
    """Give the state of each decider of a pause."""
    return {one.name: one.state for one in (await shown(client, token)).deciders}
