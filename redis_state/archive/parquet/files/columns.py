"""Tasks and rows as the files have them: one column for each fact, of types that all tools know."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from io import BytesIO
from typing import Any

from redis_state.archive.encoding import as_bytes, json_of, moment_of_ms, moment_of_us
from redis_state.archive.model import ArchivedRecord, ArchivedRow, ArchivedTask, RecordKind, row_id
from redis_state.archive.parquet.files.data_files import NEW, DataFile
from redis_state.archive.parquet.files.owners import OWNERS_ENTRY, written_owners
from redis_state.postgres.text import plain_text, text_of

# Its types are of little use here: most calls are made when it is imported.
pa: Any = import_module("pyarrow")
pc: Any = import_module("pyarrow.compute")
pq: Any = import_module("pyarrow.parquet")

TASKS, UPDATES, RECORDS, SESSIONS = "tasks", "updates", "records", "sessions"
KINDS = (TASKS, UPDATES, RECORDS, SESSIONS)
# The key of a task, as the columns have it: session, task, birth.
Task = tuple[str, str, int]
# Of the files that have the last places of sessions: these are of no month.
ALL_MONTHS = "all"
# The column by which a kind's files are sorted, and found.
OWNERS: Mapping[str, str] = {
    TASKS: "session_id",
    UPDATES: "session_id",
    RECORDS: "owner",
    SESSIONS: "session_id",
}
# Digests begin with one of them: a file of a bucket has its sessions.
BUCKETS = "0123456789abcdef"
# A row group has so many rows at most, and some 16 MiB: a reader has all of one in memory.
_GROUP_BYTES = 16 << 20
_GROUPS = {TASKS: 1_000, UPDATES: 5_000, RECORDS: 1_000, SESSIONS: 5_000}

_US, _MS = pa.timestamp("us", tz="UTC"), pa.timestamp("ms", tz="UTC")
SCHEMAS: Mapping[str, Any] = {
    TASKS: pa.schema(
        [
            pa.field("session_id", pa.string(), nullable=False),
            pa.field("task_id", pa.string(), nullable=False),
            pa.field("born", _US, nullable=False),
            pa.field("version", pa.int64(), nullable=False),
            pa.field("write", pa.string(), nullable=False),
            pa.field("status", pa.string(), nullable=False),
            pa.field("handler", pa.string(), nullable=False),
            pa.field("queue", pa.string()),
            pa.field("trace_id", pa.string()),
            pa.field("parent", pa.string()),
            pa.field("created_at", _US, nullable=False),
            pa.field("ended_at", _US, nullable=False),
            pa.field("attributes", pa.string(), nullable=False),
            pa.field("record", pa.string(), nullable=False),
            pa.field("journal", pa.string(), nullable=False),
            pa.field("archived_at", _US, nullable=False),
        ]
    ),
    UPDATES: pa.schema(
        [
            pa.field("session_id", pa.string(), nullable=False),
            pa.field("at", _MS, nullable=False),
            pa.field("n", pa.int64(), nullable=False),
            pa.field("task_id", pa.string(), nullable=False),
            pa.field("row_id", pa.string(), nullable=False),
            pa.field("data", pa.binary(), nullable=False),
            pa.field("lost", pa.bool_(), nullable=False),
        ]
    ),
    RECORDS: pa.schema(
        [
            pa.field("owner", pa.string(), nullable=False),
            pa.field("kind", pa.string(), nullable=False),
            pa.field("born", _US, nullable=False),
            pa.field("n", pa.int64(), nullable=False),
            pa.field("key", pa.string(), nullable=False),
            pa.field("version", pa.int64(), nullable=False),
            pa.field("write", pa.string(), nullable=False),
            pa.field("at", _US, nullable=False),
            pa.field("data", pa.binary(), nullable=False),
            pa.field("archived_at", _US, nullable=False),
        ]
    ),
    SESSIONS: pa.schema(
        [
            pa.field("session_id", pa.string(), nullable=False),
            pa.field("at", _MS, nullable=False),
            pa.field("n", pa.int64(), nullable=False),
        ]
    ),
}
_ORDERS = {
    TASKS: [("session_id", "ascending"), ("task_id", "ascending"), ("born", "ascending")],
    UPDATES: [("session_id", "ascending"), ("at", "ascending"), ("n", "ascending")],
    RECORDS: [(name, "ascending") for name in ("owner", "kind", "born", "n", "key")],
    SESSIONS: [("session_id", "ascending"), ("at", "ascending"), ("n", "ascending")],
}
# The time by which a file is bounded.
_TIMES = {TASKS: "born", UPDATES: "at", RECORDS: "born", SESSIONS: "at"}


def digest_of(session: str) -> str:
    """Return the digest by which a session is found. Its id is written as a column has it."""
    return hashlib.sha256(session.encode()).hexdigest()[:32]


def folder_of(namespace: str) -> str:
    """Return a namespace's folder: its name, or its digest if it is no plain name."""
    plain = namespace.replace("-", "").replace("_", "")
    if plain.isascii() and plain.isalnum() and len(namespace) <= 100:  # noqa: PLR2004
        return f"namespace={namespace}"
    return f"namespace=~{hashlib.sha256(plain_text(namespace).encode()).hexdigest()}"


