"""Which owners a file may have: a Bloom filter in its footer.

A file is opened for an owner only if its filter has him. For one owner in a hundred it errs: then
the file is opened, and has nothing of him.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator
from typing import Self

# Text, as some readers of Parquet demand of each entry of a footer.
OWNERS_ENTRY = b"redis_state.owners"
_BITS_EACH, _PROBES, _LEAST = 10, 7, 8


class OwnerFilter:
    """A set that may say yes of an owner who is not in it, and never no of one who is."""

    def __init__(self, bits: bytes) -> None:
        self._bits = bits

    @classmethod
    def read(cls, written: bytes) -> Self | None:
        """Read a filter; None for what another tool has written there."""
        try:
            bits = b64decode(written, validate=True)
        except ValueError:
            return None
        return cls(bits) if len(bits) >= _LEAST else None

    def __contains__(self, owner: str) -> bool:
        return all(self._bits[at >> 3] & 1 << (at & 7) for at in _places(owner, len(self._bits)))


def written_owners(owners: Collection[str]) -> bytes:
    """Write the filter of a file's owners."""
    bits = bytearray(max(_LEAST, len(owners) * _BITS_EACH // 8))
    for owner in owners:
        for at in _places(owner, len(bits)):
            bits[at >> 3] |= 1 << (at & 7)
    return b64encode(bits)


def _places(owner: str, size: int) -> Iterator[int]:
    digest = hashlib.sha256(owner.encode()).digest()
    first, step = int.from_bytes(digest[:8]), int.from_bytes(digest[8:16]) | 1
    return ((first + number * step) % (size * 8) for number in range(_PROBES))
