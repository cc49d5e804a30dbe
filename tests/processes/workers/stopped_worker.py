"""A worker process whose handlers write down what becomes of them when their task is stopped."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.worker import AgentWorker, Handler, TaskCancelled, TaskContext
from tests.chaos.support.notes import note


class Stopped:
    """The handlers. Each step of theirs is a line of a file; a file of its name makes it stay."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def handlers(self) -> dict[str, Handler]:
        """Name them."""
        every = (self.ends, self.runs, self.waits, self.asks, self.sleeps)
        return {handler.__name__: handler for handler in every}

    async def ends(self, ctx: TaskContext) -> None:
        """End at once."""
        await self._begin(ctx)

    async def runs(self, ctx: TaskContext) -> None:
        """Come by checkpoints until cancelled."""
        await self._begin(ctx)
        try:
            while True:
                await ctx.checkpoint()
                await asyncio.sleep(0.01)
        except TaskCancelled:
            await self._note("cancelled", ctx.task.task_id)
            raise

    async def waits(self, ctx: TaskContext) -> None:
        """Come by no checkpoint for ever, in a step."""
        await self._begin(ctx)
        await ctx.step("for ever", asyncio.Event().wait)

    async def asks(self, ctx: TaskContext) -> None:
        """Pause."""
        await self._begin(ctx)
        await ctx.approval("go on?")

    async def sleeps(self, ctx: TaskContext) -> None:
        """Sleep for a day, as a pause."""
        await self._begin(ctx)
        await ctx.sleep(timedelta(days=1))

    async def _begin(self, ctx: TaskContext) -> None:
        note(self._folder, "notes", "begun", ctx.task.task_id)
        ctx.on_failure(self._undo, ctx.task.task_id, name="undo", on_cancel=True)
        await ctx.progress("begun")

    async def _undo(self, task: str) -> None:
        await self._note("undoing", task)
        note(self._folder, "notes", "undone", task)

    async def _note(self, what: str, task: str) -> None:
        note(self._folder, "notes", what, task)
        while (self._folder / f"stay {what}").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)


def main(argument: dict[str, Any]) -> None:
    """Serve until death."""
    logging.basicConfig(level=logging.ERROR)
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    AgentWorker(
        Stopped(Path(argument["folder"])).handlers(),
        settings=settings,
        queue=argument["queue"],
        lease_s=argument["lease_s"],
        grace_s=0.2,
        name=argument["name"],
    ).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
