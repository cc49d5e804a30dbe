"""The pace of an archiver: a rest after each piece of work, so that it takes a share of the time.

A piece is what is done between two rests: some commands, or one call of the archive. Its work is
the CPU time of the process meanwhile, in all threads. The rest after it is so long that the work is
the share of both. So what else runs in the process never waits for a round, only for a piece, and a
busy process archives less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from time import process_time

# While entries are claimed: far less than a claim lasts. What is left is rested after the round.
_IN_A_ROUND_S = 30.0
# A piece that took more has waited for an archive that says nothing, and others have worked.
_LONGEST_PIECE_S = 2.0


class Pace:
    """Rests of one archiver. ``share`` is the part of the time that it works, 1 at most.

    A round begins with `begin`.
    """

    def __init__(
        self,
        share: float = 1.0,
        *,
        clock: Callable[[], float] = process_time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.share: float = share
        self._clock = clock
        self._sleep = sleep
        self._since = clock()
        self._owed_s = 0.0
        self._left_s = _IN_A_ROUND_S

    def begin(self) -> None:
        """Begin a round. What was since the last rest is work."""
        self._count()
        self._left_s = _IN_A_ROUND_S

    async def rest(self) -> None:
        """End a piece of work and rest for it, if the round may still take so long.

        The loop runs once at least.
        """
        self._count()
        took_s = min(self._owed_s, self._left_s)
        self._left_s -= took_s
        await self._rest(took_s)

    async def rest_between_rounds(self, *, least_s: float = 0.0, most_s: float = inf) -> None:
        """End a round and rest for what is left of it; ``least_s`` at least, ``most_s`` at most."""
        self._count()
        await self._rest(min(max(self._owed_s, least_s), most_s))

    async def rest_on(self, *, most_s: float) -> None:
        """Rest for what is left of a round. What was done since the last rest is no work."""
        await self._rest(min(self._owed_s, most_s))

    @property
    def owes(self) -> bool:
        """Whether work was done for which no rest was taken."""
        return self._owed_s > 0

    def hurry(self) -> None:
        """Work without rests from now on. What was not rested for is forgotten."""
        self.share, self._owed_s = 1.0, 0.0

    def _count(self) -> None:
        now = self._clock()
        worked_s, self._since = min(now - self._since, _LONGEST_PIECE_S), now
        self._owed_s += worked_s * (1 / self.share - 1)

    async def _rest(self, rest_s: float) -> None:
        self._owed_s = max(self._owed_s - rest_s, 0.0)
        await self._sleep(rest_s)
        self._since = self._clock()
