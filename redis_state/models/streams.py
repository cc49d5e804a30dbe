"""Durable streams: what is known of one, a page of its rows, and what an append did."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from redis_state.errors import InvalidField

JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
# What an offset may be instead of a place.
BEGINNING: Final = "-1"
END: Final = "now"
FIRST_OFFSET: Final = f"{0:016d}_{0:016d}"

_OFFSET = re.compile(r"([0-9]{16})_([0-9]{16})")
# Behind it so many bytes of the next row were read, and the server's time of that row.
_PART = re.compile(r"([0-9]{16}_[0-9]{16})_([0-9]{10})_([0-9]{16})")
_LONGEST_CHARACTER = 4
_LONGEST_PATH = 1_000
_PRINTABLE = re.compile(r"[ -~]{1,200}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TYPE = re.compile(r"[!#$%&'*+.^`|~0-9a-z-]+/[!#$%&'*+.^`|~0-9a-z-]+")
# A scope may end with a star, for all below it.
_REFUSED_PARTS = frozenset({"", ".", "..", "*"})


@dataclass(frozen=True, slots=True)
class StreamLifetime:
    """How long a stream is kept: so many seconds after a use, or until a moment; else a default."""

    ttl_s: int | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StreamOrigin:
    """What a stream is a fork of: all before an offset, and so much of the row behind it.

    ``part`` are bytes, or messages of a stream of JSON. No offset is the end.
    """

    path: str
    offset: str | None = None
    part: int = 0


@dataclass(frozen=True, slots=True)
class StreamView:
    """What is known of a stream. ``offset`` is its end, ``first`` where the kept rows begin."""

    path: str
    stream_id: str
    content_type: str
    offset: str
    first: str
    closed: bool
    size_bytes: int
    ttl_s: int | None
    expires_at: str | None

    @property
    def is_json(self) -> bool:
        """Whether its rows are messages of JSON."""
        return media_type(self.content_type) == JSON


@dataclass(frozen=True, slots=True)
class ReadOffset:
    """An offset as it was given: that of a row, and how much of the row behind it was read.

    The row behind it is known by its time too: a server that went back may have another one there.
    """

    whole: str
    taken: int = 0
    row_ms: str = ""


@dataclass(frozen=True, slots=True)
class StreamPage:
    """Rows behind an offset, in order; where to read on; whether the stream ended with them.

    ``offsets`` are those of its rows.
    """

    stream: StreamView
    rows: tuple[bytes, ...] = field(repr=False)
    start: str
    offset: str
    offsets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def at_end(self) -> bool:
        """Whether no row followed when it was read."""
        return self.offset == self.stream.offset

    @property
    def closed(self) -> bool:
        """Whether no row will ever follow."""
        return self.stream.closed and self.at_end

    def behind(self, offset: ReadOffset) -> StreamPage | None:
        """Return the page without what was read of its first row; None if that is another row."""
        if not offset.taken or not self.rows:
            return None if offset.taken else self
        first, *more = self.rows
        if self.offsets[0].partition("_")[2] != offset.row_ms or offset.taken >= len(first):
            return None
        return replace(self, rows=(first[offset.taken :], *more), start=_part_offset(offset))

    def joined(self, more: StreamPage) -> StreamPage:
        """Return the page with the one that follows it."""
        return replace(
            more,
            rows=self.rows + more.rows,
            start=self.start,
            offsets=self.offsets + more.offsets,
        )

    def whole_characters(self) -> StreamPage:
        """Return the page up to its last whole character of UTF-8.

        Its offset is within the row where the next character begins, so that nothing is lost.
        """
        tail = b"".join(self.rows[1 - _LONGEST_CHARACTER :])[1 - _LONGEST_CHARACTER :]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(tail)
        open_bytes = len(decoder.getstate()[0])
        if not open_bytes:
            return self
        rows = list(self.rows)
        while open_bytes and len(rows[-1]) <= open_bytes:
            open_bytes -= len(rows.pop())
        if open_bytes:
            rows[-1] = rows[-1][:-open_bytes]
        offset = self._offset_within(rows) if open_bytes else self._offset_behind(len(rows))
        return replace(self, rows=tuple(rows), offset=offset, offsets=self.offsets[: len(rows)])

    def _offset_behind(self, count: int) -> str:
        return self.offsets[count - 1] if count else self.start

    def _offset_within(self, rows: list[bytes]) -> str:
        """Return the offset behind a part of the last one of the rows."""
        before = read_offset(self._offset_behind(len(rows) - 1))
        row_ms = self.offsets[len(rows) - 1].partition("_")[2]
        return _part_offset(ReadOffset(before.whole, before.taken + len(rows[-1]), row_ms))

    def body(self) -> bytes:
        """Return the rows as one: bytes behind bytes, or a list of JSON."""
        return b"[" + b",".join(self.rows) + b"]" if self.stream.is_json else b"".join(self.rows)


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """Which batch of a producer something is: the producer's epoch, and its number in it."""

    producer: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class StreamAppended:
    """What an append did. A repeated batch changes nothing; ``number`` is the highest one."""

    offset: str
    closed: bool
    repeated: bool = False
    number: int | None = None


def check_path(path: Any) -> str:
    """Check a stream's path: parts between slashes. Errors: InvalidField."""
    if not isinstance(path, str):
        raise InvalidField("path", "text is needed")
    if not 0 < len(path) <= _LONGEST_PATH:
        raise InvalidField("path", f"needs 1 to {_LONGEST_PATH} characters")
    if any(part in _REFUSED_PARTS for part in path.split("/")):
        raise InvalidField("path", "no part may be empty, a dot, two dots or a star")
    if _CONTROL.search(path):
        raise InvalidField("path", "may not hold control characters")
    return path


def media_type(content_type: str) -> str:
    """Return a content type without its parameters, in small letters."""
    return content_type.partition(";")[0].strip().lower()


def check_type(content_type: Any) -> str:
    """Check a content type. Errors: InvalidField."""
    known = isinstance(content_type, str) and _PRINTABLE.fullmatch(content_type)
    if not known or not _TYPE.fullmatch(media_type(content_type)):
        raise InvalidField("content_type", "is no content type")
    return str(content_type)


def place_of(offset: Any) -> str:
    """Read an offset: a place, ``now``, or empty for the oldest. Errors: InvalidField."""
    if offset == BEGINNING:
        return ""
    if offset == END:
        return END
    found = _OFFSET.fullmatch(offset) if isinstance(offset, str) else None
    if found is None:
        raise InvalidField("offset", "is no offset of a stream")
    return f"{int(found[1])}-{int(found[2])}"


def read_offset(offset: Any) -> ReadOffset:
    """Read an offset from which rows may be read, also one within a row. Errors: InvalidField."""
    found = _PART.fullmatch(offset) if isinstance(offset, str) else None
    if found is None:
        place_of(offset)
        return ReadOffset(offset)
    return ReadOffset(found[1], int(found[2]), found[3])


def _part_offset(offset: ReadOffset) -> str:
    """Write an offset within a row: as text it is above that of the row before, and below this."""
    return f"{offset.whole}_{offset.taken:010d}_{offset.row_ms}"


def offset_of(place: bytes | str) -> str:
    """Write a place as an offset: as text, offsets have the order of their places."""
    text = place.decode() if isinstance(place, bytes) else place
    n, _, ms = text.partition("-")
    return f"{int(n):016d}_{int(ms):016d}"
