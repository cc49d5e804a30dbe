"""Short-term memory of a session, shared by every process that serves it."""

from __future__ import annotations

from redis_state.memory.keys import CompositeKey, MemoryKey, resolve_key
from redis_state.memory.planner import PlannerMemory, turns_named
from redis_state.memory.session import SessionMemory
from redis_state.memory.types import (
    ConversationTurn,
    MemoryBudget,
    MemoryHealth,
    MemoryIsolation,
    MemoryTypes,
    ShortTermMemoryConfig,
    TrajectoryDigest,
    default_token_estimator,
)

__all__ = [
    "CompositeKey",
    "ConversationTurn",
    "MemoryBudget",
    "MemoryHealth",
    "MemoryIsolation",
    "MemoryKey",
    "MemoryTypes",
    "PlannerMemory",
    "SessionMemory",
    "ShortTermMemoryConfig",
    "TrajectoryDigest",
    "default_token_estimator",
    "resolve_key",
    "turns_named",
]
