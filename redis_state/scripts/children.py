"""Children of a task: spawn, wait for, look at."""

from __future__ import annotations

from collections.abc import Mapping

from redis_state.scripts.runner import (
    NO_LANE,
    Announcement,
    LaneState,
    PendingReply,
    ScriptRunner,
    flat,
    pairs,
    raw,
    topic_bytes,
)
from redis_state.scripts.tasks import TaskKeys


class ChildrenScripts(ScriptRunner):
    """Children of a task: spawn, wait for, look at."""

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
        said = announcement
        of_parent = (parent.task, parent.lease, parent.journal, children)
        return self._run(
            "spawn_task",
            (child.task, child.tasks, *said.keys(child.task_id), *of_parent),
            (
                mark,
                raw(entry),
                note,
                before,
                write,
                ttl_ms,
                index_ttl_ms,
                topic_bytes(child.task_id),
                said.max_rows,
                said.ttl_ms,
                *pairs(said.rows),
                raw(lane.entry),
                lane.state,
                *flat(fields),
            ),
        )

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
        said = announcement
        return self._run(
            "join_task",
            (keys.task, keys.tasks, keys.lease, *said.keys(keys.task_id), child.task, keys.journal),
            (
                mark,
                raw(child.task_id),
                write,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *pairs(said.rows),
                *flat(fields),
            ),
        )

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
        said = announcement
        return self._run(
            "wake_task",
            (keys.task, keys.tasks, keys.lease, *said.keys(keys.task_id), child.task, keys.journal),
            (
                raw(child.task_id),
                write,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *pairs(said.rows),
                *flat(fields),
            ),
        )
