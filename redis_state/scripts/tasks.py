"""The life of a worker's task: create, start, step, pause, decide, move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from redis_state.scripts.runner import (
    NO_LANE,
    Announcement,
    LaneState,
    PendingReply,
    ScriptRunner,
    expecting,
    flat,
    pairs,
    raw,
    topic_bytes,
)
from redis_state.transport.keys import LogKeys


class TaskKeys(NamedTuple):
    """The keys that the scripts of a task's life share; all in its session's slot."""

    task_id: str
    task: str
    tasks: str
    lease: str
    journal: str


class TaskScripts(ScriptRunner):
    """The life of a worker's task: create, start, step, pause, decide, move."""

    # The life of a task

    def create_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        steering: LogKeys,
        updates: LogKeys,
        children: str,
        write: str,
        ttl_ms: int,
        before: int | None = None,
    ) -> PendingReply:
        """OK version | STALE version | EXPIRED."""
        return self._run(
            "create_task",
            (
                keys.task,
                keys.tasks,
                keys.journal,
                steering.ids,
                keys.lease,
                updates.topic(keys.task_id),
                children,
            ),
            (
                write,
                ttl_ms,
                topic_bytes(keys.task_id),
                "" if before is None else before,
                *flat(fields),
            ),
        )

    def clear_task(self, keys: TaskKeys, *, children: str, lease_ms: int) -> PendingReply:
        """OK deleted."""
        return self._run_once(
            "clear_task",
            (keys.task, keys.tasks, keys.lease, keys.journal, children),
            (topic_bytes(keys.task_id), lease_ms),
        )

    def look_task(self, keys: TaskKeys) -> PendingReply:
        """OK status version epoch left_ms order priority crashes queue ours parent waits_for
        parent_order attempts | MISSING.
        """
        return self._run("look_task", (keys.task, keys.lease), ())

    def start_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        owner: str,
        lease_ms: int,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
    ) -> PendingReply:
        """OK epoch fields | HELD left_ms | DENIED status | MISSING."""
        said = announcement
        return self._run(
            "start_task",
            (keys.task, keys.tasks, keys.lease, *said.keys(keys.task_id)),
            (
                raw(owner),
                lease_ms,
                write,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *pairs(said.rows),
                *flat(fields),
            ),
        )

    def move_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        mark: bytes,
        from_states: Iterable[str],
        release: bool,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
        parent: TaskKeys | None = None,
        ended: bytes = b"",
    ) -> PendingReply:
        """OK version epoch | DENIED status | LOST epoch | REWOUND entries | MISSING.

        ``ended`` is a child's end, as its ``parent`` notes it.
        """
        said, of_parent = announcement, parent or keys
        return self._run(
            "move_task",
            (
                *(keys.task, keys.tasks, keys.lease, *said.keys(keys.task_id), keys.journal),
                *(of_parent.task, of_parent.journal),
            ),
            (
                mark,
                f" {' '.join(from_states)} ",
                int(release),
                write,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *pairs(said.rows),
                ended if parent is not None else b"",
                *flat(fields),
            ),
        )

    def prioritize_task(
        self,
        keys: TaskKeys,
        *,
        priority: int,
        write: str,
        mark: bytes = b"",
        expected: int | None = None,
    ) -> PendingReply:
        """OK version | STALE version write | DENIED status | LOST epoch | MISSING."""
        return self._run(
            "prioritize_task",
            (keys.task, keys.lease),
            (
                mark,
                expecting(expected),
                write,
                priority,
            ),
        )

    def open_pause(
        self,
        keys: TaskKeys,
        *,
        mark: bytes,
        token: str,
        pauses: str,
        entry: str,
        note: bytes,
        owner: bytes,
        about: bytes,
        token_ttl_ms: int,
        keep_ms: int,
        ttl_ms: int,
        announcement: Announcement,
        lane: LaneState = NO_LANE,
    ) -> PendingReply:
        """OK note left_ms entries | DENIED status | LOST epoch | REWOUND entries."""
        said = announcement
        return self._run(
            "open_pause",
            (keys.task, keys.lease, *said.keys(keys.task_id), token, keys.journal, pauses),
            (
                mark,
                raw(entry),
                note,
                owner,
                about,
                token_ttl_ms,
                keep_ms,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *pairs(said.rows),
                raw(lane.entry),
                lane.state,
            ),
        )

    def pause_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        mark: bytes,
        token: str,
        entry: str,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
    ) -> PendingReply:
        """OK version | TAKEN by at decision | EXPIRED | MISSING | DENIED status | LOST epoch |
        REWOUND entries.
        """
        said = announcement
        return self._run(
            "pause_task",
            (keys.task, keys.tasks, keys.lease, *said.keys(keys.task_id), token, keys.journal),
            (
                mark,
                raw(entry),
                write,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *pairs(said.rows),
                *flat(fields),
            ),
        )

    def decide_pause(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        token: str,
        pauses: str,
        entry: str,
        claim: str,
        by: str,
        decision: bytes,
        note: bytes,
        keep_ms: int,
        ttl_ms: int,
        announcement: Announcement,
        overdue: bool = False,
        mark: bytes = b"",
    ) -> PendingReply:
        """OK status attempts | TAKEN by at decision | EXPIRED | HELD left_ms | MISSING |
        DENIED status | LOST epoch. ``announcement``: of the task's move, else of the decision.
        """
        said = announcement
        log_keys = said.keys(keys.task_id)
        return self._run(
            "decide_pause",
            (keys.task, keys.tasks, keys.lease, *log_keys, token, keys.journal, pauses),
            (
                mark,
                int(overdue),
                raw(claim),
                raw(by),
                decision,
                keep_ms,
                raw(entry),
                note,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *pairs(said.rows),
                *flat(fields),
            ),
        )

    # The life of a task

    def transition_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        mark: bytes,
        from_phases: Iterable[str],
        status: str,
        phase: str,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
    ) -> PendingReply:
        """OK fields | DENIED phase | LOST epoch | MISSING."""
        said = announcement
        return self._run(
            "transition_task",
            (keys.task, keys.tasks, keys.lease, *said.keys(keys.task_id), keys.journal),
            (
                mark,
                f" {' '.join(from_phases)} ",
                write,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *pairs(said.rows),
                status,
                phase,
                *flat(fields),
            ),
        )

    def emit_update(
        self, keys: TaskKeys, announcement: Announcement, *, mark: bytes, lane: LaneState
    ) -> PendingReply:
        """OK entries | LOST epoch | REWOUND entries | MISSING. ``announcement``: of one row."""
        said = announcement
        return self._run(
            "emit_update",
            (*said.keys(keys.task_id), keys.lease, keys.journal, keys.task),
            (
                mark,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                raw(lane.entry),
                lane.state,
                *pairs(said.rows),
            ),
        )
