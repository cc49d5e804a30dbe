"""The records of the state store: pure data, no I/O."""

from __future__ import annotations

from redis_state.errors import SteeringValidationError
from redis_state.models.artifacts import ArtifactRef, ArtifactRetentionConfig, ArtifactScope
from redis_state.models.capabilities import (
    StateStore,
    SupportsArtifacts,
    SupportsConversationBindings,
    SupportsMemoryState,
    SupportsPlannerEvents,
    SupportsPlannerState,
    SupportsSteering,
    SupportsTasks,
    SupportsTrajectories,
    missing_capabilities,
    require_capabilities,
)
from redis_state.models.events import RemoteBinding, StoredEvent
from redis_state.models.planner import PlannerEvent, Trajectory, TrajectoryStep
from redis_state.models.steering import (
    MAX_STEERING_DEPTH,
    MAX_STEERING_KEYS,
    MAX_STEERING_LIST_ITEMS,
    MAX_STEERING_PAYLOAD_BYTES,
    MAX_STEERING_STRING,
    SteeringEvent,
    SteeringEventType,
    sanitize_payload,
    sanitize_steering_event,
    validate_steering_event,
)
from redis_state.models.tasks import (
    StateUpdate,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    UpdateType,
)

__all__ = [
    "MAX_STEERING_DEPTH",
    "MAX_STEERING_KEYS",
    "MAX_STEERING_LIST_ITEMS",
    "MAX_STEERING_PAYLOAD_BYTES",
    "MAX_STEERING_STRING",
    "ArtifactRef",
    "ArtifactRetentionConfig",
    "ArtifactScope",
    "PlannerEvent",
    "RemoteBinding",
    "StateStore",
    "StateUpdate",
    "SteeringEvent",
    "SteeringEventType",
    "SteeringValidationError",
    "StoredEvent",
    "SupportsArtifacts",
    "SupportsConversationBindings",
    "SupportsMemoryState",
    "SupportsPlannerEvents",
    "SupportsPlannerState",
    "SupportsSteering",
    "SupportsTasks",
    "SupportsTrajectories",
    "TaskContextSnapshot",
    "TaskState",
    "TaskStatus",
    "TaskType",
    "Trajectory",
    "TrajectoryStep",
    "UpdateType",
    "missing_capabilities",
    "require_capabilities",
    "sanitize_payload",
    "sanitize_steering_event",
    "validate_steering_event",
]
