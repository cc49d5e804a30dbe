"""The classes that a host gets its records as."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redis_state.models import (
    ArtifactRef,
    PlannerEvent,
    RemoteBinding,
    StateUpdate,
    SteeringEvent,
    StoredEvent,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    Trajectory,
)
from redis_state.models.hosts.task_groups import TaskGroup
from redis_state.stores.contexts.session_context import ContextTypes


@dataclass(frozen=True, slots=True)
class HostTypes:
    """The classes a host wants back. Same names and fields as ours; ours by default."""

    stored_event: type[Any] = StoredEvent
    remote_binding: type[Any] = RemoteBinding
    task_state: type[Any] = TaskState
    task_context_snapshot: type[Any] = TaskContextSnapshot
    task_status: type[Any] = TaskStatus
    task_type: type[Any] = TaskType
    state_update: type[Any] = StateUpdate
    steering_event: type[Any] = SteeringEvent
    planner_event: type[Any] = PlannerEvent
    trajectory: type[Any] = Trajectory
    artifact_ref: type[Any] = ArtifactRef
    context: ContextTypes = field(default_factory=ContextTypes)
    task_group: type[Any] = TaskGroup
