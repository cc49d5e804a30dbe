"""Values that continue others: a list that has grown is stored as what was added to it.

A value whose bytes begin as those of a stored value of its channel do is stored as a *tail*: the
name of that value, its *base*, and what stands behind the common part. A base may be a tail too. A
tail begins with a byte that begins no MessagePack. Its base's name and the digest of what is stored
there follow in clear, for the scripts. The rest is sealed as other values are.

A put is refused if a base is not there, or is not what the writer took it for. It is made again
with values that stand alone. So what a process remembers of a thread may be old.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from redis_state.errors import CorruptState

SIGN = b"\xc1"
_LENGTH = 2
_DIGEST = 16
# What is shorter costs more as a tail.
LEAST = 512
# Tails behind one another at most, also where each must be opened.
_CHAIN = 16
_CHAIN_SEALED = 4

# The serializer's header, the common part's start and length in the base, what stands behind it.
Parts: TypeAlias = tuple[bytes, int, int, bytes]


@dataclass(slots=True)
class StoredValue:
    """A value as it is stored, and as the serializer wrote it. ``chain`` counts its tails."""

    name: bytes
    stored: bytes = field(repr=False)
    kind: str
    data: bytes = field(repr=False)
    chain: int

    @property
    def size(self) -> int:
        """Return how many bytes are held."""
        return len(self.stored) + len(self.data)


class Tail(NamedTuple):
    """A tail as it is stored."""

    base: bytes
    sealed: bytes


def parts_of(base: StoredValue, data: bytes, *, sealed: bool) -> Parts | None:
    """Return what makes a value of its base; None if too little of it is the same."""
    most = _CHAIN_SEALED if sealed else _CHAIN
    if base.chain >= most or len(data) < LEAST or len(base.name) >= 1 << 8 * _LENGTH:
        return None
    start, own = _header(base.data), _header(data)
    before, after = base.data[start:], data[own:]
    count = _common(before, after)
    if 2 * count < len(data):
        return None
    return data[:own], start, count, after[count:]


def written(base: StoredValue, sealed: bytes) -> bytes:
    """Write a tail."""
    digest = hashlib.sha1(base.stored, usedforsecurity=False).hexdigest()[:_DIGEST]
    length = len(base.name).to_bytes(_LENGTH, "big")
    return b"".join((SIGN, length, base.name, digest.encode(), sealed))


def read(data: bytes) -> Tail:
    """Read a tail."""
    first = len(SIGN) + _LENGTH
    end = first + int.from_bytes(data[len(SIGN) : first], "big")
    return Tail(data[first:end], data[end + _DIGEST :])


def extend(value: bytearray, parts: Parts, *, of: str) -> None:
    """Make the base's bytes those of the value. Errors: CorruptState."""
    head, start, count, rest = parts
    if start + count > len(value):
        raise CorruptState(of, "a value is longer than what it continues")
    del value[start + count :]
    value[:start] = head
    value += rest


def _header(data: bytes) -> int:
    """Return how many bytes of MessagePack stand before a value's own."""
    match data[0]:
        case 0xDC | 0xDE | 0xDA:
            return 3
        case 0xDD | 0xDF | 0xDB:
            return 5
        case 0xD9:
            return 2
        case _:
            return 1


def _common(one: bytes, other: bytes) -> int:
    """Count the bytes with which both begin."""
    most = min(len(one), len(other))
    if one[: LEAST // 2] != other[: LEAST // 2]:
        return 0
    if other.startswith(one):
        return most
    least, most = 0, most + 1
    while most - least > 1:
        middle = (least + most) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle
    return least
