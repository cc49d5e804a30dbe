"""A Redis-first distributed state backend for agent runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis_state.errors import (
    AuthenticationFailed,
    BackendError,
    BackendUnavailable,
    CallerError,
    CommandRefused,
    ConfigError,
    Conflict,
    CorruptState,
    CursorGap,
    HandlerChanged,
    InvalidField,
    InvalidTransition,
    JournalRewound,
    LeaseLost,
    LimitReached,
    LostRace,
    MemoryBudgetExceeded,
    MissingCapability,
    NoConnection,
    NotFound,
    OutcomeUnknown,
    PauseTimeout,
    RedisStateError,
    ScheduleUnknown,
    SessionBusy,
    SessionConflict,
    SessionNotFound,
    SteeringValidationError,
    StoreFull,
    TaskFailed,
    TaskNotCompleted,
    TaskUnknown,
    TaskWasCancelled,
    TokenResolved,
    TokenUnknown,
    VersionConflict,
)
from redis_state.models import StateUpdate, SteeringEvent, TaskState
from redis_state.settings import Settings
from redis_state.store import RedisStateStore

if TYPE_CHECKING:
    from redis_state.worker import AgentWorker, TaskClient, TaskContext

__version__ = "0.1.0"

__all__ = [
    "AgentWorker",
    "AuthenticationFailed",
    "BackendError",
    "BackendUnavailable",
    "CallerError",
    "CommandRefused",
    "ConfigError",
    "Conflict",
    "CorruptState",
    "CursorGap",
    "HandlerChanged",
    "InvalidField",
    "InvalidTransition",
    "JournalRewound",
    "LeaseLost",
    "LimitReached",
    "LostRace",
    "MemoryBudgetExceeded",
    "MissingCapability",
    "NoConnection",
    "NotFound",
    "OutcomeUnknown",
    "PauseTimeout",
    "RedisStateError",
    "RedisStateStore",
    "ScheduleUnknown",
    "SessionBusy",
    "SessionConflict",
    "SessionNotFound",
    "Settings",
    "StateUpdate",
    "SteeringEvent",
    "SteeringValidationError",
    "StoreFull",
    "TaskClient",
    "TaskContext",
    "TaskFailed",
    "TaskNotCompleted",
    "TaskState",
    "TaskUnknown",
    "TaskWasCancelled",
    "TokenResolved",
    "TokenUnknown",
    "VersionConflict",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import a name of the worker on first use: it needs the extra ``worker``."""
    if name in {"AgentWorker", "TaskClient", "TaskContext"}:
        from redis_state import worker  # noqa: PLC0415 - see above

        return getattr(worker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
