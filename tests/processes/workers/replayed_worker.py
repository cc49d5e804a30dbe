"""Handlers as they were, and as they are to be, for replays of what the former left."""

from __future__ import annotations

from redis_state.worker import AgentWorker, Handler, TaskContext


async def before(ctx: TaskContext) -> None:
    """Pack, and ask."""
    await ctx.step("pack", str)
    await ctx.pause()


async def after(ctx: TaskContext) -> None:
    """Weigh first, which unfinished tasks have not done."""
    await ctx.step("weigh", str)
    await ctx.step("pack", str)
    await ctx.pause()


SAME: dict[str, Handler] = {"order": before, "other": before}
CHANGED: dict[str, Handler] = {"order": after, "other": before}
NOTHING = {"order": 1}

worker = AgentWorker(SAME)
