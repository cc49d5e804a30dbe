"""Answers about schedules."""

from __future__ import annotations

from datetime import datetime

from redis_state.gateway.results.base import ResultShape
from redis_state.models import TaskStatus


class OccurrenceResult(ResultShape):
    """A moment of a schedule, and its task."""

    at: datetime | None
    session_id: str
    task_id: str
    state: str | None = None


class ScheduleResult(ResultShape):
    """A schedule."""

    schedule_id: str
    handler: str
    session_id: str
    cron: str | None
    timezone: str
    every_s: float | None
    anchor: datetime | None
    start: datetime | None
    end: datetime | None
    queue: str | None
    priority: int
    description: str | None
    missed: str
    max_missed: int
    grace_s: float
    overlap: str
    attributes: dict[str, str | int | bool]
    limit_key: str | None
    in_turn: bool
    on_busy: str | None
    paused: bool
    next_at: datetime | None
    last: OccurrenceResult | None
    last_status: TaskStatus | None
    skipped_at: datetime | None
    skipped_why: str | None
    fired: int
    revision: str
    created_at: datetime


class OccurrencesResult(ResultShape):
    """Moments of a schedule, and their tasks."""

    occurrences: list[OccurrenceResult]


class SchedulesResult(ResultShape):
    """Schedules. ``cursor`` continues behind them; it is null at the end."""

    schedules: list[ScheduleResult]
    cursor: str | None
