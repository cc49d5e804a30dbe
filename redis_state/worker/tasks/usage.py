"""What a task uses: seconds, steps and updates, of all its runs."""

from __future__ import annotations

import time


class UsageMeter:
    """What a task uses in one run, on top of what earlier runs have used."""

    def __init__(self, *, spent_ms: int = 0, updates: int = 0, steps: int = 0) -> None:
        self.steps: int = steps
        self.updates: int = updates
        self._spent_ms = spent_ms
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """The time of all runs, up to now."""
        return self._spent_ms / 1000 + time.monotonic() - self._began

    def fields(self) -> dict[str, bytes]:
        """Write it as fields of the task's record, for the next run."""
        spent = {"spent_ms": b"%d" % round(self.seconds * 1000)}
        # It only grows: a task without updates has had none.
        return spent | {"spent_updates": b"%d" % self.updates} if self.updates else spent
