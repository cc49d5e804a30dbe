"""Groups of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import Given


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """The keys of one group of tasks; all in its session's slot."""

    group_id: str
    group: str
    groups: str
    names: str


class GroupScripts(ScriptRunner):
    """Groups of tasks."""

    @script
    def create_group(
        self,
        keys: GroupKeys,
        fields: Mapping[str, bytes],
        *,
        alias: bytes,
        instead_of: Given,
        write: str,
        ttl_ms: int,
    ) -> PendingReply:
        """OK group_id new."""

    @script
    def join_group(self, keys: GroupKeys, *, task_id: str, write: str, ttl_ms: int) -> PendingReply:
        """OK new | DENIED status | MISSING."""

    @script
    def finish_member(
        self,
        keys: GroupKeys,
        *,
        task_id: str,
        outcome: str,
        patch_id: Given,
        call: str,
        ttl_ms: int,
        ended_ttl_ms: int,
    ) -> PendingReply:
        """OK status completed | DENIED status | MISSING."""

    @script
    def close_group(
        self,
        keys: GroupKeys,
        *,
        target: str,
        alias: bytes,
        call: str,
        ttl_ms: int,
        ended_ttl_ms: int,
    ) -> PendingReply:
        """OK status completed | DENIED status | MISSING."""
