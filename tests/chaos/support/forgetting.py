"""What a killed server may have forgotten of what it acknowledged, by its ``appendfsync``.

``always``: nothing. ``everysec``: a server writes to its file before it answers, unless the sync
before is still under way: then it answers first, and holds its writes back for two seconds at most.
It forgets from the end: what was acknowledged after a forgotten operation is forgotten too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAY_FORGET_S = {"always": 0.0, "everysec": 2.0}


@dataclass(frozen=True, slots=True)
class Kill:
    """From just before the signal until the next server answers, on the callers' clock."""

    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An operation that was answered, when, and whether what it wrote is there in the end."""

    at: float
    there: bool


def lost(done: Sequence[Acknowledged], kills: Sequence[Kill], may_forget_s: float) -> int:
    """Count what one caller did, one after the other, and should be there but is not."""
    return sum(
        not each.there and not _may_be_forgotten(each, done[place + 1 :], kills, may_forget_s)
        for place, each in enumerate(done)
    )


def _may_be_forgotten(
    each: Acknowledged, later: Sequence[Acknowledged], kills: Sequence[Kill], may_forget_s: float
) -> bool:
    kill = next((kill for kill in kills if each.at <= kill.ended), None)
    if kill is None or not may_forget_s or kill.began - each.at > may_forget_s:
        return False
    return not any(other.there for other in later if other.at < kill.began)
