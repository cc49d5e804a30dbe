"""What a write changes: files that are added, and files that are written again without something.

Data files are written first. Then one entry of the log makes them count, and those that they
replace count no more. If another process was first, what is to be changed is worked out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redis_state.archive.erased import OF_SESSIONS, scopes_in, session_scope, without_erased
from redis_state.archive.model import ArchiveBatch, ArchivedRecord, ArchivedTask, SessionRows
from redis_state.archive.parquet.files.columns import (
    ALL_MONTHS,
    BUCKETS,
    KINDS,
    OWNERS,
    RECORDS,
    SESSIONS,
    TASKS,
    UPDATES,
    Task,
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
from redis_state.archive.parquet.files.data_files import NEW, DataFile
from redis_state.archive.parquet.files.log import FileLog, LogChange
from redis_state.archive.parquet.files.reading import FileReader, Place, Record, record_keys
from redis_state.postgres.text import plain_text

K = TypeVar("K", Task, Record)
V = TypeVar("V", ArchivedTask, ArchivedRecord)

_NONE = (0, 0)
# The records that go with their session.
_OF_SESSION = frozenset(kind.value for kind in OF_SESSIONS)


@dataclass(slots=True)
class FileEdit:
    """What becomes of a file's rows: some are left out, and some are lost from now on."""

    file: DataFile
    tasks: set[Task] = field(default_factory=set[Task])
    records: set[Record] = field(default_factory=set[Record])
    rows: dict[str, set[Place]] = field(default_factory=dict[str, set[Place]])
    lost_behind: dict[str, Place] = field(default_factory=dict[str, Place])
    without: set[str] = field(default_factory=set[str])
    # What ended, or was appended, before that moment, in us.
    expired_us: int = 0
    # The same of records, by their class.
    expired: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(slots=True)
class FileChanges:
    """What is to be written: what is new, by kind and month, edits of files, and files that go.

    ``erased`` and ``kept_from`` are as in `LogChange`.
    """

    new: dict[tuple[str, str], list[list[Any]]] = field(
        default_factory=dict[tuple[str, str], list[list[Any]]]
    )
    edits: dict[str, FileEdit] = field(default_factory=dict[str, FileEdit])
    keys: list[object] = field(default_factory=list[object])
    gone: dict[str, DataFile] = field(default_factory=dict[str, DataFile])
    erased: dict[str, int] = field(default_factory=dict[str, int])
    kept_from: dict[str, int] = field(default_factory=dict[str, int])

    def __bool__(self) -> bool:
        return bool(self.new or self.edits or self.gone or self.erased or self.kept_from)

    def entry(self, made: Sequence[DataFile]) -> LogChange:
        """Return what the log is to say, once these files are written."""
        return LogChange(made, [*self.edits, *self.gone], self.erased, self.kept_from)

    def edit(self, file: DataFile) -> FileEdit:
        """Return the edit of a file."""
        return self.edits.setdefault(file.name, FileEdit(file))

    def add(self, kind: str, month: str, values: list[Any], key: object) -> None:
        """Add a row that is new."""
        self.new.setdefault((kind, month), []).append(values)
        self.keys.append(key)


def changes_of(reader: FileReader, batch: ArchiveBatch) -> FileChanges:
    """Work out what a batch changes, by what is there. What was erased is left out."""
    changes = FileChanges()
    batch = without_erased(batch, erased_in(reader, scopes_in(batch)))
    for rows in batch.sessions:
        _change_rows(reader, rows, changes)
    _change_tasks(reader, batch.tasks, changes)
    _change_records(reader, batch.records, changes)
    return changes


def erased_in(reader: FileReader, scopes: Iterable[str]) -> dict[str, int]:
    """Return up to which time scopes were erased, in us, if any were."""
    known = reader.files.erased
    named = {each: digest_of(plain_text(each)) for each in scopes} if known else {}
    return {each: known[digest] for each, digest in named.items() if digest in known}


def without(reader: FileReader, session: str, before_us: int | None = None) -> FileChanges:
    """Work out what has nothing of a session, whose id is as a column has it."""
    changes = FileChanges()
    digest, scope = digest_of(session), digest_of(session_scope(session))
    if before_us is not None and before_us > reader.files.erased.get(scope, -1):
        changes.erased[scope] = before_us
    for kind in KINDS:
        for file in reader.files.having(kind, digest):
            columns = [OWNERS[kind], *(["kind"] if kind == RECORDS else [])]
            found = reader.keys(file, session, columns)
            if kind == RECORDS:
                its = not _OF_SESSION.isdisjoint(found["kind"].to_pylist())
            else:
                its = found.num_rows > 0
            if its:
                changes.edit(file).without.add(session)
    return changes


def without_records(
    reader: FileReader, kind: str, scopes: Mapping[str, str], before_us: int
) -> FileChanges:
    """Work out what has no record of a kind of any owner, and a mark under each one's scope."""
    changes = FileChanges()
    for owner, scope in scopes.items():
        digest = digest_of(scope)
        if before_us > reader.files.erased.get(digest, -1):
            changes.erased[digest] = before_us
        for file in reader.files.having(RECORDS, digest_of(owner)):
            its = {key for key in record_keys(reader.keys(file, owner)) if key[0] == kind}
            if its:
                changes.edit(file).records |= its
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
    changes: FileChanges,
) -> None:
    latest = _latest((key_of(task), task) for task in tasks)
    for key, task, file in _newer(latest, reader.stamps(latest)):
        if file is not None:
            changes.edit(file).tasks.add(key)
        changes.add(TASKS, month_of_us(task.born_us), task_values(task), (key, task.stamp))


