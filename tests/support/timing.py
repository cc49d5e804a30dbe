"""Bounds on time that a busy machine cannot decide."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

# Longer than any test may take: what comes sooner did not wait for it.
LONG_S = 3600.0
# So often, and so long apart, a call is looked at that was open when the timer came.
_LOOKS, _APART_S = 10, 0.05
_TURN_S = 0.01


class Overdue:
    """Whether a call was still open when the loop came to a timer behind the call's own.

    What keeps a loop busy makes all its timers late, in their order, and a timer that is set behind
    it comes in one of the loop's next turns. So `seen` means that the call waits for something
    else than its deadline, on a machine of any speed.
    """

    def __init__(self, call: asyncio.Future[Any], limit_s: float) -> None:
        self.seen = False
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._loop.call_later(limit_s, self._look, _LOOKS)

    def _look(self, looks: int) -> None:
        if self._call.done():
            return
        if looks:
            self._loop.call_later(_APART_S, self._look, looks - 1)
        else:
            self.seen = True


@dataclass
class Spent:
    """The seconds in which the loop came to its timers."""

    s: float = 0.0


@asynccontextmanager
async def spending() -> AsyncGenerator[Spent]:
    """Measure a block by a timer of the loop: a stall of the machine counts as one turn of it."""
    spent = Spent()

    async def turn() -> None:
        while True:
            await asyncio.sleep(_TURN_S)
            spent.s += _TURN_S

    turning = asyncio.create_task(turn())
    try:
        yield spent
    finally:
        turning.cancel()
        await asyncio.wait({turning})
