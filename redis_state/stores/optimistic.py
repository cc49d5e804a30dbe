"""Read, decide, compare and set; and repeat after a conflict."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis_state.backoff import Backoff
from redis_state.errors import VersionConflict

T = TypeVar("T")

_WAIT_S = Backoff(0.001, 0.05, jitter=1.0)


async def retry_on_conflict(attempt: Callable[[], Awaitable[T]], *, timeout_s: float) -> T:
    """Repeat an attempt that lost its race, until it wins or the time is up.

    Each attempt reads again. It waits a random time in between, which grows with the losses.
    Errors: the last VersionConflict.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + timeout_s
    delays = _WAIT_S.delays()
    while True:
        try:
            return await attempt()
        except VersionConflict:
            if loop.time() >= give_up_at:
                raise
        await asyncio.sleep(next(delays))
