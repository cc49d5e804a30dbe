"""The snapshots of a task: numbered, in numeric order, exactly as they were saved.

A version's name is its number behind the number's length, so that names stand in numeric order as
text: scores of a sorted set are doubles, which merge versions above 2**53.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

from redis_state.errors import CorruptState, InvalidField
from redis_state.models.hosts.snapshots import Snapshot
from redis_state.scripts import Reply, ReplyCode, SnapshotKeys
from redis_state.serialization.fields import moment, text
from redis_state.serialization.lossless import pack, unpack_exact
from redis_state.stores.base import Base, ms
from redis_state.transport.key_text import escape

_LATEST = "v:"
_CHECKPOINT = "c:"
_MAX_BITS = 2048
_MOST_KEPT = 2**32


class SnapshotStore:
    """Save, find, list and clear away the snapshots of tasks.

    Every call is one atomic step, whose effect all later reads see, in any process. A task's
    snapshots live `snapshots_ttl` after the last save, all together. A save or a removal whose
    reply was lost is repeated without touching anything that came since.
    """

    def __init__(self, base: Base, snapshot_type: type[Any] = Snapshot) -> None:
        self._base = base
        self._type = snapshot_type

    async def save(self, snapshot: Snapshot) -> None:
        """Save a snapshot, whole; one of the same task and version is replaced.

        Versions may come in any order and with gaps. Errors: InvalidField names a version below
        1, or what of ``data`` could not be given back as it is; nothing was saved then.
        """
        task_id, version = text("task_id", snapshot.task_id), snapshot.version
        name = version_name(version)
        if name is None:
            raise InvalidField("version", "a whole number of 1 or more is needed")
        if not isinstance(cast("object", snapshot.data), dict):
            raise InvalidField("data", f"a dict is needed, not {type(snapshot.data).__name__}")
        row = {
            "data": snapshot.data,
            "id": text("id", snapshot.id),
            "checkpoint": bool(snapshot.checkpoint),
            "created_at": moment("created_at", snapshot.created_at),
        }
        await self._base.scripts.save_snapshot(
            self.keys(task_id),
            version=name,
            snapshot_id=escape("id", snapshot.id),
            checkpoint=bool(snapshot.checkpoint),
            row=self._base.payloads.seal(pack(row)),
            ttl_ms=ms(self._base.settings.snapshots_ttl),
        )

    async def get(self, task_id: str, version: int | None = None) -> Snapshot | None:
        """Return one version, or the highest for None; None if it does not exist.

        Errors: CorruptState if it cannot be read: None would mean to start from the beginning.
        """
        if version is None:
            return await self._find(task_id, _LATEST)
        name = version_name(version)
        return None if name is None else await self._find(task_id, _LATEST + name)

    async def by_id(self, task_id: str, snapshot_id: str) -> Snapshot | None:
        """Return a task's snapshot of an id, the highest version if it has several; or None."""
        return await self._find(task_id, f"i:{escape('snapshot_id', snapshot_id)}:")

    async def last_checkpoint(self, task_id: str) -> Snapshot | None:
        """Return the highest version that is a checkpoint, or None."""
        return await self._find(task_id, _CHECKPOINT)

    async def versions(self, task_id: str) -> Sequence[int]:
        """List a task's versions, ascending."""
        commands = self._base.scripts.transport.commands
        found: list[bytes] = await commands.zrange_by_lex(self.keys(task_id).index, "[v:", "(v;")
        return [version_number(entry[len(_LATEST) :].decode()) for entry in found]

    async def delete(self, task_id: str, version: int | None = None) -> bool:
        """Delete one version, or all for None; return whether there was any."""
        name = None if version is None else version_name(version)
        if version is not None and name is None:
            return False
        reply = await self._base.scripts.delete_snapshots(self.keys(task_id), version=name)
        return int(reply.facts[0]) > 0

    async def rollback(self, task_id: str, *, to: int | None = None) -> Snapshot | None:
        """Delete all versions above the last checkpoint, or above ``to``; return that one.

        None, and nothing is deleted, if there is no such version. Errors: CorruptState.
        """
        name = None if to is None else version_name(to)
        if to is not None and name is None:
            return None
        prefix = _CHECKPOINT if name is None else _LATEST + name
        reply = await self._base.scripts.rollback_snapshots(self.keys(task_id), prefix=prefix)
        return self._read(task_id, reply)

    async def prune(self, task_id: str, *, keep_last: int, keep_checkpoints: bool = True) -> int:
        """Delete all but the ``keep_last`` highest versions; return how many were deleted.

        Checkpoints stay by default, at any version. 0 keeps nothing else.
        """
        if type(keep_last) is not int or not 0 <= keep_last <= _MOST_KEPT:
            raise InvalidField("keep_last", f"a whole number from 0 to {_MOST_KEPT} is needed")
        reply = await self._base.scripts.prune_snapshots(
            self.keys(task_id), keep_last=keep_last, keep_checkpoints=keep_checkpoints
        )
        return int(reply.facts[0])

    def keys(self, task_id: str) -> SnapshotKeys:
        """Return the keys of a task's snapshots."""
        keys = self._base.keys
        return SnapshotKeys(rows=keys.snapshots(task_id), index=keys.snapshot_index(task_id))

    async def _find(self, task_id: str, prefix: str) -> Snapshot | None:
        reply = await self._base.scripts.read_snapshot(self.keys(task_id), prefix=prefix)
        return self._read(task_id, reply)

    def _read(self, task_id: str, reply: Reply) -> Snapshot | None:
        if reply.word is ReplyCode.MISSING:
            return None
        if reply.word is ReplyCode.GAP:
            raise CorruptState(self.keys(task_id).rows, "a part of the snapshots was evicted")
        name, row = reply.facts
        version = version_number(name.decode())
        of = f"task {task_id!r}"
        row = self._base.payloads.open(row, of=of, field=f"snapshot {version}")

        def read() -> Snapshot:
            data, snapshot_id, checkpoint, created_at = unpack_exact(row, 4)
            found: Snapshot = self._type(
                id=snapshot_id,
                task_id=task_id,
                version=version,
                data=data,
                checkpoint=checkpoint,
                created_at=datetime.fromisoformat(created_at),
            )
            return found

        snapshot = self._base.attempt(task_id, f"snapshot {version}", row, read)
        if snapshot is None:
            raise CorruptState(self.keys(task_id).rows, f"version {version} cannot be read")
        return snapshot


def version_name(version: object) -> str | None:
    """Write a version so that names are in numeric order as text; None for what is no version."""
    if isinstance(version, bool) or not isinstance(version, int):
        raise InvalidField("version", f"a whole number is needed, not {type(version).__name__}")
    if version < 1:
        return None
    if version.bit_length() > _MAX_BITS:
        raise InvalidField("version", f"has more than {_MAX_BITS} bits")
    digits = str(int(version))
    return f"{len(digits):03d}{digits}"


def version_number(name: str) -> int:
    """Read a version's name."""
    return int(name[3:])
