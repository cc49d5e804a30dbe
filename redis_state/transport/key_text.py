"""Any text as a part of a key, or as the id of a log's entry."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

from redis_state.errors import InvalidField

_LONGEST = 120
_DIGEST = "%~"
# Caches of escaped ids keep no longer ones.
LONGEST_REMEMBERED = 240
_LONGEST_ENTRY = 64


def escape(field: str, value: str) -> str:
    """Write any text as one key part: two texts never give the same part.

    Only ``A-Za-z0-9_.-~`` and ``%XX`` come out, so no text can break out of its braces or act
    as a pattern. Empty text is ``%``; what would be longer than 120 characters is ``%~`` and its
    SHA-256. Errors: InvalidField names ``field`` when the value is not text.
    """
    # First what nearly all ids are.
    if type(value) is str and value.isalnum() and value.isascii() and len(value) <= _LONGEST:
        return value
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidField(field, f"text is needed, not {type(value).__name__}")
    if value == "":
        return "%"
    # Remembered, as long as it is short: each operation names the same few ids again.
    return _escaped(value) if len(value) <= _LONGEST else _escaped.__wrapped__(value)


@lru_cache(maxsize=4096)
def _escaped(value: str) -> str:
    # As bytes first: a lone surrogate is an id like any other, and quote() itself refuses it.
    raw = value.encode("utf-8", "surrogatepass")
    written = quote(raw, safe="")
    if len(written) > _LONGEST:
        return _DIGEST + hashlib.sha256(raw).hexdigest()
    return written


def is_digest(part: str) -> bool:
    """Return whether `escape` wrote the digest of a text that was too long."""
    return part.startswith(_DIGEST)


def unescape(part: str) -> str:
    """Read what `escape` wrote of a text that was not too long: else its digest comes back."""
    if part == "%":
        return ""
    return unquote_to_bytes(part).decode("utf-8", "surrogatepass") if "%" in part else part


def entry_id(field: str, value: str) -> bytes:
    """Write any text as a log's entry id: itself up to 64 bytes, else ``%~`` and its SHA-256.

    The second form has 66 bytes, so it can never be mistaken for the first.
    """
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidField(field, f"text is needed, not {type(value).__name__}")
    raw = value.encode("utf-8", "surrogatepass")
    if 0 < len(raw) <= _LONGEST_ENTRY:
        return raw
    return b"%~" + hashlib.sha256(raw).hexdigest().encode()


def entry_id_in(field: str, value: str, topic: str) -> bytes:
    """Write a text as the entry id that it has in one topic, should another topic have its own.

    It has 67 bytes, so it can never be mistaken for an `entry_id`.
    """
    parts = entry_id(field, value) + b"\0" + topic.encode("utf-8", "surrogatepass")
    return b"%~~" + hashlib.sha256(parts).hexdigest().encode()
