"""A worker process whose handlers write down when they run: for trials of limits and schedules.

They write to a file of this machine, a line at a time. So its order is that of the things
themselves, whatever becomes of the server.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.worker import AgentWorker, Handler, Rate, TaskContext
from tests.chaos.support.notes import note
from tests.processes.workers.killed.versioned_worker import plant

PARTS = 3
RATE = Rate(10, timedelta(seconds=1))


class Flow:
    """The handlers, and where they write."""

    def __init__(self, folder: Path, part_s: float) -> None:
        self._folder = folder
        self._part_s = part_s

    def handlers(self) -> dict[str, Handler]:
        """Name them."""
        return {
            "work": self.work,
            "call": self.call,
            "hold": self.hold,
            "fire": self.fire,
            "gather": self.gather,
        }

    async def work(self, ctx: TaskContext) -> None:
        """Run for some time, under the group that the input names."""
        with self._running(ctx, ctx.input):
            await self._parts(ctx)

    async def call(self, ctx: TaskContext) -> None:
        """Take from the rate that all share, and run then."""
        before_s = time.time()
        await ctx.take("model", RATE)
        note(self._folder, "taken", ctx.task.task_id, before_s, time.time())
        with self._running(ctx, ctx.input):
            await self._parts(ctx)

    async def hold(self, ctx: TaskContext) -> None:
        """Run until all may end."""
        with self._running(ctx, ctx.input):
            while not (self._folder / "release").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.02)

    async def fire(self, ctx: TaskContext) -> None:
        """Be the task of a schedule's occurrence."""
        await ctx.step("fire", note, self._folder, "fired", ctx.task.task_id, ctx.input)

    async def gather(self, ctx: TaskContext) -> None:
        """Be a task whose input was gathered."""
        note(self._folder, "gathered", ctx.task.task_id, ctx.input)
        await ctx.step("seen", lambda: None)

    async def _parts(self, ctx: TaskContext) -> None:
        async def part() -> None:
            await asyncio.sleep(self._part_s)
            done.append(1)

        for number in range(PARTS):
            done: list[int] = []
            run = (ctx.task.task_id, ctx.epoch, number)
            note(self._folder, "runs", "part", *run)
            await ctx.step("part", part)
            if done:
                # Its record was written under the lease, which it had as the part began too.
                note(self._folder, "runs", "held", *run)

    @contextmanager
    def _running(self, ctx: TaskContext, group: str) -> Generator[None]:
        task, how = ctx.task.task_id, "left"
        note(self._folder, "runs", "begin", task, ctx.epoch, ctx.worker, group)
        try:
            yield
            how = "done"
        finally:
            note(self._folder, "runs", "end", task, ctx.epoch, how)


def main(argument: dict[str, Any]) -> None:
    """Serve until death, or until a script is called for the n-th time, if that is asked for."""
    logging.basicConfig(level=logging.ERROR)
    if "die" in argument:
        when, script, number, mark = argument["die"]
        plant(when, script, Path(mark), number=number)
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    flow = Flow(Path(argument["folder"]), argument.get("part_s", 0.05))
    AgentWorker(
        flow.handlers(),
        settings=settings,
        queue=argument["queue"],
        lease_s=argument["lease_s"],
        max_tasks=argument.get("max_tasks", 10),
        # These workers die of what is done to them, not of their tasks.
        max_crashes=1_000_000,
        grace_s=0.2,
        name=argument["name"],
    ).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
