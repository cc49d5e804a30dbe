"""A worker process with the old or the new code of some handlers, as before and after a deploy."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.worker import AgentWorker, Handler, StepPolicy, TaskContext
from tests.chaos.support.notes import note


class Code:
    """The handlers as one deploy has them. Each step writes down that it was done."""

    def __init__(self, folder: Path, deploy: str) -> None:
        self._folder = folder
        self._deploy = deploy

    def handlers(self) -> dict[str, Handler]:
        """Name them."""
        old = self._deploy == "old"
        return {
            "renamed": self._in_turn("abc" if old else "axy"),
            "patched": self.patched_old if old else self.patched_new,
        }

    async def patched_old(self, ctx: TaskContext) -> list[str]:
        """Know of no patch."""
        await self._steps(ctx, "before")
        if ctx.input == "first":
            await self._hang(ctx)
        await self._steps(ctx, "old")
        await self._hang(ctx)
        return ["old"]

    async def patched_new(self, ctx: TaskContext) -> list[str]:
        """Have a patch behind the first step, and another one at the end."""
        await self._steps(ctx, "before")
        first = "new" if ctx.patched("first") else "old"
        await self._steps(ctx, first)
        last = "new end" if ctx.patched("last") else "old end"
        await self._steps(ctx, last)
        if ctx.input == "again":
            await self._hang(ctx, attempts=2)
        return [first, last]

    def _in_turn(self, names: str) -> Callable[[TaskContext], Awaitable[str]]:
        async def handler(ctx: TaskContext) -> str:
            for name in names:
                await self._steps(ctx, name)
                if name == "b":
                    await self._hang(ctx)
            return names

        return handler

    async def _steps(self, ctx: TaskContext, *names: str) -> None:
        for name in names:
            await ctx.step(name, note, self._folder, "steps", ctx.task.task_id, name, self._deploy)

    async def _hang(self, ctx: TaskContext, *, attempts: int = 1) -> None:
        """Wait for the process's death, in the first runs. The store learns nothing of it."""
        if ctx.attempt <= attempts:
            note(self._folder, "hangs", ctx.task.task_id, ctx.attempt)
            await asyncio.Event().wait()


def main(argument: dict[str, Any]) -> None:
    """Serve until death."""
    logging.basicConfig(level=logging.ERROR)
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    code = Code(Path(argument["folder"]), argument["deploy"])
    AgentWorker(
        code.handlers(),
        settings=settings,
        queue=argument["queue"],
        lease_s=argument["lease_s"],
        steps=StepPolicy(on_changed=argument.get("on_changed", "notify")),
        name=argument["name"],
    ).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
