"""A Redis-first distributed state backend for agent runtimes."""

from __future__ import annotations

from redis_state.codec import Change
from redis_state.errors import (
    BackendError,
    BackendUnavailable,
    CallerError,
    CommandRefused,
    ConfigError,
    CorruptState,
    CursorGap,
    HandlerChanged,
    InvalidField,
    InvalidTransition,
    LeaseLost,
    LimitReached,
    LostRace,
    MemoryBudgetExceeded,
    MissingCapability,
    OutcomeUnknown,
    PauseTimeout,
    RedisStateError,
    SteeringValidationError,
    StoreFull,
    TokenResolved,
    TokenUnknown,
    VersionConflict,
)
from redis_state.settings import Settings
from redis_state.store import (
    Entry,
    EntryPage,
    Health,
    HostTypes,
    RedisStateStore,
    Unreadable,
)

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "BackendUnavailable",
    "CallerError",
    "Change",
    "CommandRefused",
    "ConfigError",
    "CorruptState",
    "CursorGap",
    "Entry",
    "EntryPage",
    "HandlerChanged",
    "Health",
    "HostTypes",
    "InvalidField",
    "InvalidTransition",
    "LeaseLost",
    "LimitReached",
    "LostRace",
    "MemoryBudgetExceeded",
    "MissingCapability",
    "OutcomeUnknown",
    "PauseTimeout",
    "RedisStateError",
    "RedisStateStore",
    "Settings",
    "SteeringValidationError",
    "StoreFull",
    "TokenResolved",
    "TokenUnknown",
    "Unreadable",
    "VersionConflict",
    "__version__",
]
