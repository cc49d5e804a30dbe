"""The shapes of answers, for OpenAPI. `redis_state.gateway.documents` writes them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from redis_state.models import TaskStatus, TaskType


class _Result(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class ErrorFacts(BaseModel):
    """What went wrong. There may be more facts, by the code."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    code: str
    message: str


class ErrorResult(_Result):
    """Every error has this shape."""

    error: ErrorFacts


class LinkResult(_Result):
    """The task that another one was made from."""

    session_id: str
    task_id: str
    before: str | None = None


class StateResult(_Result):
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


class RunningResult(_Result):
    """A step that runs now."""

    step: str
    attempt: int
    began_at: datetime


class TaskResult(StateResult):
    """A task with what its workers know of it."""

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
    running: list[RunningResult]


class SummaryResult(_Result):
    """A task that was found, without its result."""

    session_id: str
    task_id: str
    status: TaskStatus
    handler: str
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


class TasksResult(_Result):
    """A page of tasks. ``cursor`` is null at the end; a short page may have one.

    One that is ``incomplete`` lacks archived tasks: the archive could not be read.
    """

    tasks: list[SummaryResult]
    cursor: str | None
    incomplete: bool


class SessionResult(_Result):
    """A session, and how many tasks of each status it has."""

    session_id: str
    counts: dict[str, int]
    newest_at: datetime | None = None


class SessionsResult(_Result):
    """A page of sessions."""

    sessions: list[SessionResult]
    cursor: str | None


class ErasureResult(_Result):
    """What there was of a session, by class, and what stays."""

    sessions: list[str]
    dry_run: bool
    redis: dict[str, int]
    archive: dict[str, int]
    claims: int
    cancelled: int
    kept: dict[str, str]
    failed: dict[str, str]
    complete: bool


class BranchResult(_Result):
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


class TreeResult(_Result):
    """The tasks of a session as trees."""

    trees: list[BranchResult]


class StepResult(_Result):
    """A recorded step."""

    version: int
    step: str
    checkpoint: bool
    run: int
    began_at: datetime | None
    at: datetime
    attempts: int
    size: int


class StepsResult(_Result):
    """The recorded steps of a task in order."""

    snapshots: list[StepResult]


class FullStepResult(StepResult):
    """A recorded step with its result."""

    result: Any


class CompensationResult(_Result):
    """What a handler registered to be undone."""

    name: str
    state: str
    error: str | None
    on_cancel: bool


class RowResult(_Result):
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


class DeciderResult(_Result):
    """One who is named to decide a pause."""

    name: str
    state: str
    at: datetime | None
    delegated_to: str | None


class EscalationResult(_Result):
    """When a pause is handed on, and to whom."""

    at: datetime
    to: list[str]
    replace: bool
    done: bool


class PauseResult(_Result):
    """A pause: open, or resolved by whom, when and how."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", protected_namespaces=())

    state: Literal["open", "resolved"]
    session_id: str
    task_id: str
    pause_id: str | None
    name: str
    reason: str | None = None
    payload: Any = None
    tags: list[str]
    opened_at: datetime | None = None
    expires_at: datetime | None = None
    on_timeout: str | None = None
    form: dict[str, Any] | None = Field(default=None, alias="schema")
    approvals: int | None = None
    rejections: int | None = None
    deciders: list[DeciderResult] | None = None
    escalations: list[EscalationResult] | None = None
    by: str | None = None
    at: datetime | None = None
    decision: Any = None


class PausesResult(_Result):
    """A page of open pauses, the oldest first."""

    pauses: list[PauseResult]
    cursor: str | None


class TimelineResult(_Result):
    """Everything that is known of a task's runs. ``rows`` are a page of its updates.

    ``missed`` counts the updates before this page that retention has removed.
    """

    task: TaskResult
    steps: list[StepResult]
    compensations: list[CompensationResult]
    pauses: list[PauseResult]
    rows: list[RowResult]
    missed: int | None
    cursor: str
    at_end: bool


class SubmittedResult(_Result):
    """A task that was submitted, or was there already under its id."""

    session_id: str
    task_id: str
    created: bool


class MovedResult(_Result):
    """A task that was changed, and its status."""

    session_id: str
    task_id: str
    status: TaskStatus


class MadeResult(_Result):
    """A task that was made from another."""

    session_id: str
    task_id: str


class SteeredResult(_Result):
    """A steering event that was sent."""

    session_id: str
    task_id: str
    event_id: str
    type: str
    source: str


class DecidedResult(_Result):
    """A pause that was decided or voted on. ``task`` is null if the caller may not read it."""

    pause_id: str
    by: str
    approved: bool
    task: MovedResult | None


class DelegatedResult(_Result):
    """A vote that was handed on."""

    pause_id: str
    by: str
    to: str


class BulkItemResult(_Result):
    """One task, and what became of it."""

    session_id: str
    task_id: str
    status: TaskStatus
    outcome: Literal["would", "done", "refused", "failed"]
    new_task_id: str | None
    reason: str | None


class BulkResult(_Result):
    """What became of all. ``more``: others match that are beyond the limit."""

    items: list[BulkItemResult]
    counts: dict[str, int]
    more: bool
    dry_run: bool


class RateResult(_Result):
    """So many in so many seconds."""

    limit: int
    per_s: float


class KeyLimitsResult(_Result):
    """The limits of one key."""

    running: int | None
    rate: RateResult | None


class QueueResult(_Result):
    """A queue."""

    name: str
    waiting: int
    later: int
    running: int
    oldest_s: float
    paused: bool
    limit: int | None
    per_key: int | None
    rate: RateResult | None
    keys: dict[str, KeyLimitsResult]


class QueuesResult(_Result):
    """The queues that workers serve."""

    queues: list[QueueResult]


class WorkerResult(_Result):
    """A worker process."""

    name: str
    instance: str
    host: str
    pid: int
    version: str
    queues: list[str]
    handlers: list[str]
    versions: dict[str, list[str]]
    max_tasks: int
    heartbeat: str
    draining: bool
    running: list[LinkResult]
    running_count: int
    counters: dict[str, int]
    started_at: datetime
    last_seen_at: datetime
    last_poll_at: datetime | None
    silent_s: float
    unpolled_s: float | None
    stalled: bool


class WorkersResult(_Result):
    """The live worker processes."""

    workers: list[WorkerResult]


class OccurrenceResult(_Result):
    """A moment of a schedule, and its task."""

    at: datetime | None
    session_id: str
    task_id: str
    state: str | None = None


class ScheduleResult(_Result):
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
    paused: bool
    next_at: datetime | None
    last: OccurrenceResult | None
    last_status: TaskStatus | None
    skipped_at: datetime | None
    skipped_why: str | None
    fired: int
    revision: str
    created_at: datetime


class SchedulesResult(_Result):
    """All schedules."""

    schedules: list[ScheduleResult]


class DeletedResult(_Result):
    """Whether there was something to delete."""

    deleted: bool


class HealthResult(_Result):
    """Whether this process serves."""

    status: str
