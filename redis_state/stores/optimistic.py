"""Read, decide, compare and set; and once more when somebody else was faster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis_state.errors import VersionConflict

T = TypeVar("T")

_FIRST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.05


async def retry_on_conflict(attempt: Callable[[], Awaitable[T]], *, timeout_s: float) -> T:
    """Repeat an attempt that lost its race, until it is won or the time is over.

    Each attempt reads anew. It waits a random while in between, the longer the more often it lost.
    Errors: the last VersionConflict.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + timeout_s
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            return await attempt()
        except VersionConflict:
            if loop.time() >= give_up_at:
                raise
        await asyncio.sleep(random.uniform(0, wait_s))
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
