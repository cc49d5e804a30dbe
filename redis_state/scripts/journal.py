"""A task's journal: notes of steps, parts of large results."""

from __future__ import annotations

from redis_state.scripts.runner import (
    NO_LANE,
    LaneState,
    PendingReply,
    ScriptRunner,
    raw,
)
from redis_state.scripts.tasks import TaskKeys

# How many entries of a journal one command of a script names: Lua's stack has its limits.
_SLICE = 1000


class JournalScripts(ScriptRunner):
    """A task's journal: notes of steps, parts of large results."""

    def note_step(
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
        return self._run(
            "note_step",
            (keys.journal, keys.lease, keys.task),
            (
                *(mark, raw(entry), "true" if checkpoint else "false", chunks, about, result),
                *(raw(lane.entry), lane.state),
            ),
        )

    def keep_part(
        self, keys: TaskKeys, *, mark: bytes, entry: str, number: int, data: bytes
    ) -> PendingReply:
        """OK number | STALE | LOST epoch | MISSING."""
        return self._run(
            "keep_part",
            (keys.journal, keys.lease, keys.task),
            (mark, raw(entry), number, data),
        )

    def record_entry(
        self, keys: TaskKeys, *, mark: bytes, entry: str, value: bytes, lane: LaneState = NO_LANE
    ) -> PendingReply:
        """OK entries | LOST epoch | REWOUND entries | MISSING."""
        return self._run(
            "record_entry",
            (keys.journal, keys.lease, keys.task),
            (mark, raw(entry), value, raw(lane.entry), lane.state),
        )

    def read_journal(self, keys: TaskKeys) -> PendingReply:
        """OK notes entries."""
        return self._run("read_journal", (keys.journal, keys.task), (_SLICE,))
