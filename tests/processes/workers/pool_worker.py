"""A worker process of a pool, with handlers for the tests."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import weakref
from contextlib import suppress
from typing import Any, NoReturn

from pydantic import SecretStr

from redis_state import Settings
from redis_state.errors import LeaseLost
from redis_state.worker import AgentWorker, TaskContext
from redis_state.worker.tasks.transitions import TaskTransitions

# Made before the worker runs.
MADE_BEFORE: list[Any] = []
# What was garbage when the worker began to run, if a test asks for it.
GARBAGE: list[weakref.ref[Garbage]] = []


async def ask(ctx: TaskContext) -> dict[str, Any]:
    """Pause, and tell who began and who ended."""
    began = await ctx.step("began", lambda: ctx.worker)
    decision = await ctx.approval("Go on?")
    return {"began": began, "ended": ctx.worker, "approved": decision.approved}


async def linger(ctx: TaskContext) -> str:
    """Stay until asked to go, in the first run; end at once in a later one."""
    await ctx.progress("begun")
    if ctx.attempt == 1:
        await asyncio.Event().wait()
    return ctx.worker


async def zombie(ctx: TaskContext) -> NoReturn:
    """Go on writing, whatever happens; say which write was refused."""
    while True:
        # The heartbeat may find out first, and cancel: that must not spare us the refusal.
        with suppress(asyncio.CancelledError):
            try:
                await ctx.progress(f"epoch {ctx.epoch}")
                await ctx.step("note", lambda: ctx.epoch)
            except LeaseLost as error:
                print(f"refused {error.epoch} by {error.current}", flush=True)  # noqa: T201
                raise
            await asyncio.sleep(0.01)


async def who(ctx: TaskContext) -> str:
    """Name the worker."""
    return ctx.worker


async def frozen(_: TaskContext) -> bool:
    """Tell whether garbage collection leaves out what was made before the worker ran."""
    return is_frozen(MADE_BEFORE)


def is_frozen(thing: object) -> bool:
    """Tell whether garbage collection leaves a thing out."""
    return not any(each is thing for each in gc.get_objects())


class Garbage:
    """A thing that only a collection finds, once nothing else leads to it."""

    def __init__(self) -> None:
        self.itself: Garbage = self


async def collected(_: TaskContext) -> bool:
    """Tell whether the garbage of before the worker's run has been collected."""
    gc.collect()
    return not GARBAGE or GARBAGE[0]() is None


async def poison(_: TaskContext) -> NoReturn:
    """Take the whole worker along."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


async def die_before_start(*_: Any, **__: Any) -> NoReturn:
    """Die where a picked job would start its task."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def main(argument: dict[str, Any]) -> None:
    """Serve until SIGTERM."""
    logging.basicConfig(level=logging.WARNING)
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    if argument.get("dies_before_start"):
        TaskTransitions.start = die_before_start  # type: ignore[method-assign]
    worker = AgentWorker(
        {
            "ask": ask,
            "linger": linger,
            "zombie": zombie,
            "who": who,
            "frozen": frozen,
            "collected": collected,
            "poison": poison,
        },
        settings=settings,
        queue=argument["queue"],
        lease_s=argument.get("lease_s", 10.0),
        grace_s=argument.get("grace_s", 0.2),
        name=argument["name"],
    )
    if argument.get("begins_with_garbage"):
        gc.unfreeze()
        gc.disable()
        GARBAGE.append(weakref.ref(Garbage()))
    else:
        gc.freeze()
    worker.run()
    print("frozen", is_frozen(sys.modules), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
