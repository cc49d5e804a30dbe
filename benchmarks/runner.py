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
    began: float = field(default_factory=time.monotonic)

    @property
    def repeats(self) -> int:
        """How often each thing is measured."""
        return 1 if self.quick else 5

    @property
    def seconds(self) -> float:
        """How long one measurement takes."""
        return 0.2 if self.quick else 0.7

    def tell(self, doing: str) -> None:
        """Say how far the run is."""
        print(f"[{time.monotonic() - self.began:5.0f} s] {doing}", file=sys.stderr, flush=True)
