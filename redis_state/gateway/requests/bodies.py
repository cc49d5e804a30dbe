"""What requests may say: the parameters of queries, and bodies. An unknown name is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    WithJsonSchema,
)

from redis_state.errors import InvalidField
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.worker import Archived
from redis_state.worker.tasks.views.cursors import read_cursor, write_cursor

Missed = Literal["skip", "latest", "all"]
Overlap = Literal["allow", "skip"]
ScheduledOnBusy = Literal["enqueue", "interrupt", "replace"]
BackfillOverlap = Literal["allow", "enqueue"]

LARGEST_PAGE = 1_000
MOST_IN_BULK = 500
MOST_IN_BACKFILL = 1_000
LONGEST_REQUEST_S = 30.0
_LONGEST_ID = 1_000
_MOST_TASKS = 1_000_000_000


def _unicode(text: str) -> str:
    """Refuse NUL, which no person means."""
    if "\0" in text:
        raise ValueError("may not hold NUL")
    return text


def _short(text: str) -> str:
    if len(text) > _LONGEST_ID:
        raise ValueError(f"may have at most {_LONGEST_ID} characters")
    return text


def _short_and_some(text: str) -> str:
    if not text:
        raise ValueError("may not be empty")
    return _short(text)


# Not a Field with a length: pydantic refuses half of a surrogate pair in one.
Id = Annotated[
    str,
    AfterValidator(_short),
    WithJsonSchema({"type": "string", "maxLength": _LONGEST_ID}),
]
SomeId = Annotated[
    str,
    AfterValidator(_short_and_some),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": _LONGEST_ID}),
]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_unicode)]
Attribute = (
    Annotated[str, Field(strict=True)]
    | Annotated[int, Field(strict=True)]
    | Annotated[bool, Field(strict=True)]
)
Limit = Annotated[int, Field(ge=1, le=LARGEST_PAGE)]
Seconds = Annotated[float, Field(ge=0, le=3650 * 86_400, allow_inf_nan=False)]
UpToADay = Annotated[float, Field(ge=0.001, le=86_400, allow_inf_nan=False)]
TaskCount = Annotated[int, Field(ge=1, le=_MOST_TASKS)]
Priority = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]


class _Given(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class PageQuery(_Given):
    """Which page of a list."""

    limit: Limit = 100
    after: str | None = Field(default=None, description="The cursor of the page before.")


class PartQuery(_Given):
    """Which page of a list; without parameters it is one page."""

    limit: Limit | None = Field(default=None, description="How many at most; else all.")
    after: str | None = Field(default=None, description="The cursor of the page before.")

    def place(self, listing: str) -> str | None:
        """Return the name behind which the page begins. Errors: InvalidField."""
        if self.after is None:
            return None
        try:
            return read_cursor(listing, self.after).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise InvalidField("after", "is no cursor of this listing") from None

    @staticmethod
    def cursor(listing: str, last: str | None) -> str | None:
        """Return the cursor of the page behind a name; None if it was the last page."""
        if last is None:
            return None
        return write_cursor(listing, last.encode("utf-8", "surrogatepass"))


class ForgetQuery(_Given):
    """How to erase a session."""

    dry_run: bool = Field(default=False, description="Count, and remove nothing.")
    running: Literal["cancel", "refuse", "fence"] = Field(
        default="cancel", description="What becomes of tasks that run."
    )
    leave_unset: bool = Field(
        default=False,
        description="Leave an archive, or durable events, that the gateway has no setting for.",
    )


class ForgetUserBody(ForgetQuery):
    """Whose sessions to erase: those with a task that has the attribute. And how."""

    user: Attribute
    attribute: Name = "user"
    shared: bool = Field(default=False, description="Also sessions with tasks of other users.")


class FindQuery(PageQuery):
    """Which tasks."""

    status: list[TaskStatus] | None = None
    handler: str | None = None
    session_id: str | None = None
    attribute: list[str] | None = Field(
        default=None,
        description="NAME=VALUE; may be repeated. A number, true and false are that, all else is "
        'text; NAME="5" is the text 5.',
    )
    created_after: AwareDatetime | None = None
    created_before: AwareDatetime | None = None
    ended_after: AwareDatetime | None = Field(
        default=None,
        description="Only tasks that ended since, in the order of their ends.",
    )
    ended_before: AwareDatetime | None = Field(
        default=None,
        description="Only tasks that ended before, in the order of their ends.",
    )
    oldest_first: bool = False
    archived: Archived = Field(
        default=Archived.NO,
        description="Whether tasks are found that are only in the archive by now.",
    )


class DeadQuery(PageQuery):
    """Which page of the dead letters."""


class TimelineQuery(PageQuery):
    """Which page of a task's updates."""


class UpdatesQuery(PageQuery):
    """Which page of a session's updates."""

    after: str | None = Field(
        default=None, description="A cursor of a page, or of a stream of events, or 0 for all."
    )
    task: str | None = Field(default=None, description="Only of this task.")


class QueueKeysQuery(_Given):
    """How many keys of a queue."""

    limit: Limit = 100


class EventsQuery(_Given):
    """Which updates of a session."""

    after: str | None = Field(default=None, description="A cursor, $ for the end, or 0 for all.")
    task: str | None = Field(default=None, description="Only of this task, until it is terminal.")
    types: list[str] | None = Field(default=None, description="Only updates of these types.")


