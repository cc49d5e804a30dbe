"""A worker whose handler writes a text, and stops in the middle of it in its first run."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.worker import AgentWorker, TaskContext


async def dictate(ctx: TaskContext) -> None:
    """Write a text of two rows; the first run never ends it."""
    async with ctx.text("answer") as out:
        if ctx.attempt == 1:
            out.write("of the first ")
            await out.flush()
            await asyncio.Event().wait()
        out.write("of the second ")
        await out.flush()
        out.write("run")


async def main(options: dict[str, Any]) -> None:
    """Serve until killed."""
    settings = Settings(url=SecretStr(options.pop("url")), namespace=options.pop("namespace"))
    await AgentWorker({"dictate": dictate}, settings=settings, poll_s=0.01, **options).serve()


asyncio.run(main(json.loads(sys.argv[1])))
