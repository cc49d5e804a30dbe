"""Children of a task: spawn, wait for, look at."""

from __future__ import annotations

from collections.abc import Mapping

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import NO_LANE, Announcement, LaneState, TaskKeys


class ChildrenScripts(ScriptRunner):
    """Children of a task: spawn, wait for, look at."""

    @script
    def spawn_task(
        self,
        child: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        parent: TaskKeys,
        children: str,
        mark: bytes,
        entry: str,
        note: bytes,
        before: int,
        write: str,
        ttl_ms: int,
        index_ttl_ms: int,
        announcement: Announcement,
        lane: LaneState = NO_LANE,
    ) -> PendingReply:
        """OK version entries | STALE note | EXPIRED | DENIED status | LOST epoch |
        REWOUND entries.
        """

    @script
    def join_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        child: TaskKeys,
        mark: bytes,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
    ) -> PendingReply:
        """OK version | AGAIN | MISSING | DENIED status | LOST epoch | REWOUND entries."""

    @script
    def wake_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        child: TaskKeys,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
    ) -> PendingReply:
        """OK version | HELD | DENIED status | MISSING."""
