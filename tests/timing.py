"""Bounds on time that a busy machine cannot decide."""

from __future__ import annotations

import asyncio
from typing import Any

# Longer than any test may take: what comes sooner did not wait for it.
LONG_S = 3600.0
# So often the loop turns between a timer and the end of all that waited for one before it.
_TURNS = 50


class Overdue:
    """Whether a call was still open when the loop came to a timer behind the call's own.

    What keeps a loop busy makes all its timers late, in their order. So this tells that the call
    waited for something else than its deadline, on a machine of any speed.
    """

    def __init__(self, call: asyncio.Future[Any], limit_s: float) -> None:
        self.seen = False
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._loop.call_later(limit_s, self._look, _TURNS)

    def _look(self, turns: int) -> None:
        if self._call.done():
            return
        if turns:
            self._loop.call_soon(self._look, turns - 1)
        else:
            self.seen = True
