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
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple, TypeAlias

from redis_state.errors import CorruptState

SIGN = b"\xc1"
_LENGTH = 2
_DIGEST = 16
# What is shorter costs more as a tail.
_LEAST = 512
# Tails behind one another at most, also where each must be opened.
_CHAIN = 16
_CHAIN_SEALED = 4
_REMEMBERED_BYTES = 32 * 1024 * 1024

# The serializer's header, the common part's start and length in the base, what stands behind it.
Parts: TypeAlias = tuple[bytes, int, int, bytes]
_Key: TypeAlias = tuple[str, str, str]


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
    if base.chain >= most or len(data) < _LEAST or len(base.name) >= 1 << 8 * _LENGTH:
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


class Newest:
    """The values of channels that this process put or got last: of the last 32 MiB."""

    def __init__(self) -> None:
        self._values: OrderedDict[_Key, StoredValue] = OrderedDict()
        self._bytes = 0
        # Callers that block have a loop in a thread of its own.
        self._lock = Lock()

    def of(self, thread_id: str, scope: str, channel: str) -> StoredValue | None:
        """Return what a channel's next value may continue."""
        return self._values.get((thread_id, scope, channel))

    def add(self, thread_id: str, scope: str, channel: str, value: StoredValue) -> None:
        """Remember a value that is stored, in place of the one before."""
        key = thread_id, scope, channel
        with self._lock:
            known = self._values.pop(key, None)
            self._bytes -= known.size if known else 0
            if len(value.data) < _LEAST:
                return
            self._values[key] = value
            self._bytes += value.size
            while self._bytes > _REMEMBERED_BYTES:
                self._bytes -= self._values.popitem(last=False)[1].size

    def forget(self, thread_id: str, scope: str, channels: Iterable[str]) -> None:
        """Forget what is not there any more."""
        with self._lock:
            for channel in channels:
                known = self._values.pop((thread_id, scope, channel), None)
                self._bytes -= known.size if known else 0


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
    if one[: _LEAST // 2] != other[: _LEAST // 2]:
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
