"""A task's journal: notes of steps, parts of large results."""

from __future__ import annotations

from collections.abc import Sequence

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import JOURNAL_PORTION, NO_LANE, LaneState, TaskKeys


class JournalScripts(ScriptRunner):
    """A task's journal: notes of steps, parts of large results."""

    @script
    def record_step(
        self,
        keys: TaskKeys,
        *,
        mark: bytes,
        entry: str,
        checkpoint: bool,
        chunks: int,
        about: bytes,
        result: bytes,
        lane: LaneState = NO_LANE,
    ) -> PendingReply:
        """OK note entries | LOST epoch | REWOUND entries | MISSING."""

    @script
    def keep_part(
        self, keys: TaskKeys, *, mark: bytes, entry: str, number: int, data: bytes
    ) -> PendingReply:
        """OK number | STALE | LOST epoch | MISSING."""

    @script
    def record_entry(
        self, keys: TaskKeys, *, mark: bytes, entry: str, value: bytes, lane: LaneState = NO_LANE
    ) -> PendingReply:
        """OK entries | LOST epoch | REWOUND entries | MISSING."""

    @script
    def read_journal(
        self,
        keys: TaskKeys,
        *,
        names: Sequence[bytes],
        most_bytes: int,
        portion: int = JOURNAL_PORTION,
    ) -> PendingReply:
        """OK notes entries left."""
