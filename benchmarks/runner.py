"""One run: its server, its length, its progress."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

from benchmarks.server import BenchServer


@dataclass
class Run:
    """What every part of a run shares."""

    server: BenchServer
    quick: bool
    size: float = 1.0
    began: float = field(default_factory=time.monotonic)

    @property
    def repeats(self) -> int:
        """How often each thing is measured."""
        return 1 if self.quick else 5

    @property
    def seconds(self) -> float:
        """How long one measurement takes."""
        return 0.2 if self.quick else 0.7

    def clients(self, full: int) -> int:
        """Return how many clients a measurement takes at the run's size."""
        return max(1, round(full * self.size * (0.2 if self.quick else 1.0)))

    def tell(self, doing: str) -> None:
        """Say how far the run is."""
        print(f"[{time.monotonic() - self.began:5.0f} s] {doing}", file=sys.stderr, flush=True)
