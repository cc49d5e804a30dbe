"""Answers about sessions: how many tasks they have, and what was erased."""

from __future__ import annotations

from datetime import datetime

from redis_state.gateway.results.base import ResultShape


class SessionResult(ResultShape):
    """A session, and how many tasks of each status it has.

    An ``archived`` one is in the archive alone. Of an ``incomplete`` one the newest are counted.
    One without tasks has updates.
    """

    session_id: str
    counts: dict[str, int]
    newest_at: datetime | None = None
    archived: bool = False
    incomplete: bool = False


class SessionsResult(ResultShape):
    """A page of sessions."""

    sessions: list[SessionResult]
    cursor: str | None


class ErasureResult(ResultShape):
    """What there was of a session, by class, and what stays."""

    sessions: list[str]
    dry_run: bool
    redis: dict[str, int]
    archive: dict[str, int]
    claims: int
    durable_events: int
    cancelled: int
    kept: dict[str, str]
    failed: dict[str, str]
    complete: bool
