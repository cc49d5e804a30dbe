"""Tasks and rows as the tables have them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from redis_state.archive.encoding import as_bytes, json_of, moment_of_ms, moment_of_us
from redis_state.archive.model import ArchivedRecord, ArchivedRow, ArchivedTask, RecordKind, row_id
from redis_state.postgres.text import id_of, id_text, long_ids, plain_text, text_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS, _US = timedelta(milliseconds=1), timedelta(microseconds=1)

TASK_COLUMNS = (
    *("namespace", "session_id", "task_id", "born", "version", "write", "status", "handler"),
    *("queue", "trace_id", "parent", "created_at", "ended_at", "attributes", "record", "journal"),
    "long_ids",
)
RECORD_COLUMNS = (
    *("namespace", "kind", "owner", "born", "n", "key"),
    *("version", "write", "at", "data", "long_ids"),
)
ROW_COLUMNS = (*("namespace", "session_id", "at", "n", "task_id", "row_id", "data", "long_ids"),)


def task_values(namespace: str, task: ArchivedTask) -> list[Any]:
    """Write a task as the values of `TASK_COLUMNS`; the namespace is written already."""

    def text(value: str | None) -> str | None:
        return None if value is None else id_text(value)

    return [
        namespace,
        id_text(task.session_id),
        id_text(task.task_id),
        moment_of_us(task.born_us),
        task.version,
        plain_text(task.write),
        task.status.value,
        id_text(task.handler),
        text(task.queue),
        text(task.trace_id),
        text(task.parent),
        task.created_at if task.created_at.tzinfo else task.created_at.replace(tzinfo=UTC),
        task.ended_at if task.ended_at.tzinfo else task.ended_at.replace(tzinfo=UTC),
        json.dumps(task.attributes),
        json_of(task.record),
        json_of(task.journal),
        long_ids(task.session_id, task.task_id),
    ]


def task_of(row: Any) -> ArchivedTask:
    """Read a task of session, task, long ids, record and journal. Errors: ValueError, KeyError."""
    session, task, whole, record, journal = row
    return ArchivedTask.stored(id_of(session, whole, 0), id_of(task, whole, 1), record, journal)


def row_values(namespace: str, session_id: str, row: ArchivedRow) -> list[Any]:
    """Write a row as the values of `ROW_COLUMNS`; the namespace is written already."""
    return [
        namespace,
        id_text(session_id),
        moment_of_ms(row.ms),
        row.n,
        id_text(row.topic or ""),
        plain_text(row_id(row)),
        row.data,
        long_ids(session_id, row.topic or ""),
    ]


def row_of(found: Any) -> ArchivedRow:
    """Read a row of its time, number, task, id, data and long ids."""
    at, n, task, written, data, whole = found
    topic = id_of(task, whole, 1)
    return ArchivedRow(
        n,
        ms_of(at),
        as_bytes(id_of(written, None, 0)),
        topic or None,
        bytes(data),
    )


def record_values(namespace: str, record: ArchivedRecord) -> list[Any]:
    """Write a record as the values of `RECORD_COLUMNS`; the namespace is written already."""
    return [
        namespace,
        record.kind.value,
        id_text(record.owner),
        moment_of_us(record.born_us),
        record.n,
        id_text(record.key),
        record.version,
        plain_text(record.write),
        moment_of_us(record.at_us),
        record.data,
        long_ids(record.owner, record.key),
    ]


def record_of(kind: RecordKind, found: Any) -> ArchivedRecord:
    """Read a record of the columns that `statements.RECORDS` names."""
    owner, key, born, n, version, write, at, data, whole = found
    return ArchivedRecord(
        kind,
        id_of(owner, whole, 0),
        id_of(key, whole, 1),
        born_us=us_of(born),
        at_us=us_of(at),
        data=bytes(data),
        n=n,
        version=version,
        write=text_of(write),
    )


def us_of(at: datetime) -> int:
    """Count a moment in microseconds."""
    return (at - _EPOCH) // _US


def ms_of(at: datetime) -> int:
    """Count a moment in milliseconds."""
    return (at - _EPOCH) // _MS
