"""Durable streams: what is known of one, a page of its rows, and what an append did."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
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
class StreamPage:
    """Rows behind an offset, in order; where to read on; whether the stream ended with them."""

    stream: StreamView
    rows: tuple[bytes, ...] = field(repr=False)
    start: str
    offset: str

    @property
    def at_end(self) -> bool:
        """Whether no row followed when it was read."""
        return self.offset == self.stream.offset

    @property
    def closed(self) -> bool:
        """Whether no row will ever follow."""
        return self.stream.closed and self.at_end

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


def offset_of(place: bytes | str) -> str:
    """Write a place as an offset: as text, offsets have the order of their places."""
    text = place.decode() if isinstance(place, bytes) else place
    n, _, ms = text.partition("-")
    return f"{int(n):016d}_{int(ms):016d}"
