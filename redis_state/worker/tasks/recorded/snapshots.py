"""The snapshots of a task: its recorded steps, seen from outside."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from redis_state.errors import CorruptState
from redis_state.store import RedisStateStore
from redis_state.worker.tasks.recorded.journal import Journals, StepRecord, steps_of


@dataclass(frozen=True, slots=True)
class StepSnapshot:
    """One recorded step: its place in the order of the task's records, and its origin.

    ``version`` counts from 1 without a gap. ``epoch`` is the run that made it, ``at`` the server's
    time, ``size`` that of its result in bytes of JSON. ``began_at`` is when its first attempt
    began, None for a record of an earlier version of the library.
    """

    version: int
    step: str
    checkpoint: bool
    epoch: int
    at: datetime
    size: int
    began_at: datetime | None = None
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class FullSnapshot(StepSnapshot):
    """A snapshot and the step's result."""

    result: Any = field(default=None, repr=False)


class Snapshots:
    """Read the snapshots of tasks."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._journals = Journals(store.base)

    async def list(self, session_id: str, task_id: str) -> list[StepSnapshot]:
        """List a task's snapshots in order. Errors: CorruptState."""
        return snapshots_of(await self._recorded(session_id, task_id))

    async def get(self, session_id: str, task_id: str, version: int) -> FullSnapshot | None:
        """Return one snapshot, or None. Errors: CorruptState."""
        recorded = await self._recorded(session_id, task_id)
        return await self._first(
            session_id, task_id, [named for named in recorded if named[1].version == version]
        )

    async def last_checkpoint(self, session_id: str, task_id: str) -> FullSnapshot | None:
        """Return the newest snapshot that is a checkpoint, or None. Errors: CorruptState."""
        recorded = await self._recorded(session_id, task_id)
        return await self._first(
            session_id, task_id, [named for named in reversed(recorded) if named[1].checkpoint]
        )

    async def _recorded(
        self, session_id: str, task_id: str
    ) -> builtins.list[tuple[str, StepRecord]]:
        keys = self._store.tasks.keys(session_id, task_id)
        try:
            journal, _ = await self._journals.read(keys)
            return steps_of(journal)
        except ValueError as error:
            raise CorruptState(keys.journal, f"a note cannot be read: {error}") from None

    async def _first(
        self, session_id: str, task_id: str, recorded: builtins.list[tuple[str, StepRecord]]
    ) -> FullSnapshot | None:
        if not recorded:
            return None
        entry, note = recorded[0]
        keys = self._store.tasks.keys(session_id, task_id)
        return full_snapshot(entry, note, await self._journals.result(keys, entry, note))


def snapshots_of(recorded: builtins.list[tuple[str, StepRecord]]) -> builtins.list[StepSnapshot]:
    """Describe recorded steps."""
    return [StepSnapshot(*_facts(entry, note)) for entry, note in recorded]


def full_snapshot(entry: str, note: StepRecord, result: Any) -> FullSnapshot:
    """Describe a recorded step with its result."""
    return FullSnapshot(*_facts(entry, note), result=result)


def _facts(
    entry: str, note: StepRecord
) -> tuple[int, str, bool, int, datetime, int, datetime | None, int]:
    at = datetime.fromtimestamp(note.at_ms / 1000, UTC)
    began = at - timedelta(milliseconds=note.took_ms) if note.attempts else None
    step = entry.partition(":")[2]
    return note.version, step, note.checkpoint, note.epoch, at, note.size, began, note.attempts
