"""The result of a sweep."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self


@dataclass(slots=True)
class SweepReport:
    """The result of one sweep, in numbers of tasks.

    ``requeued`` tasks waited and were not in the queue. ``released`` ones were picked by a worker
    that never started them. ``taken_over`` ones were left by a dead worker. ``expired`` ones were
    paused beyond their deadline. ``failed`` ones had too many workers die with them. ``dropped``
    ones are terminal or deleted. ``woken`` ones waited for a child that is terminal.
    ``parent_cancelled`` ones were unfinished when their parent was cancelled. ``escalated`` counts
    the escalations of pauses.
    """

    looked: int = 0
    requeued: int = 0
    released: int = 0
    taken_over: int = 0
    expired: int = 0
    failed: int = 0
    dropped: int = 0
    woken: int = 0
    parent_cancelled: int = 0
    escalated: int = 0

    def __iadd__(self, other: SweepReport) -> Self:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        return self
