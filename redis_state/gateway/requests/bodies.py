"""What the bodies of requests may say. An unknown name is refused."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, Field

from redis_state.gateway.requests.fields import (
    MOST_TASKS,
    Attribute,
    Attributes,
    Given,
    Id,
    Name,
    Priority,
    Seconds,
    SomeId,
    TaskCount,
    UpToADay,
)
from redis_state.gateway.requests.queries import ForgetQuery
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.worker.schedules.model import BackfillOverlap, Missed, Overlap, ScheduledOnBusy

MOST_IN_BULK = 500
MOST_IN_BACKFILL = 1_000
LONGEST_REQUEST_S = 30.0
# Policies for a busy session that cancel its other tasks: their caller needs the right to steer.
CANCELS: Final = ("interrupt", "replace")


class ForgetUserBody(ForgetQuery):
    """Whose sessions to erase: those with a task that has the attribute. And how."""

    user: Attribute
    attribute: Name = "user"
    shared: bool = Field(default=False, description="Also sessions with tasks of other users.")


class SubmitBody(Given):
    """A task. Its id is the header Idempotency-Key, or ``task_id``; else a new one."""

    handler: Name
    session_id: Id
    input: Any = None
    task_id: Id | None = None
    priority: Priority = 0
    description: str | None = None
    trace_id: str | None = None
    queue: Name | None = None
    delay_s: Seconds | None = Field(default=None, description="Begin so many seconds from now.")
    at: AwareDatetime | None = Field(default=None, description="Begin at this time.")
    limit_key: Name | None = Field(
        default=None, description="Limits of this key hold for the task."
    )
    in_turn: bool = False
    on_busy: Literal["enqueue", "reject", "interrupt", "replace"] | None = None
    attributes: Attributes = Field(default_factory=dict)


class _GatherBody(Given):
    handler: Name
    session_id: Id
    group: Annotated[str, Field(max_length=200)] = Field(
        default="", description="Calls of one session, handler and group share a task."
    )
    queue: Name | None = None
    priority: Priority = 0
    description: str | None = None
    limit_key: Name | None = Field(
        default=None, description="Limits of this key hold for the task."
    )
    in_turn: bool = False
    attributes: Attributes = Field(default_factory=dict)


class DebounceBody(_GatherBody):
    """An input of which the last counts: the task begins once none has come for ``wait_s``."""

    input: Any = None
    wait_s: UpToADay
    at_most_s: UpToADay | None = Field(
        default=None, description="The latest begin, from the first input; else ten times wait_s."
    )


class BatchBody(_GatherBody):
    """An item of a task's list. Its id is the header Idempotency-Key."""

    item: Any = None
    after_s: UpToADay
    most: Annotated[int, Field(ge=1, le=1_000)] = 100


class SteerBody(Given):
    """A steering event. A pause is decided by its own id."""

    type: SteeringEventType
    payload: dict[str, Any] = Field(default_factory=dict)


class SignalBody(Given):
    """A signal: its name, and what the handler gets with it."""

    name: str
    payload: Any = None


class RequestBody(Given):
    """A request: its name, what the handler gets with it, and how long this call waits."""

    name: str
    payload: Any = None
    wait_s: Annotated[float, Field(ge=0, le=LONGEST_REQUEST_S)] = 10.0


class RateBody(Given):
    """So many in so many seconds."""

    limit: Annotated[int, Field(ge=1, le=MOST_TASKS)]
    per_s: Annotated[float, Field(ge=0.001, le=7 * 86_400)]


class KeyLimitsBody(Given):
    """What holds for one key. Null takes a limit away; what is not given stays."""

    running: TaskCount | None = None
    rate: RateBody | None = None


class QueueLimitsBody(KeyLimitsBody):
    """What holds for a queue. Null takes a limit away; what is not given stays."""

    per_key: TaskCount | None = None


class SetRateBody(Given):
    """What holds in place of what handlers give. Null takes it away."""

    rate: RateBody | None


class CancelBody(Given):
    """Why a task is cancelled, and whether a running one may reach its next checkpoint."""

    reason: Annotated[str, Field(max_length=2_000)] | None = None
    hard: bool = False


class NoBody(Given):
    """Nothing."""


class RerunBody(Given):
    """The new task. Its id is the header Idempotency-Key, or ``new_task_id``."""

    new_task_id: Id | None = None
    new_session_id: Id | None = None
    attributes: Attributes | None = None
    queue: Name | None = None


class ForkBody(Given):
    """The new task, and the entry of the journal that it begins before."""

    before: str | None = None
    new_task_id: Id | None = None
    attributes: Attributes | None = None
    queue: Name | None = None


class BulkFilter(Given):
    """Which tasks: those that match all of it."""

    status: list[TaskStatus] | None = None
    handler: str | None = None
    session_id: Id | None = None
    attributes: Attributes | None = None
    created_after: AwareDatetime | None = None
    created_before: AwareDatetime | None = None
    ended_after: AwareDatetime | None = None
    ended_before: AwareDatetime | None = None


class BulkBody(Given):
    """What to do to all tasks that match. A dry run changes nothing, and is the default."""

    action: Literal["retry", "rerun", "fork", "cancel"]
    filter: BulkFilter
    dry_run: bool = True
    limit: Annotated[int, Field(ge=1, le=MOST_IN_BULK)] = MOST_IN_BULK
    before: str | None = Field(default=None, description="Of a fork: the entry to begin before.")
    reason: str | None = Field(default=None, description="Of a cancel.")


class DecisionBody(Given):
    """A decision. An approval's value must fit the form of the pause."""

    approved: bool
    value: Any = None


class DelegateBody(Given):
    """Who gets the caller's vote."""

    to: Name


class ScheduleBody(Given):
    """A schedule, see `redis_state.worker.Schedule`. One of ``cron`` and ``every_s`` is needed."""

    schedule_id: Annotated[str, Field(min_length=1, max_length=200)]
    handler: Name
    session_id: SomeId
    input: Any = None
    cron: str | None = None
    timezone: str = "UTC"
    every_s: Annotated[float, Field(ge=1, le=3650 * 86_400)] | None = None
    anchor: AwareDatetime | None = None
    start: AwareDatetime | None = None
    end: AwareDatetime | None = None
    queue: Name | None = None
    priority: Priority = 0
    description: str | None = None
    missed: Missed = "skip"
    max_missed: Annotated[int, Field(ge=1, le=1_000)] = 100
    grace_s: Annotated[float, Field(ge=10, le=86_400)] = 60
    overlap: Overlap = "allow"
    attributes: Attributes = Field(default_factory=dict)
    limit_key: Name | None = Field(
        default=None, description="Limits of this key hold for the tasks."
    )
    in_turn: bool = False
    on_busy: ScheduledOnBusy | None = None
    paused: bool | None = None
    expected: str | None = Field(default=None, description="The revision that it has to have.")


class BackfillBody(Given):
    """Which occurrences of a schedule: from ``since`` on and before ``until``."""

    since: AwareDatetime
    until: AwareDatetime
    dry_run: bool = False
    limit: Annotated[int, Field(ge=1, le=MOST_IN_BACKFILL)] = MOST_IN_BACKFILL
    limit_key: Name | None = Field(
        default=None, description="Limits of this key hold, in place of the schedule's own."
    )
    overlap: BackfillOverlap = Field(
        default="allow", description="enqueue: they run one at a time, the oldest first."
    )