def month_of_us(us: int) -> str:
    """Return the month of a moment in microseconds."""
    return f"{moment_of_us(us):%Y-%m}"


def month_of_ms(ms: int) -> str:
    """Return the month of a moment in milliseconds."""
    return f"{moment_of_ms(ms):%Y-%m}"


def task_values(task: ArchivedTask) -> list[Any]:
    """Write a task as the values of its columns."""

    def text(value: str | None) -> str | None:
        return None if value is None else plain_text(value)

    return [
        plain_text(task.session_id),
        plain_text(task.task_id),
        task.born_us,
        task.version,
        plain_text(task.write),
        task.status.value,
        plain_text(task.handler),
        text(task.queue),
        text(task.trace_id),
        text(task.parent),
        _utc(task.created_at),
        _utc(task.ended_at),
        json.dumps(task.attributes),
        json_of(task.record),
        json_of(task.journal),
        datetime.now(UTC),
    ]


def row_values(session_id: str, row: ArchivedRow) -> list[Any]:
    """Write a row as the values of its columns."""
    return [
        plain_text(session_id),
        row.ms,
        row.n,
        plain_text(row.topic or ""),
        plain_text(row_id(row)),
        row.data,
        False,
    ]


def record_values(record: ArchivedRecord) -> list[Any]:
    """Write a record as the values of its columns."""
    return [
        plain_text(record.owner),
        record.kind.value,
        record.born_us,
        record.n,
        plain_text(record.key),
        record.version,
        plain_text(record.write),
        record.at_us,
        record.data,
        datetime.now(UTC),
    ]


def records_of(table: Any) -> list[ArchivedRecord]:
    """Read records."""
    born, at = (table[name].cast(pa.int64()).to_pylist() for name in ("born", "at"))
    columns = ["kind", "owner", "key", "n", "version", "write", "data"]
    return [
        ArchivedRecord(
            RecordKind(each["kind"]),
            text_of(each["owner"]),
            text_of(each["key"]),
            born_us=born_us,
            at_us=at_us,
            data=each["data"],
            n=each["n"],
            version=each["version"],
            write=text_of(each["write"]),
        )
        for each, born_us, at_us in zip(table.select(columns).to_pylist(), born, at, strict=True)
    ]