def _change_records(
    reader: FileReader, records: Sequence[ArchivedRecord], changes: FileChanges
) -> None:
    latest = _latest((record_key(record), record) for record in records)
    for key, record, file in _newer(latest, reader.record_stamps(latest)):
        if file is not None:
            changes.edit(file).records.add(key)
        values = record_values(record)
        changes.add(RECORDS, month_of_us(record.born_us), values, (key, record.stamp))


def _latest(given: Iterable[tuple[K, V]]) -> dict[K, V]:
    """Return the last version of each, as a batch may have several; of the same one the first."""
    latest: dict[K, V] = {}
    for key, one in given:
        if key not in latest or latest[key].version < one.version:
            latest[key] = one
    return latest


def _newer(
    latest: Mapping[K, V], there: Mapping[K, tuple[int, str, DataFile]]
) -> Iterator[tuple[K, V, DataFile | None]]:
    """Yield what is to be written, in the order of the keys, each with the file that it replaces.

    What the archive has in this version or a later one stays, unless it is named as replaced.
    """
    for key, one in sorted(latest.items(), key=lambda each: each[0]):
        version, write, file = there.get(key, (-1, "", None))
        replaced = one.replaces is not None and plain_text(one.replaces) == f"{version} {write}"
        if file is None or version < one.version or replaced:
            yield key, one, file


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
        _cut_ends(reader, session, cut, changes)
    for row in rows.rows:
        if row.place in there:
            file, lost = there[row.place]
            if not lost and (cut is None or row.place <= cut):
                continue
            # The server has it again: a restored backup was undone.
            changes.edit(file).rows.setdefault(session, set()).add(row.place)
        values = row_values(rows.session_id, row)
        changes.add(UPDATES, month_of_ms(row.ms), values, (session, row.place))


def _cut_ends(reader: FileReader, session: str, cut: Place, changes: FileChanges) -> None:
    """Replace a last place that the server has lost by the one before, although it is not kept."""
    late = [(file, {place for place in kept if place > cut}) for file, kept in reader.ends(session)]
    for file, kept in late:
        if kept:
            changes.edit(file).rows.setdefault(session, set()).update(kept)
    if any(kept for _, kept in late):
        changes.add(SESSIONS, ALL_MONTHS, [session, *cut], (session, cut))


class FileWriting:
    """What one call writes. Once another process has come between, most of it is right still: what
    is new, and edits of files that still count. So a call that edits many files comes to its end
    beside writers of others.
    """

    def __init__(self, log: FileLog) -> None:
        self._log = log
        self._keys: list[object] = []
        self._new: list[DataFile] = []
        self._edits: dict[str, tuple[FileEdit, list[DataFile]]] = {}

    def write(self, reader: FileReader, changes: FileChanges) -> list[DataFile]:
        """Write what changes need beyond what is written. Return their files: none counts yet."""
        if changes.keys != self._keys:
            delete_files(self._log, [file.name for file in self._new])
            self._new, self._keys = [], []
            for (kind, month), values in sorted(changes.new.items()):
                self._new.append(put(self._log, table_of(kind, values), kind, month, NEW))
            self._keys = changes.keys
        for name, (edit, made) in list(self._edits.items()):
            if changes.edits.get(name) != edit:
                delete_files(self._log, [file.name for file in made])
                del self._edits[name]
        for name, edit in changes.edits.items():
            if name not in self._edits:
                self._edits[name] = (edit, self._edited(reader, edit))
        return [*self._new, *(file for _, made in self._edits.values() for file in made)]

    def _edited(self, reader: FileReader, edit: FileEdit) -> list[DataFile]:
        file, table = edit.file, edited(reader.table(edit.file), edit)
        return [put(self._log, table, file.kind, file.month, file.bucket)] if table.num_rows else []


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
    kind = edit.file.kind
    owners = table[OWNERS[kind]].to_pylist()
    if kind == RECORDS:
        times: list[int] = table["at"].cast(pa.int64()).to_pylist()
        keep = [
            key not in edit.records
            and not (key[1] in edit.without and key[0] in _OF_SESSION)
            and us >= edit.expired.get(key[0], us)
            for key, us in zip(record_keys(table), times, strict=True)
        ]
    elif kind == TASKS:
        born, ended = (table[name].cast(pa.int64()).to_pylist() for name in ("born", "ended_at"))
        keys = zip(owners, table["task_id"].to_pylist(), born, strict=True)
        keep = [
            key not in edit.tasks and key[0] not in edit.without and us >= edit.expired_us
            for key, us in zip(keys, ended, strict=True)
        ]
    else:
        named = list(zip(owners, places(table), strict=True))
        keep = [
            place not in edit.rows.get(session, ())
            and session not in edit.without
            and place[0] * 1000 >= edit.expired_us
            for session, place in named
        ]
        if edit.lost_behind:
            table = _with_lost(table, named, edit)
    return table.filter(pa.array(keep, pa.bool_()))


def _with_lost(table: Any, named: Iterable[tuple[str, Place]], edit: FileEdit) -> Any:
    lost = [
        was or (session in edit.lost_behind and place > edit.lost_behind[session])
        for (session, place), was in zip(named, table["lost"].to_pylist(), strict=True)
    ]
    column = table.schema.get_field_index("lost")
    return table.set_column(column, table.schema.field(column), pa.array(lost, pa.bool_()))


def split(table: Any, kind: str) -> dict[str, Any]:
    """Split a table by the bucket of each owner."""
    owners = table[OWNERS[kind]].combine_chunks().dictionary_encode()
    of_owner = [digest_of(each)[0] for each in owners.dictionary.to_pylist()]
    buckets = pc.take(pa.array(of_owner, pa.string()), owners.indices)
    parts = {bucket: table.filter(pc.equal(buckets, bucket)) for bucket in BUCKETS}
    return {bucket: part for bucket, part in parts.items() if part.num_rows}
