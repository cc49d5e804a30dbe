"""Patches that wait for a decision, as they are kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redis_state.models.session_context import ContextPatch, MergeStrategy
from redis_state.primitives.record import Stored
from redis_state.serialization import codec
from redis_state.serialization.fields import choice, moment
from redis_state.serialization.rows import as_object
from redis_state.stores.contexts.patch_updates import UpdateContent


@dataclass(frozen=True, slots=True)
class WaitingPatch:
    """A patch that waits, with what its approval needs: PenguiFlow's class has no place for it."""

    patch_id: str
    expires_ms: int
    open: bool
    patch: ContextPatch
    strategy: MergeStrategy
    payload: Any
    group_id: str | None
    created_at: float


def write_waiting(patch: ContextPatch, strategy: Any, payload: Any, group_id: str | None) -> bytes:
    """Write what is kept of a patch that waits."""
    return codec.encode(
        {
            "patch": {**dict(patch), "completed_at": moment("completed_at", patch.completed_at)},
            "strategy": choice("strategy", strategy, MergeStrategy),
            "payload": payload,
            "group_id": group_id,
        }
    )


def read_waiting(patch_type: type[Any], patch_id: str, record: Stored) -> WaitingPatch:
    """Read the record of a patch. Errors: those of the host's type."""
    fields = record.fields
    if "payload" not in fields:
        # One that was applied at once: nothing of it but what became of it is kept.
        task_id = fields["task"].decode("utf-8", "surrogatepass")
        row: UpdateContent = {"patch": {"task_id": task_id}}
    else:
        row = as_object(fields["payload"])
    if "completed_at" in row["patch"]:
        row["patch"]["completed_at"] = datetime.fromisoformat(row["patch"]["completed_at"])
    return WaitingPatch(
        patch_id=patch_id,
        expires_ms=int(fields.get("expires", 0)),
        open=fields["state"] == b"open",
        patch=patch_type.model_validate(row["patch"]),
        strategy=MergeStrategy(row.get("strategy", MergeStrategy.APPEND)),
        payload=row.get("payload"),
        group_id=row.get("group_id"),
        created_at=record.order / 1_000_000,
    )