class PausesQuery(PageQuery):
    """Which open pauses."""

    tag: str | None = None
    session_id: str | None = None
    older_than: Seconds | None = Field(default=None, description="Only those open so long, in s.")
    mine: bool = Field(default=False, description="Only those that the caller may decide now.")


# Policies for a busy session that cancel its other tasks: their caller needs the right to steer.
CANCELS: Final = ("interrupt", "replace")


class SubmitBody(_Given):
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
    attributes: dict[str, Attribute] = Field(default_factory=dict, max_length=16)


class _GatherBody(_Given):
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
    attributes: dict[str, Attribute] = Field(default_factory=dict, max_length=16)


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


class SteerBody(_Given):
    """A steering event. A pause is decided by its own id."""

    type: SteeringEventType
    payload: dict[str, Any] = Field(default_factory=dict)


class SignalBody(_Given):
    """A signal: its name, and what the handler gets with it."""

    name: str
    payload: Any = None


class RequestBody(_Given):
    """A request: its name, what the handler gets with it, and how long this call waits."""

    name: str
    payload: Any = None
    wait_s: Annotated[float, Field(ge=0, le=LONGEST_REQUEST_S)] = 10.0


class RateBody(_Given):
    """So many in so many seconds."""

    limit: Annotated[int, Field(ge=1, le=_MOST_TASKS)]
    per_s: Annotated[float, Field(ge=0.001, le=7 * 86_400)]


class KeyLimitsBody(_Given):
    """What holds for one key. Null takes a limit away; what is not given stays."""

    running: TaskCount | None = None
    rate: RateBody | None = None


class QueueLimitsBody(KeyLimitsBody):
    """What holds for a queue. Null takes a limit away; what is not given stays."""

    per_key: TaskCount | None = None


class SetRateBody(_Given):
    """What holds in place of what handlers give. Null takes it away."""

    rate: RateBody | None


class CancelBody(_Given):
    """Why a task is cancelled, and whether a running one may reach its next checkpoint."""

    reason: Annotated[str, Field(max_length=2_000)] | None = None
    hard: bool = False


class NoBody(_Given):
    """Nothing."""


class RerunBody(_Given):
    """The new task. Its id is the header Idempotency-Key, or ``new_task_id``."""

    new_task_id: Id | None = None
    new_session_id: Id | None = None
    attributes: dict[str, Attribute] | None = Field(default=None, max_length=16)
    queue: Name | None = None


class ForkBody(_Given):
    """The new task, and the entry of the journal that it begins before."""

    before: str | None = None
    new_task_id: Id | None = None
    attributes: dict[str, Attribute] | None = Field(default=None, max_length=16)
    queue: Name | None = None


class BulkFilter(_Given):
    """Which tasks: those that match all of it."""

    status: list[TaskStatus] | None = None
    handler: str | None = None
    session_id: Id | None = None
    attributes: dict[str, Attribute] | None = Field(default=None, max_length=16)
    created_after: AwareDatetime | None = None
    created_before: AwareDatetime | None = None
    ended_after: AwareDatetime | None = None
    ended_before: AwareDatetime | None = None


class BulkBody(_Given):
    """What to do to all tasks that match. A dry run changes nothing, and is the default."""

    action: Literal["retry", "rerun", "fork", "cancel"]
    filter: BulkFilter
    dry_run: bool = True
    limit: Annotated[int, Field(ge=1, le=MOST_IN_BULK)] = MOST_IN_BULK
    before: str | None = Field(default=None, description="Of a fork: the entry to begin before.")
    reason: str | None = Field(default=None, description="Of a cancel.")


class DecisionBody(_Given):
    """A decision. An approval's value must fit the form of the pause."""

    approved: bool
    value: Any = None


class DelegateBody(_Given):
    """Who gets the caller's vote."""

    to: Name


class ScheduleBody(_Given):
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
    attributes: dict[str, Attribute] = Field(default_factory=dict, max_length=16)
    limit_key: Name | None = Field(
        default=None, description="Limits of this key hold for the tasks."
    )
    in_turn: bool = False
    on_busy: ScheduledOnBusy | None = None
    paused: bool | None = None
    expected: str | None = Field(default=None, description="The revision that it has to have.")


class BackfillBody(_Given):
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


def read_attributes(given: list[str] | None) -> dict[str, Any] | None:
    """Read attributes as a query writes them. Errors: InvalidField."""
    if given is None:
        return None
    attributes: dict[str, Any] = {}
    for each in given:
        name, sign, text = each.partition("=")
        if not sign:
            raise InvalidField("attribute", "is of the form NAME=VALUE")
        attributes[name] = _value(text)
    return attributes


def utc(moment: datetime | None) -> datetime | None:
    """Return a moment in UTC. Errors: InvalidField for one that is out of range there."""
    try:
        return None if moment is None else moment.astimezone(UTC)
    except (OverflowError, ValueError):
        raise InvalidField("at", "is out of range") from None


def seconds(given: float | None) -> timedelta | None:
    """Return a length of time."""
    return None if given is None else timedelta(seconds=given)


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str | int) else text
