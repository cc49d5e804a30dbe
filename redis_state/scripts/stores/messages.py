"""Messages of a worker's task: values out."""

from __future__ import annotations

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import Announcement, LaneState, TaskKeys


class MessageScripts(ScriptRunner):
    """Messages of a worker's task: values out."""

    @script
    def publish_value(
        self,
        keys: TaskKeys,
        announcement: Announcement,
        *,
        mark: bytes,
        entry: str,
        value: bytes,
        most: int,
        lane: LaneState,
    ) -> PendingReply:
        """OK entries | FULL count | LOST epoch | REWOUND entries | MISSING."""

    @script
    def list_values(self, keys: TaskKeys) -> PendingReply:
        """OK values."""
