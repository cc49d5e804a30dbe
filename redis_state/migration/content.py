"""What a key holds, whatever its type: read in parts, compared by digest, written in parts."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from redis_state.transport.wire.resp import Argument

KINDS = frozenset({"string", "hash", "list", "zset", "stream"})
_PART_ITEMS, _PART_BYTES = 500, 1 << 20
_PAIRED = frozenset({"hash", "zset"})


@dataclass
class Content:
    """What a key holds. ``left_ms`` is what was left of its lifetime, None if it has none."""

    kind: str
    left_ms: int | None
    # Of a stream: its last id, the rows ever added, the highest id deleted.
    about: tuple[bytes, ...] = ()
    _items: list[list[bytes]] = field(default_factory=list[list[bytes]])
    _pairs: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    _read_at: float = field(default_factory=time.monotonic)

    @property
    def ttl_ms(self) -> int:
        """What is left of its lifetime by now, 0 for ever: a large key is read and written long."""
        if self.left_ms is None:
            return 0
        return max(1, self.left_ms - int((time.monotonic() - self._read_at) * 1000))

    def add(self, part: list[Any]) -> None:
        """Add a part as a script gave it: a walk through a hash may give an item twice."""
        if self.kind in _PAIRED:
            self._pairs.update(zip(part[::2], part[1::2], strict=True))
        elif self.kind == "stream":
            self._items += [[row_id, *words] for row_id, words in part]
        else:
            self._items += [[item] for item in part]

    @property
    def size(self) -> int:
        """Count the bytes of all items."""
        return sum(len(word) for item in self._all() for word in item)

    def holds(self, text: bytes) -> bool:
        """Return whether a text stands in an item, or in its name."""
        return any(text in word for item in self._all() for word in item)

    def digest(self) -> bytes:
        """Return what no other content has, on any server."""
        made = hashlib.blake2b(self.kind.encode(), digest_size=16)
        items = sorted(self._all()) if self.kind in _PAIRED else self._all()
        for item in items:
            words = [item[0], _score(item[1])] if self.kind == "zset" else item
            made.update(b"%d" % len(words))
            for word in words:
                made.update(b":%d:" % len(word) + word)
        made.update(b"".join(self.about[:1]))
        return made.hexdigest().encode()

    def parts(self) -> Iterator[tuple[int, list[Argument]]]:
        """Yield parts to be written: how many items stand before each, and its arguments."""
        part, size, before = list[Argument](), 0, 0
        for count, item in enumerate(self._all()):
            if part and (count - before >= _PART_ITEMS or size >= _PART_BYTES):
                yield before, part
                part, size, before = [], 0, count
            part += self._arguments(item)
            size += sum(map(len, item))
        yield before, part

    def _arguments(self, item: list[bytes]) -> list[Argument]:
        match self.kind:
            case "stream":
                return [item[0], len(item) - 1, *item[1:]]
            case "zset":
                return [item[1], item[0]]
            case _:
                return [*item]

    def _all(self) -> list[list[bytes]]:
        return [[*pair] for pair in self._pairs.items()] if self._pairs else self._items


def _score(written: bytes) -> bytes:
    """Write a score in one way: servers differ in how many digits they give."""
    return repr(float(written)).encode()
