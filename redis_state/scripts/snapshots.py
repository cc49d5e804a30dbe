"""Snapshots of tasks: versions in numeric order."""

from __future__ import annotations

from dataclasses import dataclass

from redis_state.scripts.runner import (
    PendingReply,
    ScriptRunner,
)


@dataclass(frozen=True, slots=True)
class SnapshotKeys:
    """The keys of a task's snapshots; all in the task's slot."""

    rows: str
    index: str


class SnapshotScripts(ScriptRunner):
    """Snapshots of tasks: versions in numeric order."""

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
        return self._run_once(
            "save_snapshot",
            (keys.rows, keys.index),
            (version, snapshot_id, int(checkpoint), row, ttl_ms),
        )

    def read_snapshot(self, keys: SnapshotKeys, *, prefix: str) -> PendingReply:
        """OK version row | MISSING."""
        return self._run("read_snapshot", (keys.rows, keys.index), (prefix,))

    def delete_snapshots(self, keys: SnapshotKeys, *, version: str | None) -> PendingReply:
        """OK removed. None stands for all versions."""
        return self._run_once("delete_snapshots", (keys.rows, keys.index), (version or "",))

    def rollback_snapshots(self, keys: SnapshotKeys, *, prefix: str) -> PendingReply:
        """OK version row | MISSING."""
        return self._run_once("rollback_snapshots", (keys.rows, keys.index), (prefix,))

    def prune_snapshots(
        self, keys: SnapshotKeys, *, keep_last: int, keep_checkpoints: bool
    ) -> PendingReply:
        """OK removed."""
        return self._run_once(
            "prune_snapshots", (keys.rows, keys.index), (keep_last, int(keep_checkpoints))
        )
