"""Answers about pauses: open and resolved ones, decisions and votes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from redis_state.gateway.results.base import ResultShape
from redis_state.gateway.results.changes import MovedResult


class DeciderResult(ResultShape):
    """One who is named to decide a pause."""

    name: str
    state: str
    at: datetime | None
    delegated_to: str | None


class EscalationResult(ResultShape):
    """When a pause is handed on, and to whom."""

    at: datetime
    to: list[str]
    replace: bool
    done: bool


class PauseResult(ResultShape):
    """A pause: open, or resolved by whom, when and how."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", protected_namespaces=())

    state: Literal["open", "resolved"]
    session_id: str
    task_id: str
    pause_id: str | None
    name: str
    reason: str | None = None
    payload: Any = None
    tags: list[str]
    opened_at: datetime | None = None
    expires_at: datetime | None = None
    on_timeout: str | None = None
    form: dict[str, Any] | None = Field(default=None, alias="schema")
    approvals: int | None = None
    rejections: int | None = None
    deciders: list[DeciderResult] | None = None
    escalations: list[EscalationResult] | None = None
    by: str | None = None
    at: datetime | None = None
    decision: Any = None


class PausesResult(ResultShape):
    """A page of open pauses, the oldest first."""

    pauses: list[PauseResult]
    cursor: str | None


class DecidedResult(ResultShape):
    """A pause that was decided or voted on. ``task`` is null if the caller may not read it."""

    pause_id: str
    by: str
    approved: bool
    task: MovedResult | None


class DelegatedResult(ResultShape):
    """A vote that was handed on."""

    pause_id: str
    by: str
    to: str
