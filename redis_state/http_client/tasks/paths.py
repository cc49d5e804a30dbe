"""Paths and queries of requests about tasks and sessions."""

from __future__ import annotations

from datetime import UTC, datetime

from redis_state import limits
from redis_state.worker.client.operations import check_id


def session_path(session_id: str, *more: str) -> tuple[str, ...]:
    """Return the path of a session, or of something in it. Errors: InvalidField."""
    check_id("session_id", session_id)
    return ("sessions", session_id, *more)


def task_path(session_id: str, task_id: str, *more: str) -> tuple[str, ...]:
    """Return the path of a task, or of something of it. Errors: InvalidField."""
    path = session_path(session_id, "tasks")
    check_id("task_id", task_id)
    return (*path, task_id, *more)


def page_query(limit: int, after: str | None = None) -> list[tuple[str, str]]:
    """Return which page of a list is wanted. Errors: InvalidField."""
    query = [("limit", str(limits.count("limit", limit)))]
    return query if after is None else [*query, ("after", after)]


def moment_text(moment: datetime | None) -> str | None:
    """Write a moment. One without a time zone is taken as UTC, as by the direct client."""
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
