"""How an archive writes what was stored: fields as JSON, times as moments, the order of creation.

No I/O.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from redis_state.stores.sessions.task_fields import microseconds
from redis_state.stores.sessions.task_status import watch_entry
from redis_state.stores.task_index import LATEST_US

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Of a task's place.
TIME_BYTES, ID_BYTES = 7, 10
# What the archive itself writes into a record.
OWN_FIELDS: Final = (b"archived", b"archive_hold")


def task_place(session_id: str, task_id: str, at: datetime) -> bytes:
    """Return a task's place in the order of creation or of ends: 7 bytes of time, 10 of its id.

    It is the place that the index of tasks has. So live and archived tasks have one order.
    """
    at_us = microseconds(listed_moment(at))
    entry = watch_entry(session_id, task_id)
    # The index distinguishes tasks of one microsecond by this digest. It protects nothing.
    digest = hashlib.sha1(entry, usedforsecurity=False).digest()
    return at_us.to_bytes(TIME_BYTES, "big") + digest[:ID_BYTES]


def listed_moment(at: datetime) -> datetime:
    """Return a time of a task as an archive lists it: within what the index of tasks can list.

    A host may give any. In UTC some are of a year that Python has not.
    """
    us = microseconds(at)
    listed_us = min(max(us, 0), LATEST_US)
    return at if us == listed_us else moment_of_us(listed_us)


def place_us(place: bytes) -> int:
    """Return the time of a place, in microseconds."""
    return int.from_bytes(place[:TIME_BYTES], "big")


def json_of(fields: Mapping[bytes, bytes]) -> str:
    """Write fields as one ASCII JSON object; bytes that are no text are surrogates in it."""
    named = {as_text(name): as_text(value) for name, value in fields.items()}
    return json.dumps(named, sort_keys=True, separators=(",", ":"))


def fields_of(text: str) -> dict[bytes, bytes]:
    """Read what `json_of` wrote. Errors: ValueError."""
    return {as_bytes(name): as_bytes(value) for name, value in json.loads(text).items()}


def moment_of_us(us: int) -> datetime:
    """Return a moment of the server's, counted in microseconds."""
    return _EPOCH + timedelta(microseconds=us)


def moment_of_ms(ms: int) -> datetime:
    """Return a moment of the server's, counted in milliseconds."""
    return _EPOCH + timedelta(milliseconds=ms)


def record_fields(fields: Mapping[bytes, bytes]) -> str:
    """Write all fields of a record but the archive's own, as `json_of` does."""
    return json_of({name: value for name, value in fields.items() if name not in OWN_FIELDS})


def as_text(value: bytes) -> str:
    """Return bytes as text; those that are no text are surrogates in it."""
    return value.decode("utf-8", "surrogateescape")


def as_bytes(value: str) -> bytes:
    """Return what `as_text` was given."""
    return value.encode("utf-8", "surrogateescape")
