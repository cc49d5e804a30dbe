"""Rows of logs: JSON arrays of values in a fixed order, which begin with the layout's version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_state.serialization import codec

ROW_VERSION = 1


def pack(values: Sequence[Any]) -> bytes:
    """Write a row: a JSON array of its values in fixed order, after the layout's version."""
    return codec.encode([ROW_VERSION, *values])


def unpack(data: bytes, size: int, *, more: int = 0) -> list[Any]:
    """Read a row's values, and up to so many ``more`` that it may have.

    Later versions may append values, never move them.
    """
    row: list[Any] = codec.decode(data)
    if codec.kind_of(row) is not list or not row:
        raise codec.DecodeError("not a row")
    if row[0] != ROW_VERSION:
        named = row[0] if isinstance(row[0], int) else "of no known kind"
        raise codec.DecodeError(f"row version {named} is not {ROW_VERSION}")
    if len(row) <= size:
        raise codec.DecodeError(f"a row of {len(row) - 1} values, not {size}")
    return row[1 : 1 + size + more]


def as_object(data: bytes) -> dict[str, Any]:
    """Read a document. Errors: codec.DecodeError."""
    document: dict[str, Any] = codec.decode(data)
    if codec.kind_of(document) is not dict:
        raise codec.DecodeError("not an object")
    return document
