"""The format of a task's record and its journal, for pools whose workers differ in version.

Raise `FORMAT` with a change that the release before cannot read. A record has the highest format of
those that have created or run its task; without one it is the first. A worker that reads no format
so high starts no such task: it is left to workers of the later version.
"""

from __future__ import annotations

from collections.abc import Mapping

FORMAT = 1


def format_fields() -> dict[str, bytes]:
    """Write the format of what this version writes. Nothing is written of the first."""
    return {} if FORMAT == 1 else {"format": b"%d" % FORMAT}


def latest_read() -> int:
    """Return the latest format that this version reads."""
    return FORMAT


def format_of_copy(source: Mapping[str, bytes]) -> dict[str, bytes]:
    """Write the format of a task that has the entries of another one's journal."""
    found = source.get("format")
    return format_fields() if found is None or int(found) <= FORMAT else {"format": found}
