"""A worker process, or an operator's: what tasks and bulk calls are made of, to be killed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.worker import AgentWorker, Rate, TaskClient, TaskContext
from redis_state.worker.tasks.execution import running
from tests.chaos.support.notes import note
from tests.processes.workers.killed.versioned_worker import plant

WORDS = [f"{number} " for number in range(12)]
KIND = {"kind": "operated"}
PHASES = 4
# Of a second and more: who waits for so long is paused.
PACE = Rate(1, timedelta(seconds=1.3))
NAP = timedelta(seconds=1.5)


async def model() -> AsyncGenerator[str, None]:
    """Yield some words, slowly."""
    for word in WORDS:
        yield word
        await asyncio.sleep(0.02)


async def answer(ctx: TaskContext) -> list[Any]:
    """Ask for a patch, stream a text, publish a value, and sleep."""
    new = ctx.patched("new")
    text = await ctx.stream_step("answer", model)
    await ctx.publish_value("text", text)
    await ctx.sleep(timedelta(seconds=1.1))
    return [new, text]


async def held(ctx: TaskContext) -> None:
    """Wait for longer than any test."""
    await ctx.sleep(timedelta(hours=1))


async def parent(ctx: TaskContext) -> str:
    """Join a child that is broken."""
    return str(await ctx.join(await ctx.spawn("broken", "fails")))


class Folder:
    """Handlers that write into a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def flaky(self, ctx: TaskContext) -> str:
        """Fail behind the first step, until it is mended."""
        await ctx.step("before", note, self._path, "steps", ctx.task.task_id, "before")
        await asyncio.sleep(0.02)
        await ctx.step("after", self._after)
        return "done"

    async def travel(self, ctx: TaskContext) -> dict[str, Any]:
        """Say in its attributes how far it is, and stay in the last part until all may arrive."""
        for phase in range(PHASES):
            await ctx.set_attributes({"phase": phase})
            await ctx.step("part", self._part, phase)
        return dict(ctx.attributes)

    async def _part(self, phase: int) -> None:
        await asyncio.sleep(0.1)
        while phase == PHASES - 1 and not (self._path / "arrive").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.02)

    async def limited(self, ctx: TaskContext) -> None:
        """Write down when each run begins, and take some time."""
        note(self._path, "begun", time.time())
        await ctx.step("work", asyncio.sleep, 0.1)

    async def twice(self, ctx: TaskContext) -> None:
        """Take two steps."""
        for step in ("first", "second"):
            await ctx.step(step, note, self._path, step, ctx.task.task_id)

    async def broken(self, ctx: TaskContext) -> str:
        """Fail behind a step, or take the worker along, until it is mended."""
        task = ctx.task.task_id
        await ctx.step("before", note, self._path, "before", task)
        if not (self._path / "mended").exists():
            if ctx.input == "dies":
                note(self._path, "deaths", task)
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("not yet")
        await ctx.step("after", self._go, task, ctx.worker)
        return "done"

    async def paced(self, ctx: TaskContext) -> None:
        """Wait for a place of a rate that few have, and write down when it came."""
        await ctx.take("model", PACE)
        await ctx.step("call", self._now, "paced", ctx.task.task_id)

    async def asleep(self, ctx: TaskContext) -> None:
        """Sleep as a pause, and write down when that began and ended."""
        await ctx.step("before", self._now, "asleep", ctx.task.task_id)
        await ctx.sleep(NAP)
        await ctx.step("after", self._now, "awake", ctx.task.task_id)

    def _now(self, file: str, task: str) -> None:
        note(self._path, file, task, time.time())

    async def _go(self, task: str, worker: str) -> None:
        note(self._path, "again", task, worker)
        while not (self._path / "go").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.02)

    def _after(self) -> None:
        if not (self._path / "mended").exists():
            raise ValueError("not yet")


async def operate(settings: Settings, argument: dict[str, Any]) -> None:
    """Do the action to all tasks, one at a time, and tell of each; die on the way if asked to."""
    if "die" in argument:
        script = argument.get("script", "queue_job")
        plant("before", script, Path(argument["mark"]), number=argument["die"])
    async with (
        RedisStateStore(settings) as store,
        TaskClient(store, queue=argument["queue"]) as client,
    ):
        action = argument["action"]
        print("begun", flush=True)  # noqa: T201
        options = {"idempotency_key": "k", "concurrency": 1} | argument["options"]
        report = await client.bulk(action, **options)
        told = {item.task_id: item.outcome.value for item in report.items}
        print(json.dumps(told), flush=True)  # noqa: T201


def main(argument: dict[str, Any]) -> None:
    """Serve until death, or operate."""
    logging.basicConfig(level=logging.ERROR)
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    if "action" in argument:
        asyncio.run(operate(settings, argument))
        return
    if "die" in argument:
        when, script, mark = argument["die"]
        plant(when, script, Path(mark))
    # So that each part of a journey is shown.
    running.SLOW_S = 0.05
    folder = Folder(Path(argument["folder"]))
    AgentWorker(
        {
            "answer": answer,
            "travel": folder.travel,
            "held": held,
            "parent": parent,
            "flaky": folder.flaky,
            "limited": folder.limited,
            "twice": folder.twice,
            "broken": folder.broken,
            "paced": folder.paced,
            "asleep": folder.asleep,
        },
        settings=settings,
        queue=argument["queue"],
        lease_s=argument["lease_s"],
        max_tasks=argument.get("max_tasks", 10),
        max_crashes=argument.get("max_crashes", 1_000_000),
        grace_s=0.2,
        name=argument["name"],
    ).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
