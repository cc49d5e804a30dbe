"""Backoff: growing delays between tries, with jitter."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

# No delay is doubled more often: a float has an end.
_DOUBLINGS = 60


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from ``first`` up to ``longest``, in the unit of both.

    ``jitter`` is the part of a delay that is left to chance: callers that fail together do not try
    again together.
    """

    first: float
    longest: float
    jitter: float = 0.5

    def after(self, failures: int) -> float:
        """Return the delay after so many failures, one after the other."""
        whole = min(self.first * 2.0 ** min(max(failures - 1, 0), _DOUBLINGS), self.longest)
        return whole * random.uniform(1 - self.jitter, 1)

    def delays(self) -> Iterator[float]:
        """Return the delays after the first failure, the second, and so on."""
        return map(self.after, count(1))
