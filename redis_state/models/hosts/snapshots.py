"""Snapshots of a task: numbered states that it can be resumed from."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from redis_state.models.tasks import utc_now


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a task's state. ``version`` counts from 1, without an upper bound."""

    id: str
    task_id: str
    version: int
    data: dict[str, Any] = field(repr=False)
    checkpoint: bool = False
    created_at: datetime = field(default_factory=utc_now)
