"""What was let go of that was held for the archive, by class. No I/O, and no content."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ReleaseReport:
    """What was held for the archive and was let go of, or would be with a dry run.

    ``released`` counts by class. Of these ``overdue`` have outlived their own lifetime: they expire
    after a minute. ``unlisted`` entries were taken off the archive's lists. ``in_use`` says why the
    archive seems to be in use: a call that is neither forced nor a dry run then fails. ``failed``
    could not be read.
    """

    dry_run: bool = False
    released: Counter[str] = field(default_factory=Counter[str])
    overdue: Counter[str] = field(default_factory=Counter[str])
    unlisted: int = 0
    failed: int = 0
    in_use: list[str] = field(default_factory=list[str])

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing."""
        return not (self.released.total() or self.unlisted or self.failed)

    def count(self, what: str, *, left_ms: int) -> None:
        """Count something of a class, by what is left of its own lifetime."""
        self.released[what] += 1
        if left_ms <= 0:
            self.overdue[what] += 1

    def document(self) -> dict[str, Any]:
        """Write it as plain JSON."""
        return {
            "dry_run": self.dry_run,
            "released": dict(self.released),
            "overdue": dict(self.overdue),
            "unlisted": self.unlisted,
            "failed": self.failed,
            "in_use": list(self.in_use),
        }
