"""Groups of background tasks that report together. Names and fields are PenguiFlow's."""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from redis_state.models.session_context import MergeStrategy
from redis_state.models.tasks import utc_now

GroupReportStrategy = Literal["all", "any", "none"]
GroupStatus = Literal["open", "sealed", "complete", "failed"]


def new_group_id() -> str:
    """Return a fresh random id of a group."""
    return f"grp_{secrets.token_hex(6)}"


class TaskGroup(BaseModel):
    """A group as it stands now. Members join while it is open; sealed, it ends with its last."""

    group_id: str = Field(default_factory=new_group_id)
    name: str
    session_id: str
    status: GroupStatus = "open"
    merge_strategy: MergeStrategy = MergeStrategy.APPEND
    report_strategy: GroupReportStrategy = "all"
    task_ids: list[str] = Field(default_factory=list[str])
    completed_task_ids: list[str] = Field(default_factory=list[str])
    failed_task_ids: list[str] = Field(default_factory=list[str])
    created_at: datetime = Field(default_factory=utc_now)
    sealed_at: datetime | None = None
    completed_at: datetime | None = None
    retain_turn: bool = False
    patches: list[str] = Field(default_factory=list[str])
    report_queued: bool = False
    turn_id: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the group has ended."""
        return self.status in {"complete", "failed"}

    @property
    def pending_task_ids(self) -> list[str]:
        """The members that have not ended."""
        ended = {*self.completed_task_ids, *self.failed_task_ids}
        return [task_id for task_id in self.task_ids if task_id not in ended]


__all__ = ["GroupReportStrategy", "GroupStatus", "TaskGroup"]
