"""What a write changes: files that are added, and files that are written again without something.

Data files are written first. Then one entry of the log makes them count, and those that they
replace count no more. If another process was first, what is to be changed is worked out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis_state.archive.model import (
    ArchiveBatch,
    ArchivedRecord,
    ArchivedTask,
    RecordKind,
    SessionRows,
    plain_text,
)
from redis_state.archive.parquet.columns import (
    BUCKETS,
    KINDS,
    OWNERS,
    RECORDS,
    TASKS,
    UPDATES,
    describe,
    digest_of,
    encode,
    month_of_ms,
    month_of_us,
    pa,
    pc,
    places,
    record_values,
    row_values,
    table_of,
    task_values,
)
from redis_state.archive.parquet.log import NEW, DataFile, FileLog
from redis_state.archive.parquet.reading import FileReader, Place, Record, Task, record_keys

_NONE = (0, 0)
# The records whose owner is a session, and which go with it.
_OF_SESSION = (RecordKind.TRAJECTORY.value, RecordKind.ARTIFACT.value)


@dataclass(slots=True)
class FileEdit:
    """What becomes of a file's rows: some are left out, and some are lost from now on."""

    file: DataFile
    tasks: set[Task] = field(default_factory=set[Task])
    records: set[Record] = field(default_factory=set[Record])
    rows: dict[str, set[Place]] = field(default_factory=dict[str, set[Place]])
    lost_behind: dict[str, Place] = field(default_factory=dict[str, Place])
    without: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class FileChanges:
    """What is to be written: tasks and rows that are new, by kind and month, and edits of files."""

    new: dict[tuple[str, str], list[list[Any]]] = field(
        default_factory=dict[tuple[str, str], list[list[Any]]]
    )
    edits: dict[str, FileEdit] = field(default_factory=dict[str, FileEdit])
    keys: list[object] = field(default_factory=list[object])

    def __bool__(self) -> bool:
        return bool(self.new or self.edits)

    def edit(self, file: DataFile) -> FileEdit:
        """Return the edit of a file."""
        return self.edits.setdefault(file.name, FileEdit(file))

    def add(self, kind: str, month: str, values: list[Any], key: object) -> None:
        """Add a row that is new."""
        self.new.setdefault((kind, month), []).append(values)
        self.keys.append(key)


def changes_of(
    reader: FileReader, batch: ArchiveBatch, replaces: Mapping[Task, str]
) -> FileChanges:
    """Work out what a batch changes, by what is there."""
    changes = FileChanges()
    for rows in batch.sessions:
        _change_rows(reader, rows, changes)
    _change_tasks(reader, batch.tasks, replaces, changes)
    _change_records(reader, batch.records, changes)
    return changes


def without(reader: FileReader, session: str) -> FileChanges:
    """Work out what has nothing of a session, whose id is as a column has it."""
    changes = FileChanges()
    for kind in KINDS:
        for file in reader.files.having(kind, digest_of(session)):
            if reader.keys(file, session, [OWNERS[kind]]).num_rows:
                changes.edit(file).without.add(session)
    return changes


def record_key(record: ArchivedRecord) -> Record:
    """Return a record's key as the columns have it."""
    owner, key = plain_text(record.owner), plain_text(record.key)
    return record.kind.value, owner, record.born_us, record.n, key


def key_of(task: ArchivedTask) -> Task:
    """Return a task's key as the columns have it."""
    return plain_text(task.session_id), plain_text(task.task_id), task.born_us


def _change_tasks(
    reader: FileReader,
    tasks: Sequence[ArchivedTask],
    replaces: Mapping[Task, str],
    changes: FileChanges,
) -> None:
    latest: dict[Task, ArchivedTask] = {}
    for task in tasks:
        key = key_of(task)
        if key not in latest or latest[key].version < task.version:
            latest[key] = task
    there = reader.stamps(latest)
    for key, task in sorted(latest.items(), key=lambda each: each[0]):
        if key in there:
            version, write, file = there[key]
            if version >= task.version and not _names(replaces.get(task.key), version, write):
                continue
            changes.edit(file).tasks.add(key)
        changes.add(TASKS, month_of_us(task.born_us), task_values(task), (key, task.stamp))


def _names(stamp: str | None, version: int, write: str) -> bool:
    return stamp is not None and plain_text(stamp) == f"{version} {write}"


