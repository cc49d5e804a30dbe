"""A task from outside that only the archive has by now: what it is, and its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from redis_state.archive.model import ArchivedTask
from redis_state.errors import CorruptState
from redis_state.scripts import raw
from redis_state.store import RedisStateStore
from redis_state.worker.tasks.execution.code_changes import VERSION
from redis_state.worker.tasks.recorded.archived import ArchivedJournal, load_archived
from redis_state.worker.tasks.recorded.compensations import Compensation, compensations_of
from redis_state.worker.tasks.recorded.journal import StepRecord, steps_of
from redis_state.worker.tasks.recorded.snapshots import (
    FullSnapshot,
    StepSnapshot,
    full_snapshot,
    snapshots_of,
)
from redis_state.worker.tasks.views.stream import TaskView, view_of


@dataclass(frozen=True, slots=True)
class ArchivedView:
    """An archived task, the steps that it recorded, and what was to be undone of it."""

    view: TaskView
    steps: Sequence[StepSnapshot]
    compensations: Sequence[Compensation]


async def view_archived(
    store: RedisStateStore, session_id: str, task_id: str
) -> ArchivedView | None:
    """Return a task that Redis does not have as the archive has it; None without archive or task.

    Errors: ArchiveUnavailable; CorruptState; PayloadLost.
    """
    task = await load_archived(store, session_id, task_id)
    if task is None:
        return None
    version = task.journal.get(raw(VERSION))
    view = await view_of(store, session_id, task_id, task.as_stored, version)
    try:
        journal = ArchivedJournal(store, task).read()
        steps, undos = snapshots_of(steps_of(journal)), compensations_of(journal)
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(store, task, error) from None
    return ArchivedView(replace(view, archived=True), steps, undos)


async def read_archived_step(
    store: RedisStateStore, session_id: str, task_id: str, version: int
) -> FullSnapshot | None:
    """Return a recorded step of an archived task with its result, or None.

    Errors: those of `view_archived`.
    """
    task = await load_archived(store, session_id, task_id)
    if task is None:
        return None
    kept = ArchivedJournal(store, task)
    try:
        steps: list[tuple[str, StepRecord]] = steps_of(kept.read())
    except ValueError as error:
        raise _unreadable(store, task, error) from None
    for entry, note in steps:
        if note.version == version:
            return full_snapshot(entry, note, await kept.result(entry, note))
    return None


def _unreadable(store: RedisStateStore, task: ArchivedTask, error: Exception) -> CorruptState:
    key = store.tasks.keys(task.session_id, task.task_id).journal
    return CorruptState(key, f"a note cannot be read: {type(error).__name__}")
