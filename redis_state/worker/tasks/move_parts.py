"""The shared parts of the moves of a task: fields, updates, and the errors of refusals."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Required, TypedDict, Unpack

from redis_state.errors import InvalidField, InvalidTransition
from redis_state.models import StateUpdate, TaskState, TaskStatus, UpdateType
from redis_state.models.attributes import Attributes
from redis_state.scripts import Announcement, Reply, ReplyCode, raw
from redis_state.serialization import codec
from redis_state.serialization.payloads import Payloads
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.job_parts import job_fields
from redis_state.stores.sessions.task_fields import new_task_fields
from redis_state.stores.sessions.task_status import watch_entry as watch_entry  # noqa: PLC0414
from redis_state.stores.sessions.updates import NewUpdate
from redis_state.worker.tasks.recorded.replay import Replay
from redis_state.worker.tasks.task_format import format_fields

# A task that is written is inspected by then, if its writer died before it was queued.
CHECK_SOON_MS = 2_000
# However long the lease: a task that is handed off and not queued is checked by then.
CHECK_LATEST_MS = 10_000
# By how much the clocks of a cluster's servers may differ.
SKEW_MS = 500


class NewJob(TypedDict, total=False):
    """What a new task runs, and how it waits.

    ``queue`` is the one that it waits in each time it waits, limited under ``key``. It begins at
    ``due_ms``: with ``at`` that moment was given, else it is the end of a delay. ``trace`` is the
    context of the span that its runs belong to. ``attributes`` are what it is found by. ``sent`` is
    the digest of what its caller chose.
    """

    handler: Required[str]
    task_input: Required[Any]
    queue: str | None
    trace: Mapping[str, str] | None
    due_ms: int | None
    at: bool
    key: str
    attributes: Attributes | None
    sent: bytes | None


def new_fields(payloads: Payloads, state: TaskState, **new: Unpack[NewJob]) -> dict[str, bytes]:
    """Write a new task as its record's fields, with a secret of its own.

    Errors: InvalidField for a queue whose name is no text.
    """
    job: dict[str, Any] = {"handler": new["handler"], "input": new["task_input"]}
    job["secret"] = secrets.token_urlsafe(32)
    if trace := new.get("trace"):
        job["trace"] = trace
    fields = new_task_fields(payloads, state)
    fields |= job_fields(payloads.document(job, "input")) | format_fields()
    fields["finished"] = b"0"
    if queue := new.get("queue"):
        if not isinstance(queue, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidField("queue", f"text is needed, not {type(queue).__name__}")
        fields["queue"] = raw(queue)
    if due_ms := new.get("due_ms"):
        fields["due"] = b"%d" % due_ms
        if new.get("at"):
            fields["due_at"] = b"1"
    if key := new.get("key"):
        fields["flow_key"] = raw(key)
    if attributes := new.get("attributes"):
        fields["attributes"] = codec.canonical(attributes)
    if sent := new.get("sent"):
        fields["sent"] = sent
    return fields


def announcement(
    store: RedisStateStore, *updates: StateUpdate | NewUpdate, run: int | None = None
) -> Announcement:
    """Write updates of one session for the script that moves their task, and that it is a run's."""
    updates_of = store.updates
    rows = [updates_of.write(update, run=run) for update in updates]
    log = updates_of.keys(updates[0].session_id)
    return Announcement(log, updates_of.bounds.max_rows, updates_of.bounds.ttl_ms, rows)


def raise_refused(reply: Reply, state: TaskState, *, run: Replay | None, wanted: str) -> None:
    """Errors: LeaseLost, JournalRewound, InvalidTransition, if that is what a script replied."""
    if run is not None and reply.word in (ReplyCode.LOST, ReplyCode.REWOUND):
        run.raise_refused(reply, what=f"task {state.task_id!r}")
    if reply.word is ReplyCode.DENIED:
        raise InvalidTransition(state.task_id, current=reply.text(0), wanted=wanted)
    if reply.word is ReplyCode.MISSING:
        raise InvalidTransition(state.task_id, current="missing", wanted=wanted)


def status_update(state: TaskState, status: TaskStatus, **details: Any) -> NewUpdate:
    """Make the update of a task's new status."""
    return NewUpdate(
        session_id=state.session_id,
        task_id=state.task_id,
        trace_id=state.trace_id,
        update_type=UpdateType.STATUS_CHANGE,
        content={"status": status.value, **details},
    )


def spawned_update(parent: TaskState, child_id: str, handler: str) -> NewUpdate:
    """Make the update by which a task names a child that it spawns."""
    return NewUpdate(
        session_id=parent.session_id,
        task_id=parent.task_id,
        trace_id=parent.trace_id,
        update_type=UpdateType.NOTIFICATION,
        content={"notice": "child", "task_id": child_id, "handler": handler},
    )
