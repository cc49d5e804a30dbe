"""Snapshots of tasks: versions in numeric order."""

from __future__ import annotations

from dataclasses import dataclass

from redis_state.transport.scripts.run import (
    Asked,
    ScriptRunner,
)


@dataclass(frozen=True, slots=True)
class SnapshotKeys:
    """The keys of a task's snapshots; all in the task's slot."""

    rows: str
    index: str
    removal: str


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
    ) -> Asked:
        """OK."""
        return self._run(
            "save_snapshot",
            (keys.rows, keys.index),
            (version, snapshot_id, int(checkpoint), row, ttl_ms),
        )

    def read_snapshot(self, keys: SnapshotKeys, *, prefix: str) -> Asked:
        """OK version row | MISSING."""
        return self._run("read_snapshot", (keys.rows, keys.index), (prefix,))

    def delete_snapshots(self, keys: SnapshotKeys, *, version: str | None, write: str) -> Asked:
        """OK removed. None stands for all versions."""
        return self._run(
            "delete_snapshots", (keys.rows, keys.index, keys.removal), (version or "", write)
        )

    def rollback_snapshots(self, keys: SnapshotKeys, *, prefix: str, write: str) -> Asked:
        """OK version row | MISSING."""
        return self._run(
            "rollback_snapshots", (keys.rows, keys.index, keys.removal), (prefix, write)
        )

    def prune_snapshots(
        self, keys: SnapshotKeys, *, keep_last: int, keep_checkpoints: bool, write: str
    ) -> Asked:
        """OK removed."""
        return self._run(
            "prune_snapshots",
            (keys.rows, keys.index, keys.removal),
            (keep_last, int(keep_checkpoints), write),
        )
