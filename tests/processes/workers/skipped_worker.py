"""A worker process of a namespace whose time a test skips."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from datetime import timedelta
from typing import Any

from pydantic import SecretStr

from redis_state.testing.pool import ClockSettings
from redis_state.worker import AgentWorker, TaskContext


async def nap(ctx: TaskContext) -> str:
    """Sleep for so many days."""
    await ctx.sleep(timedelta(days=ctx.input))
    return ctx.worker


async def block(ctx: TaskContext) -> str:
    """Run on in the first run; end in the next."""
    await ctx.progress("begun")
    if ctx.attempt == 1:
        await asyncio.Event().wait()
    return ctx.worker


def main(argument: dict[str, Any]) -> None:
    """Serve until SIGTERM."""
    logging.basicConfig(level=logging.WARNING)
    settings = ClockSettings(
        url=SecretStr(argument.pop("url")), namespace=argument.pop("namespace")
    )
    AgentWorker({"nap": nap, "block": block}, settings=settings, **argument).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
