"""Messages of a worker's task: values out, mail in."""

from __future__ import annotations

from collections.abc import Mapping

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import NO_LANE, Announcement, LaneState, TaskKeys


class MessageScripts(ScriptRunner):
    """Messages of a worker's task: values out, mail in."""

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

    @script
    def send_message(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        live: str,
        covered: bool,
        box: str,
        message_id: str,
        message: bytes,
        sent: bytes,
        most: int,
        most_bytes: int,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
    ) -> PendingReply:
        """OK 1 status | OK 0 status sent | HELD | FULL count | DENIED status | MISSING."""

    @script
    def take_message(
        self,
        keys: TaskKeys,
        *,
        mark: bytes,
        entry: str,
        box: str,
        timeout_ms: int,
        place: int = 0,
        lane: LaneState = NO_LANE,
    ) -> PendingReply:
        """OK message entries | HELD left_ms | LOST epoch | REWOUND entries | MISSING."""

    @script
    def await_message(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        mark: bytes,
        left_ms: int,
        boxes: bytes,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
    ) -> PendingReply:
        """OK version | AGAIN | DENIED status | LOST epoch | REWOUND entries."""

    @script
    def wake_receiver(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
    ) -> PendingReply:
        """OK version | HELD left_ms | DENIED status | MISSING."""