def table_of(kind: str, values: Sequence[Sequence[Any]]) -> Any:
    """Make a table of values, a list for each row."""
    schema = SCHEMAS[kind]
    columns = zip(*values, strict=True) if values else [()] * len(schema)
    arrays = [
        pa.array(list(column), type=each.type) for column, each in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def tasks_of(table: Any) -> list[ArchivedTask]:
    """Read tasks. Errors: ValueError, KeyError."""
    columns = table.select(["session_id", "task_id", "record", "journal"]).to_pylist()
    return [
        ArchivedTask.stored(
            text_of(each["session_id"]), text_of(each["task_id"]), each["record"], each["journal"]
        )
        for each in columns
    ]


def rows_of(table: Any) -> list[ArchivedRow]:
    """Read rows."""
    return [
        ArchivedRow(
            n,
            ms,
            as_bytes(text_of(written)),
            text_of(topic) or None,
            data,
        )
        for n, ms, written, topic, data in zip(
            table["n"].to_pylist(),
            table["at"].cast(pa.int64()).to_pylist(),
            table["row_id"].to_pylist(),
            table["task_id"].to_pylist(),
            table["data"].to_pylist(),
            strict=True,
        )
    ]


def encode(table: Any, kind: str) -> bytes:
    """Write a table as a file, in the order of its sessions. Its footer has their filter."""
    out = BytesIO()
    fitting = table.num_rows * _GROUP_BYTES // max(table.nbytes, 1)
    owners = pc.unique(table[OWNERS[kind]]).to_pylist()
    with pq.ParquetWriter(out, table.schema, compression="zstd", write_page_index=True) as writer:
        size = max(1, min(_GROUPS[kind], fitting))
        writer.write_table(table.sort_by(_ORDERS[kind]), row_group_size=size)
        writer.add_key_value_metadata({OWNERS_ENTRY: written_owners(owners)})
    return out.getvalue()


def describe(table: Any, kind: str, month: str, bucket: str, *, size: int) -> DataFile:
    """Describe a table that is to be a file. Its name is one that no other file ever had."""
    least, most = _bounds(table, _TIMES[kind])
    return DataFile(
        name=f"{kind}/month={month}/bucket={bucket}/{secrets.token_hex(16)}.parquet",
        kind=kind,
        month=month,
        bucket=bucket,
        rows=table.num_rows,
        bytes=size,
        least=least,
        most=most,
        ended=_bounds(table, "ended_at") if kind == TASKS else None,
        created=_bounds(table, "created_at") if kind == TASKS else None,
        sessions=_sessions(table, kind) if bucket == NEW else None,
        classes=classes_in(table) if kind == RECORDS else None,
    )


def classes_in(table: Any) -> dict[str, tuple[int, int, int]]:
    """Count the records of each class, and bound the times of their states, in microseconds."""
    times = pa.table({"kind": table["kind"], "at": table["at"].cast(pa.int64())})
    found = times.group_by("kind").aggregate([("at", "count"), ("at", "min"), ("at", "max")])
    names = ("at_count", "at_min", "at_max")
    return {each["kind"]: tuple(each[name] for name in names) for each in found.to_pylist()}


def _sessions(table: Any, kind: str) -> dict[str, tuple[int, int] | None]:
    found: dict[str, tuple[int, int] | None] = {
        digest_of(each): None for each in pc.unique(table[OWNERS[kind]]).to_pylist()
    }
    if kind in (UPDATES, SESSIONS):
        kept = table.filter(pc.invert(table["lost"])) if kind == UPDATES else table
        last: dict[str, tuple[int, int]] = {}
        for session, place in zip(kept["session_id"].to_pylist(), places(kept), strict=True):
            last[session] = max(last.get(session, place), place)
        found |= {digest_of(session): (n, ms) for session, (ms, n) in last.items()}
    return found


def last_of_each(table: Any) -> Any:
    """Leave of each session the last place alone."""
    last: dict[str, tuple[int, int]] = {}
    for session, place in zip(table["session_id"].to_pylist(), places(table), strict=True):
        last[session] = max(last.get(session, place), place)
    return table_of(SESSIONS, [[session, ms, n] for session, (ms, n) in last.items()])


def places(table: Any) -> Iterable[tuple[int, int]]:
    """Return time and number of each row."""
    at = table["at"].cast(pa.int64()).to_pylist()
    return zip(at, table["n"].to_pylist(), strict=True)


def _bounds(table: Any, column: str) -> tuple[int, int]:
    found = pc.min_max(table[column].cast(pa.int64()))
    return found["min"].as_py(), found["max"].as_py()


def _utc(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)
