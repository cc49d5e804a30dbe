"""The life of a worker's task: create, start, step, pause, decide, move."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from redis_state.scripts.binding import of_new_keys, script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import (
    JOURNAL_PORTION,
    NO_LANE,
    STARTED_BYTES,
    Announcement,
    Expected,
    LaneState,
    TaskKeys,
    Words,
)
from redis_state.transport.key_groups import LogKeys


class TaskScripts(ScriptRunner):
    """The life of a worker's task: create, start, step, pause, decide, move."""

    # The life of a task

    @of_new_keys
    def create_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        steering: LogKeys,
        announcement: Announcement,
        children: str,
        write: str,
        ttl_ms: int,
        before: int | None = None,
    ) -> PendingReply:
        """OK version | STALE version | EXPIRED."""

    @script
    def clear_task(self, keys: TaskKeys, *, children: str, lease_ms: int) -> PendingReply:
        """OK deleted."""

    @script
    def look_task(self, keys: TaskKeys) -> PendingReply:
        """OK epoch left_ms values | MISSING."""

    @script
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
        steering: LogKeys,
        reads: int = 1,
        claimed: int | None = None,
        most_bytes: int = STARTED_BYTES,
        portion: int = JOURNAL_PORTION,
    ) -> PendingReply:
        """OK epoch fields recorded steered dropped read | HELD left_ms | DENIED status |
        MISSING.
        """

    @script
    def retire_claim(self, keys: TaskKeys, *, version: int, claimed: int) -> PendingReply:
        """OK retired."""

    @script
    def move_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        mark: bytes,
        from_states: Words,
        release: bool,
        silent: bool = False,
        write: str,
        ttl_ms: int,
        hold_ms: int = 0,
        announcement: Announcement,
        parent: TaskKeys | None = None,
        ended: bytes = b"",
    ) -> PendingReply:
        """OK version epoch | DENIED status | LOST epoch | REWOUND entries | MISSING.

        ``ended`` is a child's end, as its ``parent`` notes it. A ``silent`` move does without the
        announcement if that is refused.
        """

    @script
    def prioritize_task(
        self,
        keys: TaskKeys,
        *,
        priority: int,
        write: str,
        mark: bytes = b"",
        expected: Expected = None,
    ) -> PendingReply:
        """OK version | STALE version write | DENIED status | LOST epoch | MISSING."""

    @script
    def retry_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        children: str,
        expected: Expected,
        key: str,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
        dropped: Sequence[str],
        turn: str | None = None,
        in_turn: bool = False,
        place_ms: int = 0,
    ) -> PendingReply:
        """OK version | TAKEN version | STALE version write | DENIED status | MISSING."""

    @script
    def fork_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        source: TaskKeys,
        steering: LogKeys,
        updates: LogKeys,
        children: str,
        write: str,
        ttl_ms: int,
        before: int,
        order: int | None,
        copied: Sequence[str],
        made: Mapping[bytes, bytes],
        turn: str | None = None,
        in_turn: bool = False,
        earlier_ms: int = 0,
    ) -> PendingReply:
        """OK version | STALE version | EXPIRED | MISSING."""

    @script
    def set_attributes(
        self,
        keys: TaskKeys,
        *,
        mark: bytes,
        entry: str,
        attributes: bytes,
        write: str,
        lane: LaneState = NO_LANE,
    ) -> PendingReply:
        """OK version entries | STALE entries | LOST epoch | REWOUND entries | MISSING."""

    @script
    def record_running(self, keys: TaskKeys, *, mark: bytes, steps: bytes) -> PendingReply:
        """OK | LOST epoch | MISSING."""

    @script
    def begin_record_running(
        self, keys: TaskKeys, *, mark: bytes, steps: bytes
    ) -> asyncio.Future[Any]:
        """Like `record_running`, without waiting for the reply."""

    @script
    def open_pause(
        self,
        keys: TaskKeys,
        *,
        mark: bytes,
        token: str,
        entry: str,
        note: bytes,
        owner: bytes,
        about: bytes,
        extra: Mapping[bytes, bytes],
        token_ttl_ms: int,
        keep_ms: int,
        ttl_ms: int,
        announcement: Announcement,
        before: int | None = None,
        lane: LaneState = NO_LANE,
    ) -> PendingReply:
        """OK note left_ms entries opened | DENIED status | LOST epoch | REWOUND entries |
        EXPIRED.
        """

    @script
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

    @script
    def decide_pause(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        token: str,
        entry: str,
        claim: str,
        actor: str,
        decision: bytes,
        approves: bool,
        vote: bytes,
        note: bytes,
        keep_ms: int,
        ttl_ms: int,
        announcement: Announcement,
        overdue: bool = False,
        mark: bytes = b"",
    ) -> PendingReply:
        """OK status attempts looked | TAKEN by at decision | EXPIRED | HELD left_ms | MISSING |
        DENIED status | LOST epoch | COUNTED approved rejected | REFUSED seat.

        ``announcement``: of the task's move, else of the decision, else of the vote.
        """

    @script
    def delegate_pause(
        self,
        keys: TaskKeys,
        *,
        token: str,
        actor: str,
        to: str,
        most: int,
        announcement: Announcement,
    ) -> PendingReply:
        """OK | TAKEN by at decision | EXPIRED | MISSING | DENIED status | REFUSED seat of_to."""

    @script
    def escalate_pause(
        self,
        keys: TaskKeys,
        *,
        token: str,
        number: int,
        after_ms: int,
        replaces: bool,
        announcement: Announcement,
        actors: Sequence[str],
    ) -> PendingReply:
        """OK done | STALE done | HELD left_ms | DENIED state | MISSING."""

    @script
    def pause_left(self, token: str, *, tasks: str) -> PendingReply:
        """OK left_ms."""

    # The life of a task

    @script
    def transition_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        mark: bytes,
        from_phases: Words,
        status: str,
        phase: str,
        write: str,
        ttl_ms: int,
        hold_ms: int = 0,
        announcement: Announcement,
    ) -> PendingReply:
        """OK fields | DENIED phase | LOST epoch | MISSING."""

    @script
    def emit_update(
        self, keys: TaskKeys, announcement: Announcement, *, mark: bytes, lane: LaneState
    ) -> PendingReply:
        """OK entries | LOST epoch | REWOUND entries | MISSING. ``announcement``: of one row."""
