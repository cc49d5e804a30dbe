"""A worker process, or an operator's: what tasks and bulk calls are made of, to be killed."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.worker import AgentWorker, TaskClient, TaskContext
from tests.chaos.support.notes import note

WORDS = [f"{number} " for number in range(12)]
KIND = {"kind": "operated"}


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


class Folder:
    """Handlers that write into a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def flaky(self, ctx: TaskContext) -> str:
        """Fail behind the first step, until somebody has mended it."""
        await ctx.step("before", note, self._path, "steps", ctx.task.task_id, "before")
        await asyncio.sleep(0.02)
        await ctx.step("after", self._after)
        return "done"

    def _after(self) -> None:
        if not (self._path / "mended").exists():
            raise ValueError("not yet")


async def operate(settings: Settings, argument: dict[str, Any]) -> None:
    """Do the action to all tasks, one at a time."""
    async with (
        RedisStateStore(settings) as store,
        TaskClient(store, queue=argument["queue"]) as client,
    ):
        action = argument["action"]
        print("begun", flush=True)  # noqa: T201
        await client.bulk(action, idempotency_key="k", attributes=KIND, concurrency=1)


def main(argument: dict[str, Any]) -> None:
    """Serve until death, or operate."""
    logging.basicConfig(level=logging.ERROR)
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    if "action" in argument:
        asyncio.run(operate(settings, argument))
        return
    AgentWorker(
        {"answer": answer, "flaky": Folder(Path(argument["folder"])).flaky},
        settings=settings,
        queue=argument["queue"],
        lease_s=argument["lease_s"],
        max_crashes=1_000_000,
        grace_s=0.2,
        name=argument["name"],
    ).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
