"""The records of the state store: pure data, no I/O."""

from __future__ import annotations

from redis_state.errors import SteeringValidationError
from redis_state.models.artifacts import ArtifactRef, ArtifactRetentionConfig, ArtifactScope
from redis_state.models.hosts.capabilities import (
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
from redis_state.models.hosts.snapshots import Snapshot
from redis_state.models.lifecycle import (
    A2A,
    ASAP,
    CORE,
    TaskPhase,
    Vocabulary,
    can_transition,
    transition,
)
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
from redis_state.models.streams import (
    ProducerBatch,
    StreamAppended,
    StreamLifetime,
    StreamOrigin,
    StreamPage,
    StreamView,
)
from redis_state.models.tasks import (
    StateUpdate,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    UpdateType,
)
from redis_state.models.traces.events import RemoteBinding, StoredEvent
from redis_state.models.traces.planner import PlannerEvent, Trajectory, TrajectoryStep
from redis_state.models.version import Version

__all__ = [
    "A2A",
    "ASAP",
    "CORE",
    "MAX_STEERING_DEPTH",
    "MAX_STEERING_KEYS",
    "MAX_STEERING_LIST_ITEMS",
    "MAX_STEERING_PAYLOAD_BYTES",
    "MAX_STEERING_STRING",
    "ArtifactRef",
    "ArtifactRetentionConfig",
    "ArtifactScope",
    "PlannerEvent",
    "ProducerBatch",
    "RemoteBinding",
    "Snapshot",
    "StateStore",
    "StateUpdate",
    "SteeringEvent",
    "SteeringEventType",
    "SteeringValidationError",
    "StoredEvent",
    "StreamAppended",
    "StreamLifetime",
    "StreamOrigin",
    "StreamPage",
    "StreamView",
    "SupportsArtifacts",
    "SupportsConversationBindings",
    "SupportsMemoryState",
    "SupportsPlannerEvents",
    "SupportsPlannerState",
    "SupportsSteering",
    "SupportsTasks",
    "SupportsTrajectories",
    "TaskContextSnapshot",
    "TaskPhase",
    "TaskState",
    "TaskStatus",
    "TaskType",
    "Trajectory",
    "TrajectoryStep",
    "UpdateType",
    "Version",
    "Vocabulary",
    "can_transition",
    "missing_capabilities",
    "require_capabilities",
    "sanitize_payload",
    "sanitize_steering_event",
    "transition",
    "validate_steering_event",
]
