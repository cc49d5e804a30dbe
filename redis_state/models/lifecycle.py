"""The life of a task as one state machine, and what each protocol calls its states.

    PENDING ─▶ RUNNING ─▶ COMPLETE | FAILED | REJECTED | UNKNOWN | CANCELLED
       ▲        │   ▲
       │        ▼   │
       └──── PAUSED | AUTH_REQUIRED

Every state but a final one can also end at once, except that only a running task completes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, cast

from redis_state.errors import InvalidField, InvalidTransition
from redis_state.models.tasks import TaskState, TaskStatus, utc_now


class TaskPhase(str, Enum):  # noqa: UP042 - as TaskStatus
    """Where a task stands, as finely as any of the protocols says it."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    AUTH_REQUIRED = "AUTH_REQUIRED"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"
    REJECTED = "REJECTED"
    UNKNOWN = "UNKNOWN"
    CANCELLED = "CANCELLED"

    @property
    def status(self) -> TaskStatus:
        """The status that a task of this phase has."""
        return _STATUS.get(self) or TaskStatus(self.value)

    @property
    def is_waiting(self) -> bool:
        """Whether the task waits for input."""
        return self in _WAITING

    @property
    def is_terminal(self) -> bool:
        """Whether the task has ended."""
        return not MOVES[self]


_STATUS = {
    TaskPhase.AUTH_REQUIRED: TaskStatus.PAUSED,
    TaskPhase.REJECTED: TaskStatus.FAILED,
    TaskPhase.UNKNOWN: TaskStatus.FAILED,
}
_WAITING = frozenset({TaskPhase.PAUSED, TaskPhase.AUTH_REQUIRED})
_UNDONE = frozenset({TaskPhase.FAILED, TaskPhase.REJECTED, TaskPhase.UNKNOWN, TaskPhase.CANCELLED})
_NONE: frozenset[TaskPhase] = frozenset()

MOVES: Mapping[TaskPhase, frozenset[TaskPhase]] = {
    TaskPhase.PENDING: _UNDONE | {TaskPhase.RUNNING},
    TaskPhase.RUNNING: _UNDONE | _WAITING | {TaskPhase.PENDING, TaskPhase.COMPLETE},
    TaskPhase.PAUSED: _UNDONE | {TaskPhase.PENDING, TaskPhase.RUNNING, TaskPhase.AUTH_REQUIRED},
    TaskPhase.AUTH_REQUIRED: _UNDONE | {TaskPhase.PENDING, TaskPhase.RUNNING, TaskPhase.PAUSED},
    TaskPhase.COMPLETE: _NONE,
    TaskPhase.FAILED: _NONE,
    TaskPhase.REJECTED: _NONE,
    TaskPhase.UNKNOWN: _NONE,
    TaskPhase.CANCELLED: _NONE,
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a protocol calls the phases, and those of the machine's moves that it allows."""

    name: str
    words: Mapping[str, TaskPhase]
    forbidden: frozenset[tuple[TaskPhase, TaskPhase]] = frozenset()

    def phase(self, word: str | Enum) -> TaskPhase:
        """Return the phase of a word, or of an enum member with that value.

        Errors: InvalidField names the words that there are.
        """
        value: object = word.value if isinstance(word, Enum) else word
        found = self.words.get(value) if isinstance(value, str) else None
        if found is None:
            raise InvalidField("status", f"{self.name} says one of {', '.join(self.words)}")
        return found

    def word(self, phase: TaskPhase) -> str:
        """Return the word for a phase, or for its status where the protocol has no finer word."""
        words = {meant: word for word, meant in self.words.items()}
        return words.get(phase) or words[TaskPhase(phase.status.value)]

    def sources(self, wanted: TaskPhase) -> frozenset[TaskPhase]:
        """List the phases from which one can be reached."""
        return frozenset(
            phase
            for phase in MOVES
            if wanted in MOVES[phase] and (phase, wanted) not in self.forbidden
        )


CORE: Vocabulary = Vocabulary(
    "a task", {status.value: TaskPhase(status.value) for status in TaskStatus}
)

ASAP: Vocabulary = Vocabulary(
    "ASAP",
    {
        "submitted": TaskPhase.PENDING,
        "working": TaskPhase.RUNNING,
        "input_required": TaskPhase.PAUSED,
        "completed": TaskPhase.COMPLETE,
        "failed": TaskPhase.FAILED,
        "cancelled": TaskPhase.CANCELLED,
    },
    forbidden=frozenset(
        {
            (TaskPhase.PENDING, TaskPhase.FAILED),
            (TaskPhase.PAUSED, TaskPhase.FAILED),
            (TaskPhase.AUTH_REQUIRED, TaskPhase.FAILED),
            (TaskPhase.RUNNING, TaskPhase.PENDING),
            (TaskPhase.PAUSED, TaskPhase.PENDING),
            (TaskPhase.AUTH_REQUIRED, TaskPhase.PENDING),
        }
    ),
)

A2A: Vocabulary = Vocabulary(
    "A2A",
    {
        "submitted": TaskPhase.PENDING,
        "working": TaskPhase.RUNNING,
        "input-required": TaskPhase.PAUSED,
        "auth-required": TaskPhase.AUTH_REQUIRED,
        "completed": TaskPhase.COMPLETE,
        "failed": TaskPhase.FAILED,
        "rejected": TaskPhase.REJECTED,
        "unknown": TaskPhase.UNKNOWN,
        "canceled": TaskPhase.CANCELLED,
    },
    forbidden=frozenset((phase, TaskPhase.PENDING) for phase in MOVES),
)


def can_transition(current: str | Enum, wanted: str | Enum, *, words: Vocabulary = CORE) -> bool:
    """Return whether a task may go from one state to another. Errors: InvalidField."""
    return words.phase(current) in words.sources(words.phase(wanted))


def transition(task: TaskState, wanted: str | Enum, *, words: Vocabulary = CORE) -> TaskState:
    """Return a task in its next state; the given one stays as it is.

    For one that only this process knows: `RedisStateStore.transitions` moves stored ones. Where
    ``words`` have several words for the task's status, what any of them allows is allowed.
    Errors: InvalidTransition with the task, the state it has and the one that was wanted.
    """
    phase = words.phase(wanted)
    current = TaskPhase(_value(task.status))
    stated = {meant for meant in words.words.values() if meant.status.value == current.value}
    if stated.isdisjoint(words.sources(phase)):
        raise InvalidTransition(task.task_id, current=words.word(current), wanted=words.word(phase))
    # A host's record has a host's own enum.
    kind = cast("type[Any]", type(task.status))
    return replace(task, status=kind(phase.status.value), updated_at=utc_now())


def _value(status: str | Enum) -> Any:
    return status.value if isinstance(status, Enum) else status
