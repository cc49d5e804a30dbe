"""Rows of a log as they are read, and the bounds within which they are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis_state.primitives.signal import Row
from redis_state.scripts import topic_text


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in order, the cursor after them, and whether the log ended with them.

    ``first`` is the number of the oldest row that is kept, or of the next one if there is none; 0
    if it is not known, because the row before the first of these is kept.
    """

    rows: list[Row]
    cursor: str
    at_end: bool
    first: int = 0

    @property
    def size(self) -> int:
        """How many bytes its rows have."""
        return sum(len(row.data) for row in self.rows)


@dataclass(slots=True)
class Appended:
    """The rows' numbers in the order given, and how many of them were not there before."""

    numbers: list[int]
    new: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a log grows: rows at most (0: no limit) and how long a row lives at least.

    Up to a sixteenth more rows than ``max_rows``, 64 at most, may stand before they are dropped.
    """

    max_rows: int
    ttl_ms: int


def row_of(entry: Any) -> Row:
    """Read an entry of the stream as its row."""
    n, _, ms = entry[0].partition(b"-")
    fields = dict(zip(entry[1][::2], entry[1][1::2], strict=False))
    try:
        topic = topic_text(fields[b"topic"])
        return Row(int(n), int(ms), fields[b"id"], topic, fields[b"row"])
    except (KeyError, ValueError):
        # Not written by us. Readers of rows find no data in it and quarantine it.
        return Row(int(n), int(ms), b"", None, b"")
