"""Answers about tasks: one, a page, a tree, its steps and its updates."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from redis_state.gateway.results.base import LinkResult, ResultShape
from redis_state.gateway.results.pauses import PauseResult
from redis_state.models import TaskStatus, TaskType


class StateResult(ResultShape):
    """A task."""

    session_id: str
    task_id: str
    status: TaskStatus
    task_type: TaskType
    priority: int
    trace_id: str | None
    description: str | None
    parent: str | None
    progress: dict[str, Any] | None
    error: str | None
    result: Any
    created_at: datetime
    updated_at: datetime


class RunningResult(ResultShape):
    """A step that runs now."""

    step: str
    attempt: int
    began_at: datetime


class TaskResult(StateResult):
    """A task with what its workers know of it.

    ``unreadable`` names which of ``result`` and ``error`` the gateway has no key or no store for.
    """

    handler: str | None
    version: str | None
    worker: str | None
    queue: str | None
    attempts: int
    crashes: int
    isolated: bool
    waits_for: str | None
    retries: int
    attributes: dict[str, str | int | bool]
    rerun_of: LinkResult | None
    forked_from: LinkResult | None
    archived: bool
    unreadable: list[str]
    running: list[RunningResult]


class SummaryResult(ResultShape):
    """A task that was found, without its result."""

    session_id: str
    task_id: str
    status: TaskStatus
    handler: str | None
    attributes: dict[str, str | int | bool]
    created_at: datetime
    updated_at: datetime
    description: str | None
    error: str | None
    priority: int
    queue: str | None
    worker: str | None
    attempts: int
    crashes: int
    retries: int
    parent: str | None
    rerun_of: LinkResult | None
    forked_from: LinkResult | None
    archived: bool


class TasksResult(ResultShape):
    """A page of tasks. ``cursor`` is null at the end; a short page may have one.

    One that is ``incomplete`` lacks archived tasks: the archive cannot be read, or has too many.
    """

    tasks: list[SummaryResult]
    cursor: str | None
    incomplete: bool


class DeadResult(ResultShape):
    """Tasks whose workers kept dying, the last given up first. ``more``: beyond this page.

    ``cursor`` is null at the end; a short page may have one.
    """

    tasks: list[TaskResult]
    cursor: str | None
    more: bool


class BranchResult(ResultShape):
    """A task and those that it has spawned."""

    session_id: str
    task_id: str
    status: TaskStatus
    task_type: TaskType
    priority: int
    trace_id: str | None
    description: str | None
    parent: str | None
    progress: dict[str, Any] | None
    error: str | None
    created_at: datetime
    updated_at: datetime
    children: list[BranchResult]


class TaskBranchResult(BranchResult):
    """A task and those that it has spawned.

    One that is ``incomplete`` lacks tasks: unreadable archived ones, or any 100 levels below.
    """

    incomplete: bool


class TreeResult(ResultShape):
    """The tasks of a session as trees.

    What is ``incomplete`` lacks tasks: unreadable archived ones, or any 100 levels below.
    """

    trees: list[BranchResult]
    incomplete: bool


class StepResult(ResultShape):
    """A recorded step."""

    version: int
    step: str
    checkpoint: bool
    run: int
    began_at: datetime | None
    at: datetime
    attempts: int
    size: int


class StepsResult(ResultShape):
    """The recorded steps of a task in order."""

    snapshots: list[StepResult]


class FullStepResult(StepResult):
    """A recorded step with its result."""

    result: Any


class CompensationResult(ResultShape):
    """What a handler registered to be undone."""

    name: str
    state: str
    error: str | None
    on_cancel: bool


class RowResult(ResultShape):
    """An update of a task. ``run`` is the epoch of the run that published it."""

    cursor: str
    run: int | None
    task_id: str
    trace_id: str | None
    update_id: str
    type: str
    content: Any
    step: int | None
    total: int | None
    at: datetime


class GapResult(ResultShape):
    """Updates that are not kept any more: how many, if that is known, why, and where they end."""

    missed: int | None
    reason: str
    resume_after: str


class UpdatesResult(ResultShape):
    """A page of a session's updates, of the archive and Redis. ``cursor`` reads on after them.

    ``gap`` is what is missing before them: neither has it. At the end there are no more yet.
    """

    rows: list[RowResult]
    gap: GapResult | None
    cursor: str
    at_end: bool


class TimelineResult(ResultShape):
    """Everything that is known of a task's runs. ``rows`` are a page of its updates.

    ``missed`` counts the updates before this page that retention has removed. One that is
    ``incomplete`` may lack updates that are only in the archive, which could not be read. A page
    may be empty before the end: read on after ``cursor`` until ``at_end``.
    """

    task: TaskResult
    steps: list[StepResult]
    compensations: list[CompensationResult]
    pauses: list[PauseResult]
    rows: list[RowResult]
    missed: int | None
    cursor: str
    at_end: bool
    incomplete: bool
