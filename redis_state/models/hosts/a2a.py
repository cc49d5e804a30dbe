"""Tasks of streaming A2A servers: their states, their events, and what is known of them.

States are written as A2A 0.3 writes them. Read are all the spellings that are about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any, cast

from redis_state.errors import InvalidField
from redis_state.models.lifecycle import A2A, CORE, TaskPhase

Document = dict[str, Any]


class A2AState(StrEnum):
    """Where a task stands, in A2A's words."""

    SUBMITTED = "submitted"
    WORKING = "working"
    INPUT_REQUIRED = "input-required"
    AUTH_REQUIRED = "auth-required"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED = "failed"
    REJECTED = "rejected"
    UNKNOWN = "unknown"

    @property
    def phase(self) -> TaskPhase:
        """The phase of the core that this state is."""
        return A2A.words[self.value]

    @property
    def is_terminal(self) -> bool:
        """Whether the task has ended."""
        return self.phase.is_terminal


# The core's own words are read too.
_CORE_WORDS = {word.lower(): A2AState(A2A.word(phase)) for word, phase in CORE.words.items()}


class EventKind(StrEnum):
    """What an event is, as A2A names it. Tasks and status updates say a state."""

    TASK = "task"
    STATUS = "status-update"
    ARTIFACT = "artifact-update"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True)
class EventSummary:
    """What an event says of its task; ``task_id`` is empty if it names none."""

    kind: EventKind
    state: A2AState | None
    task_id: str


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """An event as it was recorded. A subscription ``after`` its cursor continues behind it."""

    cursor: str
    kind: EventKind
    state: A2AState | None
    event: Document = field(repr=False)

    @property
    def ends_task(self) -> bool:
        """Whether it is its task's last."""
        return self.state is not None and self.state.is_terminal


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task as it stood at one moment.

    ``completed_at`` is None while it is active. ``dropped`` is how many of its oldest events are
    not kept any more. A subscription ``after`` the cursor continues behind ``events``.
    """

    task_id: str
    context_id: str
    stream_id: str
    events: Sequence[Document] = field(repr=False)
    created_at: datetime
    completed_at: datetime | None
    current_state: A2AState
    cursor: str
    dropped: int


@dataclass(frozen=True, slots=True)
class Registration:
    """The result of registering: the task, and whether this call ``created`` it."""

    created: bool
    info: TaskInfo


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """How many tasks are active, and how many have ended and are kept, at one moment."""

    active: int
    completed: int


def read_state(value: object) -> A2AState:
    """Read a state: ``"canceled"``, ``"CANCELLED"``, ``"TASK_STATE_CANCELED"``, an enum's member.

    Errors: InvalidField.
    """
    word = value.value if isinstance(value, Enum) else value
    if not isinstance(word, str):
        raise InvalidField("status.state", f"text is needed, not {type(word).__name__}")
    plain = word.lower().removeprefix("task_state_").replace("_", "-")
    try:
        return _CORE_WORDS.get(plain) or A2AState(plain)
    except ValueError:
        known = ", ".join(A2AState)
        raise InvalidField("status.state", f"must be one of {known}") from None


def classify_event(event: Mapping[str, Any]) -> EventSummary:
    """Classify an event by its shape, alone or in A2A 1.0's wrapper, and summarise it.

    Errors: InvalidField for what is no event of A2A, and for a state that is none.
    """
    event = _unwrapped(event)
    status: object = event.get("status")
    if isinstance(status, Mapping):
        state = read_state(cast("Mapping[str, Any]", status).get("state"))
        if "id" in event:
            return EventSummary(EventKind.TASK, state, _name(event, "id"))
        return EventSummary(EventKind.STATUS, state, _task_id(event))
    if isinstance(event.get("artifact"), Mapping):
        return EventSummary(EventKind.ARTIFACT, None, _task_id(event))
    if "role" in event and not {"parts", "messageId", "message_id"}.isdisjoint(event):
        return EventSummary(EventKind.MESSAGE, None, _task_id(event))
    raise InvalidField(
        "event", "a task, a status update, an artifact update or a message is needed"
    )


_WRAPPERS = frozenset(
    {"task", "statusUpdate", "status_update", "artifactUpdate", "artifact_update", "message"}
)


def _unwrapped(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Take an event out of A2A 1.0's wrapper: an object of which one of these is set."""
    held: list[object] = [value for value in event.values() if value is not None]
    if len(held) == 1 and _WRAPPERS.issuperset(event) and isinstance(held[0], Mapping):
        return cast("Mapping[str, Any]", held[0])
    return event


def _task_id(event: Mapping[str, Any]) -> str:
    return _name(event, "taskId" if "taskId" in event else "task_id")


def _name(event: Mapping[str, Any], place: str) -> str:
    found = event.get(place)
    if found is not None and not isinstance(found, str):
        raise InvalidField(f"event.{place}", f"text is needed, not {type(found).__name__}")
    return found or ""
