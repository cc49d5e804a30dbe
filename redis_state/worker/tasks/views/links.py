"""Links between tasks: which task another one was made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redis_state.serialization import codec


@dataclass(frozen=True, slots=True)
class TaskLink:
    """The task that another one was made from. ``before`` is the entry at which a fork begins."""

    session_id: str
    task_id: str
    before: str | None = None


def link_of(fields: Mapping[str, bytes], name: str) -> TaskLink | None:
    """Read the task that a task was made from. Errors: ValueError, TypeError."""
    written = fields.get(name)
    return None if not written else TaskLink(*codec.decode(written))


def write_link(session_id: str, task_id: str, before: str | None = None) -> bytes:
    """Write the task that a task was made from."""
    return codec.encode([session_id, task_id] + ([] if before is None else [before]))
