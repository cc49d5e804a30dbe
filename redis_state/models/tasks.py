"""Tasks of a session and the updates they emit."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel, Field


def utc_now() -> datetime:
    """Return the current time, aware, in UTC."""
    return datetime.now(UTC)


# What a task names as its parent if none has spawned it.
FOREGROUND: Final = "foreground"


def new_id() -> str:
    """Return a fresh random id: 32 hexadecimal characters."""
    return uuid.uuid4().hex


class TaskStatus(str, Enum):  # noqa: UP042 - str() of a member must stay as upstream has it
    """Where a task stands."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Whether the task has ended, one way or another."""
        return self in (TaskStatus.COMPLETE, TaskStatus.FAILED, TaskStatus.CANCELLED)


class TaskType(str, Enum):  # noqa: UP042 - as above
    """Whether a task holds up its session or runs beside it."""

    FOREGROUND = "FOREGROUND"
    BACKGROUND = "BACKGROUND"


class UpdateType(str, Enum):  # noqa: UP042 - as above
    """The type of a ``StateUpdate``."""

    THINKING = "THINKING"
    PROGRESS = "PROGRESS"
    TOOL_CALL = "TOOL_CALL"
    RESULT = "RESULT"
    ERROR = "ERROR"
    CHECKPOINT = "CHECKPOINT"
    STATUS_CHANGE = "STATUS_CHANGE"
    NOTIFICATION = "NOTIFICATION"


class TaskContextSnapshot(BaseModel):
    """The context at the spawn of a task. Version and hash show later whether it diverged."""

    session_id: str
    task_id: str
    trace_id: str | None = None
    spawned_from_task_id: str = FOREGROUND
    spawned_from_event_id: str | None = None
    spawned_at: datetime = Field(default_factory=utc_now)
    spawn_reason: str | None = None
    query: str | None = None
    propagate_on_cancel: str = "cascade"
    notify_on_complete: bool = True
    context_version: int | None = None
    context_hash: str | None = None
    llm_context: dict[str, Any] = Field(default_factory=dict[str, Any])
    tool_context: dict[str, Any] = Field(default_factory=dict[str, Any])
    memory: dict[str, Any] = Field(default_factory=dict[str, Any])
    artifacts: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])


@dataclass(slots=True)
class TaskState:
    """A task as it stands now. A higher ``priority`` is more urgent."""

    task_id: str
    session_id: str
    status: TaskStatus
    task_type: TaskType
    priority: int
    context_snapshot: TaskContextSnapshot
    trace_id: str | None = None
    result: Any | None = None
    error: str | None = None
    description: str | None = None
    progress: dict[str, Any] | None = None
    created_at: datetime = field(default_factory=utc_now)
    updated_at: datetime = field(default_factory=utc_now)

    def update_status(self, status: TaskStatus) -> None:
        """Set the status and the time of the change."""
        self.status = status
        self.updated_at = utc_now()


class StateUpdate(BaseModel):
    """One message of a running task. ``update_id`` makes saving it again harmless."""

    session_id: str
    task_id: str
    trace_id: str | None = None
    update_id: str = Field(default_factory=new_id)
    update_type: UpdateType
    content: Any
    step_index: int | None = None
    total_steps: int | None = None
    created_at: datetime = Field(default_factory=utc_now)


def parent_of(state: TaskState) -> str | None:
    """Return the task that has spawned this one, if it says so.

    A task with the id `FOREGROUND` is not known as a parent: all that none has spawned name it.
    """
    spawned_from = state.context_snapshot.spawned_from_task_id
    return None if spawned_from in (FOREGROUND, state.task_id) else spawned_from