def _change_records(
    reader: FileReader, records: Sequence[ArchivedRecord], changes: FileChanges
) -> None:
    latest: dict[Record, ArchivedRecord] = {}
    for record in records:
        key = record_key(record)
        if key not in latest or latest[key].version < record.version:
            latest[key] = record
    there = reader.record_stamps(latest)
    for key, record in sorted(latest.items(), key=lambda each: each[0]):
        if key in there:
            version, write, file = there[key]
            if version >= record.version and not _names(record.replaces, version, write):
                continue
            changes.edit(file).records.add(key)
        values = record_values(record)
        changes.add(RECORDS, month_of_us(record.born_us), values, (key, record.stamp))


def _change_rows(reader: FileReader, rows: SessionRows, changes: FileChanges) -> None:
    session = plain_text(rows.session_id)
    last = reader.last(session)
    if (_NONE if last is None else (last[1], last[0])) != (rows.after or _NONE):
        return
    cut = None if rows.lost_behind is None else (rows.lost_behind[1], rows.lost_behind[0])
    first_ms = min([row.ms for row in rows.rows] + ([cut[0]] if cut else []), default=0)
    there = reader.places_from(session, first_ms)
    if cut is not None:
        for place, (file, lost) in there.items():
            if place > cut and not lost:
                changes.edit(file).lost_behind[session] = cut
    for row in rows.rows:
        if row.place in there:
            file, lost = there[row.place]
            if not lost and (cut is None or row.place <= cut):
                continue
            # The server has it again: a restored backup was undone.
            changes.edit(file).rows.setdefault(session, set()).add(row.place)
        values = row_values(rows.session_id, row)
        changes.add(UPDATES, month_of_ms(row.ms), values, (session, row.place))


def write_files(log: FileLog, reader: FileReader, changes: FileChanges) -> list[DataFile]:
    """Write the files of changes; return them. They do not count yet."""
    made = [
        put(log, table_of(kind, values), kind, month, NEW)
        for (kind, month), values in sorted(changes.new.items())
    ]
    for edit in changes.edits.values():
        file, table = edit.file, edited(reader.table(edit.file), edit)
        if table.num_rows:
            made.append(put(log, table, file.kind, file.month, file.bucket))
    return made


def put(log: FileLog, table: Any, kind: str, month: str, bucket: str) -> DataFile:
    """Write a table as a file."""
    body = encode(table, kind)
    file = describe(table, kind, month, bucket, size=len(body))
    log.objects.create(f"{log.folder}/{file.name}", body)
    return file


def delete_files(log: FileLog, names: Iterable[str]) -> None:
    """Delete files that count no more."""
    log.objects.delete(f"{log.folder}/{name}" for name in names)


def edited(table: Any, edit: FileEdit) -> Any:
    """Return a file's table as an edit makes it."""
    keep = [True] * table.num_rows
    lost = table["lost"].to_pylist() if edit.file.kind == UPDATES else []
    owners = table[OWNERS[edit.file.kind]].to_pylist()
    if edit.file.kind == TASKS:
        born = table["born"].cast(pa.int64()).to_pylist()
        keys = zip(owners, table["task_id"].to_pylist(), born, strict=True)
        keep = [key not in edit.tasks for key in keys]
    elif edit.file.kind == RECORDS:
        known = record_keys(table)
        keep = [
            key not in edit.records and not (key[1] in edit.without and key[0] in _OF_SESSION)
            for key in known
        ]
        return table.filter(pa.array(keep, pa.bool_()))
    else:
        for at, (session, place) in enumerate(zip(owners, places(table), strict=True)):
            keep[at] = place not in edit.rows.get(session, ())
            if session in edit.lost_behind and place > edit.lost_behind[session]:
                lost[at] = True
        column = table.schema.get_field_index("lost")
        table = table.set_column(column, table.schema.field(column), pa.array(lost, pa.bool_()))
    if edit.without:
        keep = [
            kept and session not in edit.without for kept, session in zip(keep, owners, strict=True)
        ]
    return table.filter(pa.array(keep, pa.bool_()))


def split(table: Any, kind: str) -> dict[str, Any]:
    """Split a table by the bucket of each owner."""
    owners = table[OWNERS[kind]].combine_chunks().dictionary_encode()
    of_owner = [digest_of(each)[0] for each in owners.dictionary.to_pylist()]
    buckets = pc.take(pa.array(of_owner, pa.string()), owners.indices)
    parts = {bucket: table.filter(pc.equal(buckets, bucket)) for bucket in BUCKETS}
    return {bucket: part for bucket, part in parts.items() if part.num_rows}
