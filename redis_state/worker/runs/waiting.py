"""Waiting for a run: until it is done or late, and until its end is written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from redis_state.errors import CommandRefused, InvalidTransition, NoConnection, StoreFull
from redis_state.models import TaskStatus
from redis_state.timers import SharedTimers
from redis_state.transport.sending.future import EagerFuture
from redis_state.worker.runs.config import AGAIN_S


async def done_within(task: asyncio.Task[Any], limit_s: float, timers: SharedTimers) -> None:
    """Wait until a task is done, for so long at most: `asyncio.wait`, at a part of its cost."""
    done = _done(task)
    timer = timers.after(limit_s, partial(_end, done))
    try:
        await done
    finally:
        timer.cancel()


async def shielded(work: Coroutine[Any, Any, None]) -> None:
    """Do something to its end, even if this task is cancelled meanwhile."""
    task = asyncio.create_task(work)
    try:
        await _done(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
        raise
    task.result()


def _done(task: asyncio.Task[Any]) -> EagerFuture:
    """Return what is done once a task is. Who waits for it and is cancelled leaves the task be."""
    done = EagerFuture(loop=task.get_loop())
    done.waiter = None
    task.add_done_callback(partial(_end, done))
    return done


def _end(done: EagerFuture, _: object = None) -> None:
    if not done.done():
        # Who waits continues in this turn of the loop.
        done.resolve(None)


async def until_written(
    write: Callable[[], Awaitable[None]], status: TaskStatus, *, retry_s: float
) -> None:
    """Write a run's end. While the server is unreachable, full or refuses it, try it again.

    For ``retry_s``: else all that was done would be done again, and this worker be taken for dead.
    Errors: NoConnection, StoreFull, CommandRefused after that time; those of the write.
    """
    clock, again = asyncio.get_running_loop().time, False
    end = clock() + retry_s
    while True:
        try:
            await write()
        except (NoConnection, StoreFull, CommandRefused):
            if clock() + AGAIN_S > end:
                raise
            again = True
            await asyncio.sleep(AGAIN_S)
        except InvalidTransition as denied:
            # The first time it was written, and the reply lost.
            if not again or denied.current != status.value:
                raise
            return
        else:
            return
