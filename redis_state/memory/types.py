"""The words of short-term memory: names, fields and defaults are PenguiFlow's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeAlias

from redis_state import limits
from redis_state.errors import InvalidField, MemoryBudgetExceeded

Strategy: TypeAlias = Literal["truncation", "rolling_summary", "none"]
OverflowPolicy: TypeAlias = Literal["truncate_summary", "truncate_oldest", "error"]
Summarizer: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]

_STRATEGIES = ("truncation", "rolling_summary", "none")
_POLICIES = ("truncate_summary", "truncate_oldest", "error")


class MemoryHealth(str, Enum):  # noqa: UP042 - str() of a member must stay as upstream has it
    """How the summarising goes."""

    HEALTHY = "healthy"
    RETRY = "retry"
    DEGRADED = "degraded"
    RECOVERING = "recovering"


@dataclass(slots=True)
class TrajectoryDigest:
    """What a turn's tools did, in short."""

    tools_invoked: list[str]
    observations_summary: str
    reasoning_summary: str | None = None
    artifacts_refs: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class ConversationTurn:
    """One question and its answer."""

    user_message: str
    assistant_response: str
    trajectory_digest: TrajectoryDigest | None = None
    artifacts_shown: dict[str, Any] = field(default_factory=dict[str, Any])
    artifacts_hidden_refs: list[str] = field(default_factory=list[str])
    ts: float = 0.0


@dataclass(slots=True)
class MemoryBudget:
    """How much is kept: turns in full, tokens of the summary, tokens of the whole.

    A total of 0 sets no limit. Errors: InvalidField names a value that cannot be used.
    """

    full_zone_turns: int = 5
    summary_max_tokens: int = 1000
    total_max_tokens: int = 10000
    overflow_policy: OverflowPolicy = "truncate_oldest"

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        for name in ("full_zone_turns", "summary_max_tokens", "total_max_tokens"):
            limits.count(name, getattr(self, name), least=0)
        if self.total_max_tokens and self.summary_max_tokens > self.total_max_tokens:
            raise InvalidField("summary_max_tokens", "must be <= total_max_tokens")
        _one_of(self, "overflow_policy", _POLICIES)


@dataclass(slots=True)
class MemoryIsolation:
    """Where a tool context names tenant, user and session: dotted paths.

    With ``require_explicit_key`` a context without a session has no memory.
    """

    tenant_key: str = "tenant_id"
    user_key: str = "user_id"
    session_key: str = "session_id"
    require_explicit_key: bool = True

    def __post_init__(self) -> None:
        """Refuse an empty path."""
        for name in ("tenant_key", "user_key", "session_key"):
            if not getattr(self, name):
                raise InvalidField(name, "must be a non-empty string")


@dataclass(slots=True)
class ShortTermMemoryConfig:
    """How a memory works. Errors: InvalidField names a value that cannot be used."""

    strategy: Strategy = "none"
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    isolation: MemoryIsolation = field(default_factory=MemoryIsolation)

    summarizer_model: str | None = None
    include_trajectory_digest: bool = True

    recovery_backlog_limit: int = 20
    retry_attempts: int = 3
    retry_backoff_base_s: float = 2.0
    degraded_retry_interval_s: float = 30.0

    token_estimator: Callable[[str], int] | None = None

    on_turn_added: Callable[[Any], Awaitable[None]] | None = None
    on_summary_updated: Callable[[str, str], Awaitable[None]] | None = None
    on_health_changed: Callable[[Any, Any], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown strategy and numbers that cannot be."""
        _one_of(self, "strategy", _STRATEGIES)
        for name in ("recovery_backlog_limit", "retry_attempts"):
            limits.count(name, getattr(self, name), least=0)
        for name in ("retry_backoff_base_s", "degraded_retry_interval_s"):
            limits.patience(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class MemoryTypes:
    """The classes a host wants to see. Ours by default."""

    health: type[Any] = MemoryHealth
    budget_exceeded: type[MemoryBudgetExceeded] = MemoryBudgetExceeded


def default_token_estimator(text: str) -> int:
    """Estimate tokens: a quarter of the characters, and one."""
    return len(text) // 4 + 1


def _one_of(owner: object, name: str, known: tuple[str, ...]) -> None:
    if getattr(owner, name) not in known:
        raise InvalidField(name, f"must be one of: {', '.join(known)}")
