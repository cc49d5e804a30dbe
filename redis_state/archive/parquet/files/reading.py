"""Read files: only those that may have what is wanted, and of these only such row groups."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from redis_state.archive.model import ArchivedRecord, ArchivedRow
from redis_state.archive.parquet.files.ahead import ahead
from redis_state.archive.parquet.files.columns import (
    OWNERS,
    RECORDS,
    SCHEMAS,
    SESSIONS,
    TASKS,
    UPDATES,
    Task,
    digest_of,
    pa,
    pc,
    places,
    pq,
    records_of,
    rows_of,
)
from redis_state.archive.parquet.files.footers import Footers
from redis_state.archive.parquet.files.log import NEW, DataFile, FileGone, FileLog, Files
from redis_state.errors import ArchiveUnavailable

# A file of so many bytes is read as one.
_SMALL = 1 << 20
# A page of rows, or of found tasks, ends before it has more bytes. It has one at least.
PAGE_BYTES = 4 << 20
# So many of such files, and row groups of them, are kept for the rest of a call.
_RECENT = 8
_KEYS = {
    TASKS: ["session_id", "task_id", "born", "version", "write"],
    UPDATES: ["session_id", "at", "n", "lost"],
    RECORDS: ["owner", "kind", "born", "n", "key", "version", "write"],
    SESSIONS: ["session_id", "at", "n"],
}
Place = tuple[int, int]
# As the columns have it: kind, owner, birth, number, key.
Record = tuple[str, str, int, int, str]


class FileReader:
    """Read the files of a log. ``footers`` are kept from call to call.

    Errors: FileGone for a file that is not there, unless it is one of ``without``.
    """

    def __init__(self, log: FileLog, footers: Footers, *, without: Collection[str] = ()) -> None:
        self._log = log
        self.footers: Footers = footers
        self._lock = threading.Lock()
        self._recent: OrderedDict[tuple[str | int, ...], Any] = OrderedDict()
        # What the log names, and of that what is read.
        self.named: Files = log.files()
        self.files: Files = self.named.without(without) if without else self.named

    def table(self, file: DataFile) -> Any:
        """Return all of a file."""
        return self.table_within(file, None)

    def table_within(self, file: DataFile, most: int | None) -> Any:
        """Return all of a file; None, and read no more of it, if it has more bytes in memory."""
        groups: list[Any] = []
        for group in self._groups(file, None, SCHEMAS[file.kind].names):
            groups.append(group)
            if most is not None and sum(each.nbytes for each in groups) > most:
                return None
        return pa.concat_tables(groups) if groups else SCHEMAS[file.kind].empty_table()

    def keys(self, file: DataFile, session: str | None, columns: Sequence[str] = ()) -> Any:
        """Return the keys of a file, or of its rows of a session."""
        chosen = columns or _KEYS[file.kind]
        found = list(self._groups(file, session, chosen))
        if not found:
            return SCHEMAS[file.kind].empty_table().select(chosen)
        return pa.concat_tables(found)

    def stamps(self, wanted: Iterable[Task]) -> dict[Task, tuple[int, str, DataFile]]:
        """Return version, write and file of each task that is there."""
        found: dict[Task, tuple[int, str, DataFile]] = {}
        for file, session, tasks in self._with_tasks(wanted):
            if file.bucket == NEW:
                known = self._tasks_of_new(file)
            else:
                known = _stamps(self._groups(file, session, _KEYS[TASKS]))
            found |= {key: (*known[key], file) for key in tasks & known.keys()}
        return found

    def some_tasks(self, wanted: Iterable[Task]) -> dict[Task, tuple[str, str, int, str]]:
        """Return record, journal, version and write of each task that is there."""
        found: dict[Task, tuple[str, str, int, str]] = {}
        names = [*_KEYS[TASKS], "record", "journal"]
        for file, session, tasks in self._with_tasks(wanted):
            if file.bucket == NEW and tasks.isdisjoint(self._tasks_of_new(file)):
                continue
            for table in self._groups(file, session, names):
                born = table["born"].cast(pa.int64()).to_pylist()
                for each, at in zip(table.to_pylist(), born, strict=True):
                    key = (session, each["task_id"], at)
                    if key in tasks:
                        found[key] = (
                            *(each["record"], each["journal"]),
                            *(each["version"], each["write"]),
                        )
        return found

    def _with_tasks(self, wanted: Iterable[Task]) -> Iterator[tuple[DataFile, str, set[Task]]]:
        """Yield files that may have some of the tasks of a session, with these."""
        for session, tasks in _grouped(wanted).items():
            births = [born for _, _, born in tasks]
            for file in self.files.having(TASKS, digest_of(session)):
                if file.most >= min(births) and file.least <= max(births):
                    yield file, session, tasks

    def _tasks_of_new(self, file: DataFile) -> Mapping[Task, tuple[int, str]]:
        """Return version and write of each task of a new file, read once in a process."""
        known = self.footers.tasks(file)
        if known is None:
            known = _stamps(self._groups(file, None, _KEYS[TASKS]))
            self.footers.keep_tasks(file, known)
        return known

    def last(self, session: str) -> Place | None:
        """Return time and number of a session's last row that is not lost, kept or not."""
        digest = digest_of(session)
        new = [*self.files.at(UPDATES, digest), *self.files.at(SESSIONS, digest)]
        ends = [file.sessions[digest] for file in new if file.sessions is not None]
        found: Place | None = max(((ms, n) for n, ms in filter(None, ends)), default=None)
        older = [*self.files.at(UPDATES, digest[0]), *self.files.at(SESSIONS, digest[0])]
        for file in sorted(older, key=lambda file: file.most, reverse=True):
            if found is not None and file.most < found[0]:
                break
            table = self.keys(file, session)
            last = _last_place(_kept(table) if file.kind == UPDATES else table)
            found = max((each for each in (last, found) if each is not None), default=None)
        return found

    def ends(self, session: str) -> list[tuple[DataFile, list[Place]]]:
        """Return the last places of a session that stand for rows which are not kept any more."""
        files = self.files.having(SESSIONS, digest_of(session))
        return [(file, list(places(self.keys(file, session)))) for file in files]

    def places_from(self, session: str, least_ms: int) -> dict[Place, tuple[DataFile, bool]]:
        """Return each row from a time on: its file, and whether it is lost."""
        found: dict[Place, tuple[DataFile, bool]] = {}
        for file in self.files.having(UPDATES, digest_of(session)):
            if file.most >= least_ms:
                table = _within(self.keys(file, session), least_ms, file.most)
                for place, lost in zip(places(table), table["lost"].to_pylist(), strict=True):
                    found[place] = (file, lost)
        return found

    def rows(self, session: str, after: Place, count: int) -> list[ArchivedRow]:
        """Return rows behind a place that are not lost, in their order, of 4 MiB or one row."""
        months: dict[str, list[DataFile]] = {}
        for file in self.files.having(UPDATES, digest_of(session)):
            if file.most >= after[0]:
                months.setdefault(file.month, []).append(file)
        rows: list[ArchivedRow] = []
        for _, files in sorted(months.items()):
            found: list[Place] = []
            for file in files:
                kept = _kept(self.keys(file, session))
                found += [place for place in places(kept) if place > after]
            wanted = set(sorted(found)[: count - len(rows)])
            if wanted:
                rows += self.some_rows(session, wanted, files)
            whole = fitting(len(row.data) for row in rows)
            if whole < len(rows) or len(rows) >= count:
                return rows[:whole]
        return rows

    def some_rows(
        self, session: str, wanted: set[Place], files: Iterable[DataFile] | None = None
    ) -> list[ArchivedRow]:
        """Return those rows of a session that are there and not lost, in their order."""
        chosen = self.files.having(UPDATES, digest_of(session)) if files is None else files
        first, last = min(wanted)[0], max(wanted)[0]
        rows: list[ArchivedRow] = []
        for file in chosen:
            if file.most < first or file.least > last:
                continue
            for group in self._groups(file, session, SCHEMAS[UPDATES].names):
                table = _within(group, first, last)
                mask = [place in wanted for place in places(table)]
                rows += rows_of(_kept(table.filter(pa.array(mask, pa.bool_()))))
        return sorted(rows, key=lambda row: row.place)

    def record_stamps(self, wanted: Iterable[Record]) -> dict[Record, tuple[int, str, DataFile]]:
        """Return version, write and file of each record that is there."""
        found: dict[Record, tuple[int, str, DataFile]] = {}
        for table, file, keys in self._of_records(wanted, _KEYS[RECORDS]):
            columns = [table[name].to_pylist() for name in ("version", "write")]
            for key, version, write in zip(keys, *columns, strict=True):
                found[key] = (version, write, file)
        return found

    def some_records(self, wanted: Iterable[Record]) -> dict[Record, ArchivedRecord]:
        """Return each record that is there."""
        found: dict[Record, ArchivedRecord] = {}
        for table, _, keys in self._of_records(wanted, SCHEMAS[RECORDS].names):
            found |= dict(zip(keys, records_of(table), strict=True))
        return found

    def records(
        self, kind: str, owner: str, key: str | None, after: tuple[int, int, str], limit: int
    ) -> list[ArchivedRecord]:
        """Return records of an owner behind a place, in their order, of 4 MiB or one record."""
        keys: list[Record] = []
        for file in self.files.having(RECORDS, digest_of(owner)):
            if file.most >= after[0]:
                keys += record_keys(self.keys(file, owner))
        behind = (each for each in keys if each[0] == kind and each[2:] > after)
        chosen = sorted(each for each in behind if key in (None, each[4]))[:limit]
        sizes: dict[Record, int] = {}
        for table, _, named in self._of_records(chosen, [*_KEYS[RECORDS], "data"]):
            sizes |= zip(named, pc.binary_length(table["data"]).to_pylist(), strict=True)
        chosen = chosen[: fitting(sizes[each] for each in chosen)]
        found = self.some_records(chosen)
        return [found[each] for each in chosen]

    def last_record(
        self, kind: str, owner: str, before_us: int | None = None
    ) -> tuple[int, int, str] | None:
        """Return the place of the last record of a kind that an owner has, or None."""
        places = (
            key[2:]
            for file in self.files.having(RECORDS, digest_of(owner))
            for key in record_keys(self.keys(file, owner))
            if key[0] == kind and (before_us is None or key[2] < before_us)
        )
        return max(places, default=None)

    def _of_records(
        self, wanted: Iterable[Record], columns: Sequence[str]
    ) -> Iterator[tuple[Any, DataFile, list[Record]]]:
        """Yield those of the records that a file has, with their keys."""
        chosen = set(wanted)
        for owner in sorted({each[1] for each in chosen}):
            births = [each[2] for each in chosen if each[1] == owner]
            for file in self.files.having(RECORDS, digest_of(owner)):
                if file.most < min(births) or file.least > max(births):
                    continue
                for table in self._groups(file, owner, columns):
                    keys = record_keys(table)
                    mask = pa.array([key in chosen for key in keys], pa.bool_())
                    yield table.filter(mask), file, [key for key in keys if key in chosen]

    def groups(
        self,
        file: DataFile,
        session: str | None,
        columns: Sequence[str],
        *,
        only: Container[int] | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Yield the row groups that may have a session's rows, whole, each with its number."""
        if session is not None and not self.footers.may_have(file, session):
            return
        opened = self._open(file)
        try:
            for n in self.footers.of(file, opened).groups(session, only):
                yield n, self._read(opened, file, n, columns)
        finally:
            if file.bytes > _SMALL:
                opened.close(force=True)

    def groups_of(
        self,
        files: Iterable[DataFile],
        session: str | None,
        columns: Sequence[str],
        *,
        rows: Mapping[str, Mapping[int, Sequence[int]]] | None = None,
    ) -> Iterator[tuple[DataFile, list[tuple[int, Any]]]]:
        """Yield files in their order, each with such row groups of it. Some are read ahead.

        Of each file that is being read these columns are in memory, of all such row groups.
        ``rows`` has which rows of which row groups are wanted, by the name of a file. With it one
        whole row group of each file is in memory, and such rows of the others.
        """

        def read(file: DataFile) -> list[tuple[int, Any]]:
            if rows is None:
                return list(self.groups(file, session, columns))
            some = rows[file.name]
            groups = self.groups(file, session, columns, only=some)
            return [(n, table.take(pa.array(some[n], pa.int64()))) for n, table in groups]

        yield from ahead(read, list(files))

    def keys_of(
        self, wanted: Sequence[tuple[DataFile, str | None]], columns: Sequence[str] = ()
    ) -> Iterator[tuple[tuple[DataFile, str | None], Any]]:
        """Yield the keys of files, or of their rows of a session, in turn. Some are read ahead."""

        def read(one: tuple[DataFile, str | None]) -> Any:
            return self.keys(*one, columns)

        known = [
            (file, owner)
            for file, owner in wanted
            if owner is None or self.footers.may_have(file, owner)
        ]
        yield from ahead(read, known)

    def _read(self, opened: Any, file: DataFile, n: int, columns: Sequence[str]) -> Any:
        key: tuple[str | int, ...] = (file.name, n, *columns)
        table = self._recent.get(key)
        if table is None:
            table = opened.read_row_group(n, columns=list(columns), use_threads=False)
            self._keep(file, key, table)
        return table

    def _keep(self, file: DataFile, key: tuple[str | int, ...], what: Any) -> None:
        """Keep what was read of a small file: the sessions of a batch are in the same one."""
        if file.bytes <= _SMALL:
            with self._lock:
                self._recent[key] = what
                if len(self._recent) > _RECENT:
                    self._recent.popitem(last=False)

    def _groups(self, file: DataFile, session: str | None, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the row groups that have a session's rows, without the rows of others."""
        for _, group in self.groups(file, session, columns):
            table = group
            if session is not None:
                table = group.filter(pc.equal(group[OWNERS[file.kind]], session))
            if table.num_rows:
                yield table

    def _open(self, file: DataFile) -> Any:
        """Open a file for this thread alone: of one that threads share pyarrow mixes the reads."""
        known = self._recent.get((file.name,))
        if known is None and not self._log.may_continue():
            raise ArchiveUnavailable("read", "its time is over")
        name, metadata = f"{self._log.folder}/{file.name}", self.footers.metadata(file)
        if file.bytes > _SMALL:
            source = self._log.objects.open(name)
            if source is None:
                raise FileGone(file.name)
            return pq.ParquetFile(source, metadata=metadata)
        body, metadata = known or (self._log.objects.get(name), metadata)
        if body is None:
            raise FileGone(file.name)
        # What is in memory needs no reads ahead.
        opened = pq.ParquetFile(pa.BufferReader(body), metadata=metadata, pre_buffer=False)
        if known is None:
            self._keep(file, (file.name,), (body, opened.metadata))
        return opened


def _stamps(tables: Iterable[Any]) -> dict[Task, tuple[int, str]]:
    found: dict[Task, tuple[int, str]] = {}
    for table in tables:
        born = table["born"].cast(pa.int64()).to_pylist()
        names = ("session_id", "task_id", "version", "write")
        columns = [table[name].to_pylist() for name in names]
        for session, task, version, write, at in zip(*columns, born, strict=True):
            found[session, task, at] = (version, write)
    return found


def fitting(sizes: Iterable[int]) -> int:
    """Return how many of these sizes fit into a page: one at least, if there is one."""
    count = total = 0
    for size in sizes:
        total += size
        if count and total > PAGE_BYTES:
            break
        count += 1
    return count


def record_keys(table: Any) -> list[Record]:
    """Return the key of each record: kind, owner, birth, number and key."""
    columns = [table[name].to_pylist() for name in ("n", "key")]
    born = table["born"].cast(pa.int64()).to_pylist()
    named = (table[name].to_pylist() for name in ("kind", "owner"))
    return list(zip(*named, born, *columns, strict=True))


def _grouped(tasks: Iterable[Task]) -> dict[str, set[Task]]:
    found: dict[str, set[Task]] = {}
    for task in tasks:
        found.setdefault(task[0], set()).add(task)
    return found


def _within(table: Any, least_ms: int, most_ms: int) -> Any:
    """Leave the rows of a time, without a Python object for each of the others."""
    at = table["at"].cast(pa.int64())
    return table.filter(pc.and_(pc.greater_equal(at, least_ms), pc.less_equal(at, most_ms)))


def _last_place(table: Any) -> Place | None:
    at = table["at"].cast(pa.int64())
    ms = pc.max(at).as_py()
    return None if ms is None else (ms, pc.max(table["n"].filter(pc.equal(at, ms))).as_py())


def _kept(table: Any) -> Any:
    return table.filter(pc.invert(table["lost"]))
