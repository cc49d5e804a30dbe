"""A worker process whose tasks talk, and that kills itself around its n-th call of a script."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.scripts import Reply, Scripts
from redis_state.worker import AgentWorker, TaskContext

WORDS = 60
_SCRIPTS = ("take_message", "send_message", "await_message", "emit_update", "record_step")
_LONG = timedelta(minutes=5)


class Death:
    """Kill this process before or after its n-th call of one of the scripts; 0 is never."""

    def __init__(self, number: int, *, after: bool) -> None:
        self._left = number
        self._after = after

    def plant(self) -> None:
        """Have the scripts count."""
        for name in _SCRIPTS:
            setattr(Scripts, name, self._around(getattr(Scripts, name)))

    def _around(self, script: Callable[..., Awaitable[Reply]]) -> Callable[..., Awaitable[Reply]]:
        async def counted(*arguments: Any, **options: Any) -> Reply:
            self._left -= 1
            due = self._left == 0
            if due and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            reply = await script(*arguments, **options)
            if due:
                os.kill(os.getpid(), signal.SIGKILL)
            return reply

        return counted


async def relay(ctx: TaskContext) -> list[Any]:
    """Send each signal on, say how far it is, and ask the collector at the end."""
    session_id, task_id, count = ctx.input
    found: list[Any] = []
    for number in range(count):
        found.append(await ctx.receive("item", hold_s=0.02, timeout=_LONG))
        await ctx.publish_value("at", number + 1)
        await ctx.send(session_id, task_id, "item", [ctx.task.task_id, found[-1]])
    return found


async def collect(ctx: TaskContext) -> list[Any]:
    """Collect so many items."""
    return [await ctx.receive("item", hold_s=0.02, timeout=_LONG) for _ in range(ctx.input)]


async def count_up(ctx: TaskContext) -> int:
    """Answer so many requests, each with the sum so far."""
    total = 0
    for _ in range(ctx.input):
        request = await ctx.receive_request("add", type=int, hold_s=0.02, timeout=_LONG)
        total += request.payload
        await request.reply([request.payload, total])
    return total


async def buy(ctx: TaskContext) -> list[list[int]]:
    """Ask another task so many times for the same."""
    session_id, task_id, amount, count = ctx.input
    return [
        await ctx.request(session_id, task_id, "add", amount, type=list[int], timeout_s=100)
        for _ in range(count)
    ]


async def _speak(run: int) -> AsyncGenerator[str, None]:
    for number in range(WORDS):
        yield f"run {run} word {number}. "
        await asyncio.sleep(0.002)


async def speak(ctx: TaskContext) -> str:
    """Stream a text that is another in each run."""
    return await ctx.stream_step("speak", _speak, ctx.epoch)


def main(argument: dict[str, Any]) -> None:
    """Serve until SIGTERM, or until death."""
    logging.basicConfig(level=logging.ERROR)
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    if argument["dies_at"]:
        Death(argument["dies_at"], after=argument["dies_after"]).plant()
    worker = AgentWorker(
        {"relay": relay, "collect": collect, "count_up": count_up, "buy": buy, "speak": speak},
        settings=settings,
        queue=argument["queue"],
        lease_s=0.5,
        poll_s=0.02,
        max_crashes=1_000,
        name=argument["name"],
    )
    worker.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
