"""A task's journal: notes of steps, parts of large results."""

from __future__ import annotations

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import NO_LANE, LaneState, TaskKeys

# How many entries of a journal one command of a script names: Lua's stack has its limits.
_SLICE = 1000


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
    def read_journal(self, keys: TaskKeys, *, portion: int = _SLICE) -> PendingReply:
        """OK notes entries."""
