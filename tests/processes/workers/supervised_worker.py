"""A worker process with handlers that load its event loop, and with any option."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from contextlib import suppress
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.errors import LeaseLost
from redis_state.worker import AgentWorker, TaskContext


async def busy(ctx: TaskContext) -> int:
    """Compute for so many seconds without giving way once."""
    await ctx.progress("begun")
    ends = time.monotonic() + ctx.input
    turns = 0
    while time.monotonic() < ends:
        turns += 1
    return min(turns, 1)


async def blocked(ctx: TaskContext) -> None:
    """Hold the loop for so many seconds without computing."""
    await ctx.progress("begun")
    time.sleep(ctx.input)  # noqa: ASYNC251 - that is the fault


async def nap(ctx: TaskContext) -> str:
    """Sleep for so many seconds, giving way."""
    await ctx.progress("begun")
    await asyncio.sleep(ctx.input)
    return ctx.worker


async def linger(ctx: TaskContext) -> str:
    """Stay until asked to go, in the first run; end at once in a later one."""
    await ctx.progress("begun")
    if ctx.attempt == 1:
        await asyncio.Event().wait()
    return ctx.worker


async def chatter(ctx: TaskContext) -> int:
    """Use many scripts, with steps."""
    for number in range(5):
        await ctx.progress(f"{number}", step=number)
        await ctx.step("note", lambda: 1)
    return ctx.attempt


async def ask(ctx: TaskContext) -> list[Any]:
    """Pause, and tell who was asked and who went on."""
    began = await ctx.step("began", lambda: ctx.worker)
    decision = await ctx.approval("Go on?")
    return [began, ctx.worker, decision.approved]


async def stalled(ctx: TaskContext) -> None:
    """Write for ever, whatever happens; say which write was refused."""
    while True:
        with suppress(asyncio.CancelledError):
            try:
                await ctx.progress("begun")
            except LeaseLost as error:
                print(f"refused {error.epoch} by {error.current}", flush=True)  # noqa: T201
                raise
            await asyncio.sleep(0.01)


HANDLERS = {
    handler.__name__: handler for handler in (busy, blocked, nap, linger, chatter, ask, stalled)
}


def agent(argument: dict[str, Any]) -> AgentWorker:
    """Make the worker that is asked for."""
    settings = Settings(url=SecretStr(argument.pop("url")), namespace=argument.pop("namespace"))
    return AgentWorker(HANDLERS, settings=settings, **argument)


def main(argument: dict[str, Any]) -> None:
    """Serve until SIGTERM; under arq's own runner if asked for."""
    logging.basicConfig(level=logging.WARNING)
    own = argument.pop("runner", "ours") == "ours"
    worker = agent(argument)
    if own:
        worker.run()
    else:
        from arq.worker import run_worker  # noqa: PLC0415 - after logging is set up

        run_worker(worker.arq_settings())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
