"""What requests for a durable stream say in their headers and their query. Without I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote

from starlette.datastructures import Headers, QueryParams

from redis_state.errors import InvalidField
from redis_state.models.streams import (
    BEGINNING,
    ProducerBatch,
    StreamLifetime,
    StreamOrigin,
    check_path,
    read_offset,
)

ROOT: Final = ("v1", "stream")
LONG_POLL: Final = "long-poll"
EVENTS: Final = "sse"
# What is below it belongs to the protocol: see PROTOCOL.md, section 6.
RESERVED: Final = "__ds"

_WHOLE = re.compile(r"0|[1-9][0-9]{0,15}")
_DIGITS = re.compile(r"[0-9]{1,16}")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_MOST_NUMBER = 2**53 - 1


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """From where to read, and whether to wait for more."""

    offset: str
    live: str | None
    cursor: int | None


def read_query(query: QueryParams) -> ReadQuery:
    """Read the parameters of a read; others are ignored. Errors: InvalidField."""
    for name in ("offset", "live", "cursor"):
        if len(query.getlist(name)) > 1:
            raise InvalidField(name, "was given twice")
    live, offset, cursor = query.get("live"), query.get("offset"), query.get("cursor", "")
    if live not in (None, LONG_POLL, EVENTS):
        raise InvalidField("live", f"is {LONG_POLL} or {EVENTS}")
    if live is not None and offset is None:
        raise InvalidField("offset", "is needed by a live read")
    if offset is None:
        offset = BEGINNING
    read_offset(offset)
    return ReadQuery(offset, live, int(cursor) if _DIGITS.fullmatch(cursor) else None)


def is_closing(headers: Headers) -> bool:
    """Return whether a stream is to be closed: any other value is none."""
    return headers.get("stream-closed", "").lower() == "true"


def lifetime_of(headers: Headers) -> StreamLifetime:
    """Read how long a stream is to be kept. Errors: InvalidField."""
    ttl, expires = headers.get("stream-ttl"), headers.get("stream-expires-at")
    if ttl is not None and expires is not None:
        raise InvalidField("Stream-TTL", "and Stream-Expires-At exclude each other")
    if ttl is not None:
        return StreamLifetime(ttl_s=_whole("Stream-TTL", ttl))
    if expires is None:
        return StreamLifetime()
    try:
        if not _MOMENT.fullmatch(expires):
            raise InvalidField("Stream-Expires-At", "is no moment as in RFC 3339")
        return StreamLifetime(expires_at=datetime.fromisoformat(expires.upper()).astimezone(UTC))
    except (ValueError, OverflowError):
        raise InvalidField("Stream-Expires-At", "is no moment as in RFC 3339") from None


def batch_of(headers: Headers) -> ProducerBatch | None:
    """Read which batch of a producer a body is. Errors: InvalidField."""
    names = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
    given = [headers.get(name) for name in names]
    if given == [None, None, None]:
        return None
    for name, value in zip(names, given, strict=True):
        if not value:
            raise InvalidField(name, "is needed: the three of a producer come together")
    producer, epoch, number = (value or "" for value in given)
    return ProducerBatch(
        text_of(producer), _whole("Producer-Epoch", epoch), _whole("Producer-Seq", number)
    )


def origin_of(headers: Headers, root_path: str) -> StreamOrigin | None:
    """Read what a stream is to be a fork of. Errors: InvalidField."""
    path, offset = headers.get("stream-forked-from"), headers.get("stream-fork-offset")
    part = headers.get("stream-fork-sub-offset")
    if path is None:
        if offset is not None or part is not None:
            raise InvalidField("Stream-Forked-From", "is needed by an offset of a fork")
        return None
    found = path_below(path, root_path)
    if found is None:
        raise InvalidField("Stream-Forked-From", "is no path of a stream here")
    count = 0 if part is None else _whole("Stream-Fork-Sub-Offset", part)
    if offset is None:
        return StreamOrigin(found, None, count)
    place = read_offset(offset)
    return StreamOrigin(found, place.whole, place.taken + count)


def path_below(url_path: str, root_path: str) -> str | None:
    """Return a stream's path from that of its URL; None if it is no stream's here."""
    parts = url_path.removeprefix(root_path).split("/")[1:]
    return stream_path([unquote(part, errors="surrogateescape") for part in parts])


def stream_path(parts: list[str]) -> str | None:
    """Return a stream's path from the decoded parts of its URL's; None if it is no stream's.

    A slash that was percent-encoded is one of the path. Errors: InvalidField.
    """
    below = parts[len(ROOT) :]
    if not below or tuple(parts[: len(ROOT)]) != ROOT:
        return None
    return check_path("/".join(below))


def text_of(header: str) -> str:
    """Return a header's text: servers read its bytes as Latin-1."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


def _whole(name: str, text: str) -> int:
    if not _WHOLE.fullmatch(text) or int(text) > _MOST_NUMBER:
        raise InvalidField(name, "is a whole number without sign or leading zeros")
    return int(text)
