"""Cursors of listings: where a page ended, and of which listing."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from redis_state.errors import InvalidField
from redis_state.serialization import codec

_MARK = 8


def write_cursor(listing: Any, place: bytes) -> str:
    """Write a place as a cursor of a listing, which is named by its filters."""
    text = base64.urlsafe_b64encode(_mark(listing) + place)
    return text.rstrip(b"=").decode()


def read_cursor(listing: Any, cursor: Any, *, length: int | None = None) -> bytes:
    """Return the place of a cursor. Errors: InvalidField for one of another listing, or none."""
    wrong = InvalidField("after", "is no cursor of this listing: its filters are part of it")
    if not isinstance(cursor, str) or not cursor.isascii():
        raise wrong
    try:
        found = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise wrong from None
    place = found[_MARK:]
    if found[:_MARK] != _mark(listing) or (length is not None and len(place) != length):
        raise wrong
    return place


def _mark(listing: Any) -> bytes:
    return codec.fingerprint("cursor", listing).encode()[:_MARK]
