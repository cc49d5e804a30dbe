"""A worker process with keys of its own: for the trial that replaces keys while it is killed."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.worker import AgentWorker, TaskContext


async def work(ctx: TaskContext) -> list[Any]:
    """Return all that was sealed: input, results of steps, a child's, a decision, a value."""

    async def slow(text: str) -> str:
        await asyncio.sleep(0.02)
        return text

    one = await ctx.step("one", slow, f"{ctx.input} one")
    await ctx.publish_value("value", f"{ctx.input} value")
    child = await ctx.join(await ctx.spawn("child", ctx.input))
    decision = await ctx.approval(f"{ctx.input}?")
    two = await ctx.step("two", slow, f"{one} two")
    return [ctx.input, one, child, decision.value, two]


async def child(ctx: TaskContext) -> str:
    """Return its input, by a step."""
    return await ctx.step("child", lambda: f"{ctx.input} child")


def main(argument: dict[str, Any]) -> None:
    """Serve until death."""
    logging.basicConfig(level=logging.ERROR)
    settings = Settings(
        url=SecretStr(argument["url"]),
        namespace=argument["namespace"],
        payload_keys=SecretStr(argument["keys"]),
    )
    AgentWorker(
        {"work": work, "child": child},
        settings=settings,
        queue=argument["queue"],
        lease_s=argument["lease_s"],
        # These workers die of what is done to them, not of their tasks.
        max_crashes=1_000_000,
        grace_s=0.2,
        name=argument["name"],
    ).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
