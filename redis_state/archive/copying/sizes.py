"""What is copied together: the same for each class of data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

_SLICE_BYTES = 4 << 20


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
