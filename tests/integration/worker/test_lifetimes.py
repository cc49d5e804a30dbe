"""How long the keys of an ended task live."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.worker import TaskContext
from tests.support.processes.pools import SESSION, becomes, open_token, pool
from tests.support.servers.sets.nodes import keys_like

_ENDED = timedelta(minutes=10)


async def work(ctx: TaskContext) -> str:
    """Record a step, and wait for an approval."""
    await ctx.step("one", lambda: "done")
    await ctx.progress("on the way")
    decision = await ctx.approval("go on?")
    if not decision.approved:
        raise RuntimeError("refused")
    return "done"


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_nothing_of_an_ended_task_lives_longer_than_the_task(
    settings: Settings, end: str
) -> None:
    kept: dict[str, Any] = dict.fromkeys(
        ("finished_task_ttl", "updates_ttl", "steering_ttl", "resolved_token_ttl"), _ENDED
    )
    async with RedisStateStore(settings.model_copy(update=kept)) as store:
        async with pool(store, {"work": work}) as client:
            task = await client.submit("work", session_id=SESSION, in_turn=True)
            await becomes(client, task, TaskStatus.PAUSED)
            token = await open_token(store, task)
            await client.steer(SESSION, task, SteeringEventType.USER_MESSAGE, {"text": "well?"})
            match end:
                case "completed":
                    await client.approve(token, actor="ann")
                case "failed":
                    await client.reject(token, actor="ann")
                case _:
                    await client.cancel(SESSION, task)
            await client.wait(SESSION, task, timeout_s=60)
        sent = store.transport.commands
        session = await keys_like(store.transport, f"{settings.namespace}:v1:{{{SESSION}}}:*")
        lives = {key.decode(): await sent.pttl(key.decode()) for key in session}
    assert len(lives) > 6
    # A log lives half as long again. A session's line of turns serves tasks to come. A token may be
    # decided until its deadline.
    open_still = () if end != "cancelled" else ("token:",)
    others = (":turn", *open_still)
    long = {
        key: life
        for key, life in lives.items()
        if life > 2 * _ENDED.total_seconds() * 1000 and not any(name in key for name in others)
    }
    assert long == {}
