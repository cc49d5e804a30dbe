"""What a write changes: files that are added, and files that are written again without something.

Data files are written first. Then one entry of the log makes them count, and those that they
replace count no more. If another process was first, what is to be changed is worked out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis_state.archive.model import ArchiveBatch, ArchivedTask, SessionRows, plain_text
from redis_state.archive.parquet.columns import (
    BUCKETS,
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
    row_values,
    table_of,
    task_values,
)
from redis_state.archive.parquet.log import NEW, DataFile, FileLog
from redis_state.archive.parquet.reading import FileReader, Place, Task

_NONE = (0, 0)


@dataclass(slots=True)
class FileEdit:
    """What becomes of a file's rows: some are left out, and some are lost from now on."""

    file: DataFile
    tasks: set[Task] = field(default_factory=set[Task])
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
        """Have something written that is new."""
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
    return changes


def without(reader: FileReader, session: str) -> FileChanges:
    """Work out what has nothing of a session, whose id is as a column has it."""
    changes = FileChanges()
    for kind in (TASKS, UPDATES):
        for file in reader.files.having(kind, digest_of(session)):
            if file.bucket == NEW or reader.keys(file, session, ["session_id"]).num_rows:
                changes.edit(file).without.add(session)
    return changes


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
    for task in sorted(tasks, key=lambda each: each.version):
        latest.setdefault(key_of(task), task)
        if latest[key_of(task)].version < task.version:
            latest[key_of(task)] = task
    there = reader.stamps(latest)
    for key, task in sorted(latest.items(), key=lambda each: each[0]):
        if key in there:
            version, write, file = there[key]
            replaced = replaces.get(task.key)
            named = replaced is not None and plain_text(replaced) == f"{version} {write}"
            if version >= task.version and not named:
                continue
            if (version, write) == (task.version, plain_text(task.write)) and not named:
                continue
            changes.edit(file).tasks.add(key)
        changes.add(TASKS, month_of_us(task.born_us), task_values(task), (key, task.stamp))


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
    sessions = table["session_id"].to_pylist()
    if edit.file.kind == TASKS:
        born = table["born"].cast(pa.int64()).to_pylist()
        keys = zip(sessions, table["task_id"].to_pylist(), born, strict=True)
        keep = [key not in edit.tasks for key in keys]
    else:
        for at, (session, place) in enumerate(zip(sessions, places(table), strict=True)):
            keep[at] = place not in edit.rows.get(session, ())
            if session in edit.lost_behind and place > edit.lost_behind[session]:
                lost[at] = True
        column = table.schema.get_field_index("lost")
        table = table.set_column(column, table.schema.field(column), pa.array(lost, pa.bool_()))
    if edit.without:
        keep = [
            kept and session not in edit.without
            for kept, session in zip(keep, sessions, strict=True)
        ]
    return table.filter(pa.array(keep, pa.bool_()))


def split(table: Any) -> dict[str, Any]:
    """Split a table by the bucket of each session."""
    sessions = table["session_id"].combine_chunks().dictionary_encode()
    of_session = [digest_of(each)[0] for each in sessions.dictionary.to_pylist()]
    buckets = pc.take(pa.array(of_session, pa.string()), sessions.indices)
    parts = {bucket: table.filter(pc.equal(buckets, bucket)) for bucket in BUCKETS}
    return {bucket: part for bucket, part in parts.items() if part.num_rows}
