"""How many rows of logs are read at once."""

from __future__ import annotations

from collections.abc import Sequence

_PAGE, _PAGE_BYTES = 500, 1 << 20


def next_count(sizes: Sequence[int]) -> int:
    """Return how many rows of each log are read next, as many as make 1 MB of those read last."""
    return max(1, min(_PAGE, _PAGE_BYTES * len(sizes) // max(sum(sizes), 1)))
