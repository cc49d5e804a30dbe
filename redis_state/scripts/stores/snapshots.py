"""Snapshots of tasks: versions in numeric order."""

from __future__ import annotations

from dataclasses import dataclass

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner


@dataclass(frozen=True, slots=True)
class SnapshotKeys:
    """The keys of a task's snapshots; all in the task's slot."""

    rows: str
    index: str


class SnapshotScripts(ScriptRunner):
    """Snapshots of tasks: versions in numeric order."""

    @script
    def save_snapshot(
        self,
        keys: SnapshotKeys,
        *,
        version: str,
        snapshot_id: str,
        checkpoint: bool,
        row: bytes,
        ttl_ms: int,
    ) -> PendingReply:
        """OK."""

    @script
    def read_snapshot(self, keys: SnapshotKeys, *, prefix: str) -> PendingReply:
        """OK version row | MISSING | GAP."""

    @script
    def delete_snapshots(self, keys: SnapshotKeys, *, version: str | None) -> PendingReply:
        """OK removed. None stands for all versions."""

    @script
    def rollback_snapshots(self, keys: SnapshotKeys, *, prefix: str) -> PendingReply:
        """OK version row | MISSING | GAP."""

    @script
    def prune_snapshots(
        self, keys: SnapshotKeys, *, keep_last: int, keep_checkpoints: bool
    ) -> PendingReply:
        """OK removed."""
