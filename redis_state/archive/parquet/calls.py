"""Calls that block, each in a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic
from typing import TypeVar, cast

T = TypeVar("T")


class ArchiveCall:
    """Calls in threads, one at a time. Once nobody waits for one, it commits nothing.

    Nor does it behind its deadline: the process may have been stopped, with all that waits for it.
    """

    over: bool = False
    _until: float = inf

    def begin(self, limit_s: float) -> None:
        """Give the call that comes now its time."""
        self._until = monotonic() + limit_s

    def may_go_on(self) -> bool:
        """Return whether the call may still commit."""
        return not self.over and monotonic() < self._until


async def in_thread(work: Callable[[], T]) -> T:
    """Run what blocks in a thread that keeps no process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(found: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast("T", found))

    def run() -> None:
        found, problem = None, None
        try:
            found = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
            problem = error
        # The loop may be closed by then.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, found, problem)

    context = contextvars.copy_context()
    threading.Thread(
        target=context.run, args=[run], name="redis-state-archive", daemon=True
    ).start()
    return await future
