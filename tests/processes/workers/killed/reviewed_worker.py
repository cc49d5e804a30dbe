"""A worker process that writes a text, takes reviews of it, and waits for its death on the way."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from redis_state import Settings
from redis_state.errors import InvalidMessage, PayloadTooLarge
from redis_state.worker import AgentWorker, Handler, TaskContext
from tests.chaos.support.notes import note

WORDS = 40
LIMIT = 10_000
PANEL = ("ann", "ben", "cyd")


class Review(BaseModel):
    """What a reviewer says."""

    score: int


class Desk:
    """The handlers. They write down what they do outside, and only in the work of steps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def handlers(self) -> dict[str, Handler]:
        """Name them."""
        return {"draft": self.draft, "bounded": self.bounded, "panel": self.panel}

    async def draft(self, ctx: TaskContext) -> list[Any]:
        """Write, publish, and take four reviews; die in the text and between the reviews."""
        text = await ctx.step("write", self._write, ctx)
        await ctx.publish_value("text", text)
        found: list[Any] = []
        for number in range(4):
            if number == 2:
                await ctx.step("rest", self._hang, ctx, 2)
            try:
                found.append((await ctx.receive("review", type=Review)).score)
            except InvalidMessage as error:
                found.append(error.payload)
            await ctx.publish_value("reviews", found)
        return found

    async def bounded(self, ctx: TaskContext) -> list[Any]:
        """Have a step return too much, in each run."""
        small = await ctx.step("small", self._small, ctx)
        try:
            await ctx.step("large", str, "x" * LIMIT)
        except PayloadTooLarge as error:
            refused = [error.size, error.limit]
        else:
            refused = []
        await ctx.step("rest", self._hang, ctx, 1)
        return [small, *refused]

    async def panel(self, ctx: TaskContext) -> list[Any]:
        """Ask two of three; die beside the open pause, and once it is decided."""
        pause = await ctx.open_pause("publish?", approvals=2, of=PANEL)
        await ctx.step("rest", self._hang, ctx, 1)
        decision = await ctx.wait_for(pause)
        await ctx.step("small", self._small, ctx)
        await ctx.step("rest", self._hang, ctx, 2)
        votes = [[vote.actor, vote.approved, vote.value] for vote in decision.votes]
        return [decision.approved, decision.actor, votes]

    async def _write(self, ctx: TaskContext) -> str:
        async with ctx.text("answer") as out:
            for number in range(WORDS):
                out.write(f"run {ctx.attempt} word {number}. ")
                if number == WORDS // 2:
                    await self._hang(ctx, 1)
        note(self._folder, "effects", ctx.task.task_id, "write")
        return out.text

    async def _small(self, ctx: TaskContext) -> str:
        note(self._folder, "effects", ctx.task.task_id, "small")
        return "small"

    async def _hang(self, ctx: TaskContext, attempt: int) -> None:
        if ctx.attempt == attempt:
            note(self._folder, "hangs", ctx.task.task_id, attempt)
            await asyncio.Event().wait()


async def rewritten(ctx: TaskContext) -> None:
    """Be the next deploy's code, that checks before it writes."""
    await ctx.step("check", str)
    await ctx.step("write", str)


SAME = Desk(Path("nowhere")).handlers()
CHANGED: dict[str, Handler] = SAME | {"draft": rewritten}


def main(argument: dict[str, Any]) -> None:
    """Serve until death."""
    logging.basicConfig(level=logging.ERROR)
    settings = Settings(
        url=SecretStr(argument["url"]), namespace=argument["namespace"], max_payload_bytes=LIMIT
    )
    AgentWorker(
        Desk(Path(argument["folder"])).handlers(),
        settings=settings,
        queue=argument["queue"],
        lease_s=0.5,
        poll_s=0.02,
        name=argument["name"],
    ).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
