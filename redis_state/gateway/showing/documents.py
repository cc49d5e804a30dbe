"""What answers say of tasks and pauses: the library's documents, without tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from redis_state import documents
from redis_state.documents import time_text
from redis_state.gateway.showing.cutting import cut_tokens
from redis_state.models import StateUpdate, TaskState
from redis_state.models.tasks import parent_of
from redis_state.stores.sessions.session_log import Entry
from redis_state.worker import (
    BulkItem,
    BulkOutcome,
    Compensation,
    OpenPause,
    SessionTasks,
    StepSnapshot,
    TaskSummary,
    TaskView,
)

_LEVELS: Final = 100


def state_document(state: TaskState) -> dict[str, Any]:
    """Write a task."""
    return _cut(state.session_id, documents.task_document(state), "session_id", "task_id")


def view_document(view: TaskView) -> dict[str, Any]:
    """Write a task with what its workers know of it."""
    document = documents.view_document(view)
    return _cut(view.state.session_id, document, "session_id", "task_id")


def summary_document(task: TaskSummary) -> dict[str, Any]:
    """Write a task that was found."""
    return _cut(task.session_id, documents.summary_document(task), "session_id", "task_id")


def session_document(session: SessionTasks) -> dict[str, Any]:
    """Write a session that has tasks."""
    return {
        "session_id": session.session_id,
        "counts": {status.value: count for status, count in session.counts.items()},
        "newest_at": time_text(session.newest_at),
    }


def branch_documents(
    tops: Iterable[TaskState], tasks: Iterable[TaskState]
) -> tuple[list[dict[str, Any]], bool]:
    """Write tasks and, in each, those that it has spawned; return whether some are too far below.

    JSON has an end to its depth.
    """
    below: dict[str, list[TaskState]] = {}
    for each in tasks:
        parent = parent_of(each)
        if parent is not None:
            below.setdefault(parent, []).append(each)
    branches = [_branch(top, below) for top in tops]
    return [branch for branch, _ in branches], any(is_cut for _, is_cut in branches)


def _branch(top: TaskState, below: dict[str, list[TaskState]]) -> tuple[dict[str, Any], bool]:
    seen, document = {top.task_id}, _leaf(top)
    level = [(top.task_id, document)]
    for _ in range(_LEVELS):
        following: list[tuple[str, dict[str, Any]]] = []
        for task_id, above in level:
            for child in below.get(task_id, []):
                if child.task_id not in seen:
                    seen.add(child.task_id)
                    leaf = _leaf(child)
                    above["children"].append(leaf)
                    following.append((child.task_id, leaf))
        level = following
    return document, any(below.keys() & {task_id for task_id, _ in level})


def _leaf(state: TaskState) -> dict[str, Any]:
    document = state_document(state)
    # A tree is to be looked at: results are read one by one.
    del document["result"]
    return document | {"children": []}


def step_document(session_id: str, step: StepSnapshot) -> dict[str, Any]:
    """Write a recorded step, without its result."""
    document = {
        "version": step.version,
        "step": step.step,
        "checkpoint": step.checkpoint,
        "run": step.epoch,
        "began_at": time_text(step.began_at),
        "at": time_text(step.at),
        "attempts": step.attempts,
        "size": step.size,
    }
    return _cut(session_id, document)


def compensation_document(session_id: str, undo: Compensation) -> dict[str, Any]:
    """Write a compensation."""
    document = {
        "name": undo.name,
        "state": undo.state,
        "error": undo.error,
        "on_cancel": undo.on_cancel,
    }
    return _cut(session_id, document)


def row_document(entry: Entry[StateUpdate], update: StateUpdate) -> dict[str, Any]:
    """Write an update of a task, as the caller may see it."""
    document = documents.update_document(update, entry.cursor) | {
        "run": entry.run,
        "update_id": update.update_id,
        "trace_id": update.trace_id,
    }
    return _cut(update.session_id, document, "task_id", "cursor")


def pause_document(pause: OpenPause) -> dict[str, Any]:
    """Write an open pause: what it asks, and the id that it is decided by."""
    names = ("session_id", "task_id", "pause_id", "tags")
    cut = _cut(pause.session_id, documents.pause_document(pause), *names)
    return {"state": "open"} | cut


def item_document(item: BulkItem) -> dict[str, Any]:
    """Write what became of one task. Trouble with the server is the operator's to read."""
    failed = item.outcome is BulkOutcome.FAILED
    return {
        "session_id": item.session_id,
        "task_id": item.task_id,
        "status": item.status.value,
        "outcome": item.outcome.value,
        "new_task_id": item.new_task_id,
        "reason": "the state store cannot answer now" if failed else item.reason,
    }


def _cut(session_id: str, document: dict[str, Any], *kept: str) -> dict[str, Any]:
    """Cut tokens everywhere but in the ids that name things."""
    cut: dict[str, Any] = cut_tokens(
        session_id, {name: value for name, value in document.items() if name not in kept}
    )
    return {name: document[name] for name in kept} | cut
