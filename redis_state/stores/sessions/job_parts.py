"""A task's handler, input and secret in its record: a document that stands there in parts.

A server keeps a hash compact whose values have at most 64 bytes each: a task's record takes half as
much then. So a document of up to eight times that is written as ``job``, ``job:1``, ``job:2`` and
so on. A larger one stands in ``job`` whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

# Redis' and Valkey's own `hash-max-listpack-value`.
_PART = 64
_MOST_PARTS = 8
JOB = "job"
_MORE: tuple[str, ...] = tuple(f"{JOB}:{n}" for n in range(1, _MOST_PARTS))
# All that may be there of it, for a reader of single fields.
JOB_FIELDS: tuple[str, ...] = (JOB, *_MORE)
_MORE_BYTES = frozenset(name.encode() for name in _MORE)


def job_fields(document: bytes) -> dict[str, bytes]:
    """Write the document as fields of its task's record."""
    if not _PART < len(document) <= _PART * _MOST_PARTS:
        return {JOB: document}
    parts = range(0, len(document), _PART)
    return {
        name: document[start : start + _PART]
        for name, start in zip(JOB_FIELDS, parts, strict=False)
    }


def job_of(fields: Mapping[str, bytes]) -> bytes:
    """Return the document of a task's record. Errors: KeyError for a task of a host."""
    first = fields[JOB]
    if _MORE[0] not in fields:
        return first
    return first + b"".join(fields[name] for name in takewhile(fields.__contains__, _MORE))


def job_in(values: Sequence[bytes | None]) -> bytes | None:
    """Return the document by the values of `JOB_FIELDS`; None for a task of a host."""
    return None if values[0] is None else b"".join(value for value in values if value is not None)


def with_whole_job(fields: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return a record's fields with the document in one of them."""
    whole = job_in([fields.get(name.encode()) for name in JOB_FIELDS])
    rest = {name: value for name, value in fields.items() if name not in _MORE_BYTES}
    return rest if whole is None else rest | {JOB.encode(): whole}
