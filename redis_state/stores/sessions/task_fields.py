"""What a task's record says: its fields, written from a task and read from it.

What changes while a task runs has a field of its own, so that a script can move a task without
reading JSON; the rest is one document.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from time import time_ns
from typing import Any

from pydantic import BaseModel

from redis_state.errors import InvalidField
from redis_state.models import TaskContextSnapshot, TaskState, TaskStatus, TaskType
from redis_state.serialization import codec
from redis_state.serialization.fields import choice, moment
from redis_state.serialization.payloads import Parts, Payloads

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# What is said in a task's context, beside ids and times.
_CONTENT = ("spawn_reason", "query", "llm_context", "tool_context", "memory", "artifacts")
SEALED_CONTENT = "sealed"
# Not stored either.
USUAL_KIND = TaskType.BACKGROUND.value
NULL = b"null"
_OUTCOMES = ("result", "error", "progress")
# What is not stored of a context, because most contexts have it.
_USUAL: dict[str, Any] = {
    name: field.get_default(call_default_factory=True)
    for name, field in TaskContextSnapshot.model_fields.items()
    if not field.is_required() and name != "spawned_at"
}
# The context of a new task that was given none. Nothing is stored of it.
NO_CONTEXT = TaskContextSnapshot(session_id="", task_id="")


def read_updated(fields: Mapping[str, bytes]) -> datetime:
    """Return when a task last changed: as its host gave it, unless the task has moved since.

    Errors: ValueError, TypeError, OverflowError.
    """
    stated, counted = fields.get("updated"), fields.get("updated_at")
    if stated is not None:
        given = datetime.fromisoformat(stated.decode())
        if counted is None or microseconds(given) == int(counted):
            return given
    return _EPOCH + timedelta(microseconds=int(counted or b""))


def new_task_fields(payloads: Payloads, state: TaskState) -> dict[str, bytes]:
    """Write a task that is new as its record's fields, without those that say nothing."""
    fields = {
        "status": choice("status", state.status, TaskStatus).encode(),
        "priority": _priority(state.priority),
        "document": _document(payloads, state),
    }
    for name in _OUTCOMES:
        value = getattr(state, name)
        if value is not None:
            fields[name] = payloads.write(value, field=name)
    fields["updated_at"] = b"%d" % microseconds(state.updated_at)
    return fields


def task_values(payloads: Payloads, state: TaskState) -> tuple[bytes, ...]:
    """Write a task as the values of `TASK_FIELDS`."""
    return (
        choice("status", state.status, TaskStatus).encode(),
        _priority(state.priority),
        _document(payloads, state),
        *(payloads.write(getattr(state, name), field=name) for name in _OUTCOMES),
        moment("updated_at", state.updated_at).encode(),
    )


def _document(payloads: Payloads, state: TaskState) -> bytes:
    """Write what never changes of a task."""
    parts = payloads.parts()
    created_at = moment("created_at", state.created_at)
    document: dict[str, Any] = {"created_at": created_at}
    kind = choice("task_type", state.task_type, TaskType)
    if kind != USUAL_KIND:
        document["task_type"] = kind
    if state.context_snapshot is not NO_CONTEXT:
        _add_context(document, state, created_at)
    if state.trace_id is not None:
        document["trace_id"] = state.trace_id
    if state.description is not None:
        document["description"] = parts(state.description, field="description")
    if payloads.seals and "context_snapshot" in document:
        _seal_content(document, parts)
    return parts.mark(codec.encode(document))


def _add_context(document: dict[str, Any], state: TaskState, created_at: str) -> None:
    """Write what is unusual of a task's context. `TaskStore.read` adds the rest."""
    snapshot: Any = state.context_snapshot
    if not isinstance(snapshot, BaseModel):  # a dataclass lets anything in
        raise InvalidField("context_snapshot", "a TaskContextSnapshot is needed")
    fields: Any = codec.fields_of(snapshot)
    if codec.kind_of(fields) is dict:
        usual = {
            **_USUAL,
            "session_id": state.session_id,
            "task_id": state.task_id,
            "spawned_at": created_at,
        }
        # The type first: a value may be anything, and compare as it likes.
        fields = {
            name: value
            for name, value in fields.items()
            if name not in usual or type(value) is not type(usual[name]) or value != usual[name]
        }
    if fields != {}:
        document["context_snapshot"] = fields


@cache
def unusual_defaults(snapshot_type: type[Any]) -> dict[str, Any]:
    """List what must be given to a host's type, because its own default is another."""
    fields = getattr(snapshot_type, "model_fields", {})
    own = {
        name: field.get_default(call_default_factory=True)
        for name, field in fields.items()
        if name in _USUAL
    }
    return {name: _USUAL[name] for name, value in own.items() if value != _USUAL[name]}


def _seal_content(document: dict[str, Any], parts: Parts) -> None:
    """Seal what a task's context says; ids and times of it stay clear."""
    snapshot: dict[str, Any] = document["context_snapshot"]
    content = {name: snapshot[name] for name in _CONTENT if snapshot.get(name)}
    if content:
        document["context_snapshot"] = {
            name: value for name, value in snapshot.items() if name not in content
        }
        document[SEALED_CONTENT] = parts(content, field="context_snapshot")


def move_fields(
    status: TaskStatus, payloads: Payloads | None = None, **changes: Any
) -> dict[str, bytes]:
    """Write the fields that change when a task moves, on this process's clock for display."""
    write = codec.encode if payloads is None else payloads.write
    fields = {
        "status": status.value.encode(),
        "finished": b"1" if status.is_terminal else b"0",
        "updated_at": b"%d" % (time_ns() // 1000),
    }
    return fields | {name: write(value) for name, value in changes.items()}


def microseconds(moment: datetime) -> int:
    """Count a moment in microseconds; a naive one is taken as UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND


def _priority(value: Any) -> bytes:
    try:
        return str(operator.index(value)).encode()
    except (TypeError, ValueError):  # the latter for a number of thousands of digits
        raise InvalidField("priority", "a whole number is needed") from None
