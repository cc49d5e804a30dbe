"""A worker process whose handlers spawn children, wait for them, and can be slow."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.worker import AgentWorker, Handler, TaskContext


async def total(ctx: TaskContext) -> int:
    """Have a child for each number, limited under the tenant's key; add up what they return."""
    tenant = ctx.attributes.get("tenant")
    key = tenant if isinstance(tenant, str) else None
    children = [await ctx.spawn("square", number, limit_key=key) for number in ctx.input]
    return sum([await ctx.join(child) for child in children])


async def square(ctx: TaskContext) -> int:
    """Take some time, in pieces."""
    for _ in range(10):
        await ctx.checkpoint()
        await asyncio.sleep(0.01)
    return int(ctx.input * ctx.input)


async def tree(ctx: TaskContext) -> list[Any]:
    """Have two children, each of them two, and so on, one of the two isolated; wait for them."""
    depth = ctx.input
    await ctx.progress("begun")
    if depth == 0:
        await asyncio.sleep(0.3)
        return []
    children = [
        await ctx.spawn("tree", depth - 1, name="bound"),
        await ctx.spawn("tree", 0, name="alone", isolate=True),
    ]
    return [await ctx.join(child) for child in children]


async def endless(ctx: TaskContext) -> None:
    """Have a child like oneself, and another, and go on until told to stop."""
    if ctx.input:
        await ctx.spawn("endless", ctx.input - 1)
    await ctx.progress("begun")
    while True:
        await ctx.checkpoint()
        await asyncio.sleep(0.01)


async def ask(ctx: TaskContext) -> bool:
    """Wait for an approval."""
    return (await ctx.approval("Go on?", tags=["test"])).approved


async def refund(ctx: TaskContext) -> list[Any]:
    """Wait for two of three, who fill in a form."""
    decision = await ctx.approval(
        "How much?",
        schema={
            "type": "object",
            "properties": {"limit": {"type": "integer", "maximum": 9}, "why": {"type": "string"}},
            "required": ["limit"],
        },
        approvals=2,
        of=("ann", "ben", "cid"),
    )
    return [decision.value, [vote.actor for vote in decision.votes]]


async def fail(_: TaskContext) -> None:
    """Fail."""
    raise ValueError("no luck")


HANDLERS: dict[str, Handler] = {
    "total": total,
    "square": square,
    "tree": tree,
    "endless": endless,
    "ask": ask,
    "refund": refund,
    "fail": fail,
}


def main(argument: dict[str, Any]) -> None:
    """Serve until SIGTERM."""
    logging.basicConfig(level=logging.ERROR)
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    worker = AgentWorker(
        HANDLERS,
        settings=settings,
        queue=argument["queue"],
        name=argument["name"],
        lease_s=argument.get("lease_s", 10.0),
        grace_s=0.2,
        poll_s=0.02,
    )
    worker.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
