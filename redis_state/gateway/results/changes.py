"""Answers to changes of tasks: submitted, moved, made, steered, and many at once."""

from __future__ import annotations

from typing import Literal

from redis_state.gateway.results.base import ResultShape
from redis_state.models import TaskStatus


class GatheredResult(ResultShape):
    """The task that gets an input or an item."""

    session_id: str
    task_id: str


class SubmittedResult(ResultShape):
    """A task that was submitted, or was there already under its id."""

    session_id: str
    task_id: str
    created: bool


class MovedResult(ResultShape):
    """A task that was changed, and its status."""

    session_id: str
    task_id: str
    status: TaskStatus


class MadeResult(ResultShape):
    """A task that was made from another."""

    session_id: str
    task_id: str


class SteeredResult(ResultShape):
    """A steering event that was sent."""

    session_id: str
    task_id: str
    event_id: str
    type: str
    source: str


class BulkItemResult(ResultShape):
    """One task, and what became of it."""

    session_id: str
    task_id: str
    status: TaskStatus
    outcome: Literal["would", "done", "refused", "failed"]
    new_task_id: str | None
    reason: str | None


class BulkResult(ResultShape):
    """What became of all. ``more``: others match that are beyond the limit."""

    items: list[BulkItemResult]
    counts: dict[str, int]
    more: bool
    dry_run: bool
