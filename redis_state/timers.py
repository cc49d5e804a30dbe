"""Timers that ring at common moments: many of them are one timer of the loop.

Nearly all timers of runs are set and stopped again without having rung. Here that is an entry of
a dict. One of the loop itself stays on its heap until that is cleaned up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from math import ceil

# How much later than it was set for a timer may ring: that part of its time, from so many seconds
# to so many. The time limit of a run of hours must not outlast the grace behind it.
_LATE_PART, _LATE_LEAST_S, _LATE_MOST_S = 1 / 256, 0.01, 0.25


class SharedTimer:
    """A timer that was set. It calls in the context in which it was set, as the loop's own do."""

    __slots__ = ("_call", "_context", "_moment")

    def __init__(self, moment: _Moment, call: Callable[[], object]) -> None:
        self._moment = moment
        self._call = call
        self._context = copy_context()

    def cancel(self) -> None:
        """Stop it, unless it has rung. Safe to repeat."""
        self._moment.remove(self)

    def ring(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call in a turn of its own: one that raises keeps none from being called."""
        loop.call_soon(self._ring, context=self._context)

    def _ring(self) -> None:
        # One that rang before it may have stopped it.
        if self._moment.remove(self):
            self._call()


class _Moment:
    """The timers of one moment, in the order in which they were set."""

    __slots__ = ("_loop", "_moments", "_timer", "_waiting", "_when_s")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, moments: dict[float, _Moment], when_s: float
    ) -> None:
        self._loop = loop
        self._moments = moments
        self._when_s = when_s
        self._waiting: dict[SharedTimer, None] = {}
        self._timer = loop.call_at(when_s, self._ring)

    def add(self, call: Callable[[], object]) -> SharedTimer:
        """Set a timer."""
        timer = SharedTimer(self, call)
        self._waiting[timer] = None
        return timer

    def remove(self, timer: SharedTimer) -> bool:
        """Take a timer out; return whether it was there."""
        if timer not in self._waiting:
            return False
        del self._waiting[timer]
        if not self._waiting:
            self._timer.cancel()
            self._forget()
        return True

    def _ring(self) -> None:
        self._forget()
        for timer in self._waiting:
            timer.ring(self._loop)

    def _forget(self) -> None:
        if self._moments.get(self._when_s) is self:
            del self._moments[self._when_s]


class SharedTimers:
    """Set timers in one loop after the other: those of an earlier loop share no moment any more."""

    def __init__(self) -> None:
        # Replaced as one: loops may be of several threads.
        self._current: tuple[asyncio.AbstractEventLoop | None, dict[float, _Moment]] = None, {}

    def at(
        self, when_s: float, call: Callable[[], object], *, loop: asyncio.AbstractEventLoop
    ) -> SharedTimer:
        """Call at a moment of the clock of a loop, in which this is called."""
        current = self._current
        if current[0] is not loop:
            current = self._current = loop, {}
        moments = current[1]
        moment = moments.get(when_s)
        if moment is None:
            moment = moments[when_s] = _Moment(loop, moments, when_s)
        return moment.add(call)

    def after(self, delay_s: float, call: Callable[[], object]) -> SharedTimer:
        """Call in the running loop after a delay, or later by 0.4 %: by 10 ms to 250 ms at most."""
        loop = asyncio.get_running_loop()
        apart_s = min(max(_LATE_LEAST_S, delay_s * _LATE_PART), _LATE_MOST_S)
        return self.at(ceil((loop.time() + delay_s) / apart_s) * apart_s, call, loop=loop)
