"""What is copied together, and when it is tried again: the same for each class of data."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

_SLICE_BYTES = 4 << 20
_PAGE, _PAGE_BYTES = 500, 1 << 20
_FIRST_BACKOFF_MS, _LONGEST_BACKOFF_MS = 2_000, 600_000


def in_slices(found: Iterable[T], size_of: Callable[[T], int]) -> Iterable[Sequence[T]]:
    """Divide what was read into slices of some 4 MB."""
    some: list[T] = []
    size = 0
    for each in found:
        some.append(each)
        size += size_of(each)
        if size >= _SLICE_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def next_count(sizes: Sequence[int]) -> int:
    """Return how many rows of each log are read next, as many as make 1 MB of those read last."""
    return max(1, min(_PAGE, _PAGE_BYTES * len(sizes) // max(sum(sizes), 1)))


def backoff_ms(failures: int) -> int:
    """Return for how long work is postponed after so many failures, one after the other."""
    longest = min(_FIRST_BACKOFF_MS << min(failures, 16), _LONGEST_BACKOFF_MS)
    return round(longest * random.uniform(0.5, 1.0))
