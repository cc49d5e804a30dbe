"""A Redis-first distributed state backend for agent runtimes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from redis_state.errors import (
    AlreadyVoted,
    ArchiveFileMissing,
    ArchiveInUse,
    ArchiveUnavailable,
    AuthenticationFailed,
    BackendError,
    BackendUnavailable,
    CallerError,
    CommandRefused,
    ConfigError,
    Conflict,
    CorruptState,
    CursorGap,
    DelegationRefused,
    ErasureOutOfReach,
    HandlerChanged,
    InvalidDecision,
    InvalidField,
    InvalidMessage,
    InvalidTransition,
    JournalRewound,
    KeyReused,
    LeaseLost,
    LimitReached,
    LostRace,
    MemoryBudgetExceeded,
    MissingCapability,
    NoConnection,
    NoReceiver,
    NotADecider,
    NotFound,
    OtherArchive,
    OutcomeUnknown,
    PauseRejected,
    PauseTimeout,
    PayloadLost,
    PayloadStoreUnavailable,
    PayloadTooLarge,
    PayloadUnreadable,
    ProducerRefused,
    ReceiveTimeout,
    RedisStateError,
    RequestFailed,
    RequestRefused,
    RequestTimeout,
    RequestUnanswered,
    RetryRefused,
    ScheduleUnknown,
    SessionBusy,
    SessionConflict,
    SessionNotFound,
    SessionRunning,
    SteeringValidationError,
    StoreFull,
    StreamDeleted,
    StreamRefused,
    StreamUnknown,
    TaskFailed,
    TaskInProgress,
    TaskNotCompleted,
    TaskUnknown,
    TaskWasCancelled,
    ThreadClaimed,
    ThreadMoved,
    TokenResolved,
    TokenUnknown,
    VersionConflict,
)

if TYPE_CHECKING:
    from redis_state.models import StateUpdate, SteeringEvent, TaskState
    from redis_state.payloads.claims import FolderClaims, ObjectClaims
    from redis_state.serialization.claim_store import ClaimStore
    from redis_state.serialization.payloads import PayloadCodec
    from redis_state.serialization.sealed import Sealed
    from redis_state.settings import Settings
    from redis_state.store import RedisStateStore
    from redis_state.worker import AgentWorker, TaskClient, TaskContext

__version__ = "0.1.0"

__all__ = [
    "AgentWorker",
    "AlreadyVoted",
    "ArchiveFileMissing",
    "ArchiveInUse",
    "ArchiveUnavailable",
    "AuthenticationFailed",
    "BackendError",
    "BackendUnavailable",
    "CallerError",
    "ClaimStore",
    "CommandRefused",
    "ConfigError",
    "Conflict",
    "CorruptState",
    "CursorGap",
    "DelegationRefused",
    "ErasureOutOfReach",
    "FolderClaims",
    "HandlerChanged",
    "InvalidDecision",
    "InvalidField",
    "InvalidMessage",
    "InvalidTransition",
    "JournalRewound",
    "KeyReused",
    "LeaseLost",
    "LimitReached",
    "LostRace",
    "MemoryBudgetExceeded",
    "MissingCapability",
    "NoConnection",
    "NoReceiver",
    "NotADecider",
    "NotFound",
    "ObjectClaims",
    "OtherArchive",
    "OutcomeUnknown",
    "PauseRejected",
    "PauseTimeout",
    "PayloadCodec",
    "PayloadLost",
    "PayloadStoreUnavailable",
    "PayloadTooLarge",
    "PayloadUnreadable",
    "ProducerRefused",
    "ReceiveTimeout",
    "RedisStateError",
    "RedisStateStore",
    "RequestFailed",
    "RequestRefused",
    "RequestTimeout",
    "RequestUnanswered",
    "RetryRefused",
    "ScheduleUnknown",
    "Sealed",
    "SessionBusy",
    "SessionConflict",
    "SessionNotFound",
    "SessionRunning",
    "Settings",
    "StateUpdate",
    "SteeringEvent",
    "SteeringValidationError",
    "StoreFull",
    "StreamDeleted",
    "StreamRefused",
    "StreamUnknown",
    "TaskClient",
    "TaskContext",
    "TaskFailed",
    "TaskInProgress",
    "TaskNotCompleted",
    "TaskState",
    "TaskUnknown",
    "TaskWasCancelled",
    "ThreadClaimed",
    "ThreadMoved",
    "TokenResolved",
    "TokenUnknown",
    "VersionConflict",
    "__version__",
]


# Imported at their first use: the records need pydantic, the store redis-py, the worker its extra.
_LATER = {
    "AgentWorker": "redis_state.worker",
    "ClaimStore": "redis_state.serialization.claim_store",
    "FolderClaims": "redis_state.payloads.claims",
    "ObjectClaims": "redis_state.payloads.claims",
    "PayloadCodec": "redis_state.serialization.payloads",
    "RedisStateStore": "redis_state.store",
    "Sealed": "redis_state.serialization.sealed",
    "Settings": "redis_state.settings",
    "StateUpdate": "redis_state.models",
    "SteeringEvent": "redis_state.models",
    "TaskClient": "redis_state.worker",
    "TaskContext": "redis_state.worker",
    "TaskState": "redis_state.models",
}


def __getattr__(name: str) -> Any:
    """Import a name at its first use."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LATER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List what there is, imported or not."""
    return sorted({*globals(), *__all__})
