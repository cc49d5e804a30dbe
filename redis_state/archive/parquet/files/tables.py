"""Read the tables of data files: only such row groups as may have what is wanted."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from redis_state.archive.parquet.files.ahead import ahead
from redis_state.archive.parquet.files.columns import (
    OWNERS,
    RECORDS,
    SCHEMAS,
    SESSIONS,
    TASKS,
    UPDATES,
    pa,
    pc,
    pq,
)
from redis_state.archive.parquet.files.data_files import DataFile, Files
from redis_state.archive.parquet.files.footers import Footers
from redis_state.archive.parquet.files.log import FileGone, FileLog
from redis_state.errors import ArchiveUnavailable

# A file of so many bytes is read as one.
_SMALL = 1 << 20
# So many of such files, and row groups of them, are kept for the rest of a call.
_RECENT = 8
KEYS = {
    TASKS: ["session_id", "task_id", "born", "version", "write"],
    UPDATES: ["session_id", "at", "n", "lost"],
    RECORDS: ["owner", "kind", "born", "n", "key", "version", "write"],
    SESSIONS: ["session_id", "at", "n"],
}


class TableReader:
    """Read tables of the files of a log. ``footers`` are kept from call to call.

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
        chosen = columns or KEYS[file.kind]
        found = list(self._groups(file, session, chosen))
        if not found:
            return SCHEMAS[file.kind].empty_table().select(chosen)
        return pa.concat_tables(found)

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
