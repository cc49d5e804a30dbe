"""Waiting for a run: until it is done or late, and until its end is written."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def done_within(task: asyncio.Task[Any], limit_s: float) -> None:
    """Wait until a task is done, for so long at most: `asyncio.wait`, at half its cost."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def end(_: object = None) -> None:
        if not done.done():
            done.set_result(None)

    task.add_done_callback(end)
    timer = loop.call_later(limit_s, end)
    try:
        await done
    finally:
        timer.cancel()
        task.remove_done_callback(end)


async def shielded(work: Coroutine[Any, Any, None]) -> None:
    """Do something to its end, even if this task is cancelled meanwhile."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
        raise
