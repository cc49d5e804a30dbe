"""A session's context, the patches that background tasks bring to it, and the rules of merging.

Names, fields and rules are PenguiFlow's. Only the hash and the extraction of inline results look
at what the context holds; all else is payload.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Literal, cast

from pydantic import BaseModel, Field

from redis_state.models.tasks import utc_now

_INLINE = ("background_result", "background_results")


@dataclass(slots=True)
class BackgroundTaskResult:
    """What a background task brought into its session's context."""

    task_id: str
    group_id: str | None = None
    status: Literal["completed", "failed"] = "completed"
    summary: str | None = None
    payload: Any = None
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    artifacts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    consumed: bool = False
    completed_at: float = field(default_factory=time.time)


@dataclass(slots=True)
class SessionContext:
    """What a session knows. ``version`` counts updates; ``context_hash`` is of ``llm_context``."""

    llm_context: dict[str, Any] = field(default_factory=dict[str, Any])
    tool_context: dict[str, Any] = field(default_factory=dict[str, Any])
    memory: dict[str, Any] = field(default_factory=dict[str, Any])
    artifacts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    background_results: dict[str, BackgroundTaskResult] = field(
        default_factory=dict[str, BackgroundTaskResult]
    )
    version: int = 0
    context_hash: str | None = None


class MergeStrategy(str, Enum):  # noqa: UP042 - str() of a member must stay as upstream has it
    """How a finished task's patch comes into the context."""

    APPEND = "append"
    REPLACE = "replace"
    HUMAN_GATED = "human_gated"


class ContextPatch(BaseModel):
    """What a finished task contributes, and from which version of the context it started."""

    task_id: str
    spawned_from_event_id: str | None = None
    source_context_version: int | None = None
    source_context_hash: str | None = None
    context_diverged: bool = False
    completed_at: datetime = Field(default_factory=utc_now)
    digest: list[str] = Field(default_factory=list[str])
    facts: dict[str, Any] = Field(default_factory=dict[str, Any])
    artifacts: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    sources: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    recommended_next_steps: list[str] = Field(default_factory=list[str])
    assumptions: list[str] = Field(default_factory=list[str])


@dataclass(slots=True)
class PendingContextPatch:
    """A patch that waits for a decision. ``created_at`` is a time in seconds."""

    patch_id: str
    task_id: str
    patch: ContextPatch
    strategy: MergeStrategy
    created_at: float = field(default_factory=time.time)


def hash_context(llm_context: Mapping[Any, Any]) -> str | None:
    """Return the hash of an ``llm_context`` as PenguiFlow makes it; None if JSON cannot hold it."""
    try:
        raw = json.dumps(llm_context, ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(raw.encode("utf-8")).hexdigest()
    except (TypeError, ValueError, RecursionError):
        return None


def has_diverged(patch: ContextPatch, version: int, context_hash: str | None) -> bool:
    """Return whether the context is no longer the one that the patch's task started from."""
    if patch.source_context_version is not None and patch.source_context_version != version:
        return True
    return bool(patch.source_context_hash) and patch.source_context_hash != context_hash


def result_of_patch(
    patch: ContextPatch, *, payload: Any, group_id: str | None
) -> BackgroundTaskResult:
    """Make the result that an applied patch leaves in the context."""
    return BackgroundTaskResult(
        task_id=patch.task_id,
        group_id=group_id,
        summary=" ".join(patch.digest) if patch.digest else None,
        payload=payload,
        facts=dict(patch.facts),
        artifacts=[dict(item) for item in patch.artifacts],
        completed_at=patch.completed_at.timestamp(),
    )


def extract_results(
    llm_context: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, BackgroundTaskResult]]:
    """Take the results that older hosts write into an ``llm_context`` out of it."""
    if not any(name in llm_context for name in _INLINE):
        return llm_context, {}
    results: dict[str, BackgroundTaskResult] = {}
    for name in _INLINE:
        for item in _items(llm_context.get(name)):
            result = read_result(item)
            if result is not None:
                results[result.task_id] = result
    return {key: value for key, value in llm_context.items() if key not in _INLINE}, results


def _items(raw: object) -> Sequence[object]:
    if isinstance(raw, Mapping):
        found = cast("Mapping[str, object]", raw)
        return [found] if "task_id" in found else list(found.values())
    if isinstance(raw, list):
        return cast("list[object]", raw)
    return [] if raw is None else [raw]


def read_result(item: object) -> BackgroundTaskResult | None:
    """Return a result by its known fields, from one of any class or an object; None for another."""
    named = is_dataclass(item) and type(item).__name__ == BackgroundTaskResult.__name__
    if named or isinstance(item, BackgroundTaskResult):
        # A host's own class may have further fields: no reader knows them.
        known = {each.name: getattr(item, each.name, None) for each in fields(BackgroundTaskResult)}
        return BackgroundTaskResult(**cast("dict[str, Any]", known))
    if not isinstance(item, Mapping):
        return None
    raw = cast("Mapping[str, Any]", item)
    task_id, group_id = raw.get("task_id"), raw.get("group_id")
    if not isinstance(task_id, str) or not task_id:
        return None
    summary, digest = raw.get("summary"), raw.get("digest")
    if summary is None and isinstance(digest, list):
        summary = " ".join(str(line) for line in cast("list[object]", digest) if line)
    facts, artifacts, completed_at = raw.get("facts"), raw.get("artifacts"), raw.get("completed_at")
    entries = cast("list[object]", artifacts) if isinstance(artifacts, list) else []
    return BackgroundTaskResult(
        task_id=task_id,
        group_id=group_id if isinstance(group_id, str) else None,
        status="failed" if raw.get("status") == "failed" else "completed",
        summary=summary,
        payload=raw.get("payload"),
        facts=dict(cast("Mapping[str, Any]", facts)) if isinstance(facts, Mapping) else {},
        artifacts=[
            dict(cast("Mapping[str, Any]", entry))
            for entry in entries
            if isinstance(entry, Mapping)
        ],
        consumed=bool(raw.get("consumed", False)),
        completed_at=_seconds(completed_at),
    )


def _seconds(completed_at: object) -> float:
    with suppress(OverflowError):
        if isinstance(completed_at, int | float):
            return float(completed_at)
    return time.time()


__all__ = [
    "BackgroundTaskResult",
    "ContextPatch",
    "MergeStrategy",
    "PendingContextPatch",
    "SessionContext",
    "extract_results",
    "has_diverged",
    "hash_context",
    "read_result",
    "result_of_patch",
]
