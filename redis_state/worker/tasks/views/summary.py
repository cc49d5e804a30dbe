"""Tasks as listings show them, read from their records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from redis_state.errors import CorruptState
from redis_state.models import TaskStatus
from redis_state.models.attributes import AttributeValue
from redis_state.primitives.record import Stored
from redis_state.serialization.payloads import Payloads
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.job_parts import JOB, job_of
from redis_state.stores.sessions.task_fields import read_updated
from redis_state.stores.task_index import attributes_of
from redis_state.worker.tasks.views.links import TaskLink, link_of


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """A task as it stood when it was found, without its input and its result.

    ``worker`` is the last that ran it. One that a host saved has no ``handler``: only the archive
    lists it. ``retries`` counts how often it was reopened. One that is
    ``archived`` is not in Redis any more.
    """

    session_id: str
    task_id: str
    status: TaskStatus
    handler: str | None
    attributes: Mapping[str, AttributeValue]
    created_at: datetime
    updated_at: datetime
    description: str | None
    error: str | None
    priority: int
    queue: str | None
    worker: str | None
    attempts: int
    crashes: int
    retries: int
    parent: str | None
    rerun_of: TaskLink | None
    forked_from: TaskLink | None
    archived: bool = False


def summary_of(
    session_id: str,
    task_id: str,
    status: TaskStatus,
    handler: str | None,
    record: Stored,
    *,
    payloads: Payloads,
) -> TaskSummary:
    """Describe a task by its record. Errors: ValueError, KeyError and their like."""
    fields = record.fields
    document = payloads.as_object(fields["document"])

    def number(name: str) -> int:
        return int(fields.get(name) or 0)

    def text(name: str) -> str | None:
        return text_of(fields.get(name, b"")) or None

    return TaskSummary(
        session_id=session_id,
        task_id=task_id,
        status=status,
        handler=handler,
        attributes=attributes_of(fields),
        created_at=datetime.fromisoformat(document["created_at"]),
        updated_at=read_updated(fields),
        description=document.get("description"),
        error=payloads.decode(fields.get("error", b"null")),
        priority=number("priority"),
        queue=text("queue"),
        worker=text("worker"),
        attempts=number("attempts"),
        crashes=number("crashes"),
        retries=number("retries"),
        parent=text("parent"),
        rerun_of=link_of(fields, "rerun_of"),
        forked_from=link_of(fields, "forked_from"),
    )


async def read_summary(
    store: RedisStateStore, session_id: str, task_id: str
) -> tuple[int | None, TaskSummary | None]:
    """Return when a task was first saved, and the task as its record has it.

    No time for one that is not there; no summary for one that is unreadable.
    """
    record = await store.tasks.load_fields(session_id, task_id)
    if record is None:
        return None, None
    payloads = store.base.payloads
    try:
        status = TaskStatus(record.fields["status"].decode())
        handler = None
        if JOB in record.fields:
            handler = str(payloads.as_object(job_of(record.fields))["handler"])
        made = summary_of(session_id, task_id, status, handler, record, payloads=payloads)
    except (ValueError, KeyError, TypeError, CorruptState):
        return record.order, None
    return record.order, made


def text_of(fact: bytes) -> str:
    """Return the text of a field, also one that is not valid UTF-8."""
    return fact.decode("utf-8", "surrogatepass")
