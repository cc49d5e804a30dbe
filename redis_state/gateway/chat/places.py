"""Where a client is in a stream that is made from rows: the ids of its events.

A row makes several events, and so may the beginning and the end of a run. The id of an event is the
cursor of its row, and how many events of that row were sent:

    41-1795398718523-1f852a4c      all of the row
    41-1795398718523-1f852a4c.2    two events of the row
    41-1795398718523-1f852a4c~3    three of those that open a stream behind this row
    41-1795398718523-1f852a4c!1    one of those that close a run behind this row
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast

from redis_state.errors import InvalidField

# What the count is of: the row's events, an opening of a new run, one of a run joined, an end.
Within: TypeAlias = Literal[".", "^", "~", "!"]

BEGINNING: Final = "0-0"
_ID = re.compile(r"([0-9]{1,18}-[0-9]{1,18}(?:-[0-9a-f]{8})?)(?:([.^~!])([0-9]{1,6}))?")
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class EventPlace:
    """A place: behind so many events at a cursor; None for all events of its row."""

    cursor: str
    within: Within = "."
    sent: int | None = None

    def __str__(self) -> str:
        return self.cursor if self.sent is None else f"{self.cursor}{self.within}{self.sent}"


def read_place(given: str) -> EventPlace:
    """Read the id of an event. Errors: InvalidField."""
    found = _ID.fullmatch(given) if len(given) <= _LONGEST else None
    if found is None:
        raise InvalidField("after", "must be the id of an event of this stream, or 0 for all")
    cursor, within, sent = found.groups()
    if within is None:
        return EventPlace(cursor)
    return EventPlace(cursor, cast("Within", within), int(sent))
