"""Archived tasks that no Redis ever had."""

from __future__ import annotations

import json

from redis_state.archive.encoding import moment_of_ms
from redis_state.archive.model import ArchivedTask

_AT_MS = 1_700_000_000_000


def sample_task(
    session: str, task: str, version: int, *, at_ms: int = _AT_MS, user: str | None = None
) -> ArchivedTask:
    """Make a task that was made at a time, and failed a second later."""
    attributes = {} if user is None else {"user": user}
    record = {
        b"order": b"%d" % (at_ms * 1000),
        b"version": b"%d" % version,
        b"write": b"w",
        b"status": b"FAILED",
        b"updated_at": b"%d" % (at_ms * 1000 + 1_000_000),
        b"document": b'{"task_type":"BACKGROUND","created_at":"%s"}'
        % moment_of_ms(at_ms).isoformat().encode(),
        b"attributes": json.dumps(attributes).encode(),
        b"job": b'{"handler":"h","secret":"AbC-_123"}',
    }
    return ArchivedTask.of(session, task, [part for pair in record.items() for part in pair], [])
