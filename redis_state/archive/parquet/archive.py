"""The archive of Parquet files: for any tool to read, with one log that says which files count."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, cast

from pydantic import SecretStr

from redis_state import limits
from redis_state.archive.model import (
    ArchiveBatch,
    ArchivedRecord,
    ArchivedRow,
    ArchivedSession,
    ArchivedTask,
    ArchiveQuery,
    ArchiveStatus,
    ArchiveVerdict,
    RecordKey,
    RecordKind,
    RecordPlace,
    moment_of_us,
    plain_text,
    rows_digest,
    text_of,
)
from redis_state.archive.parquet.columns import (
    KINDS,
    RECORDS,
    TASKS,
    UPDATES,
    digest_of,
    folder_of,
    pa,
)
from redis_state.archive.parquet.compacting import GRACE, clean, compact
from redis_state.archive.parquet.log import NEW, FileGone, FileLog
from redis_state.archive.parquet.objects import open_objects
from redis_state.archive.parquet.reading import FileReader
from redis_state.archive.parquet.writing import (
    FileChanges,
    changes_of,
    delete_files,
    key_of,
    record_key,
    without,
    write_files,
)
from redis_state.errors import ArchiveUnavailable

T = TypeVar("T")
_ATTEMPTS = 3
# From so many new files on they are compacted, by the process that writes such an entry.
_MANY_NEW, _EVERY, _FEW = 256, 64, 8
_COMPACT_S = 300.0


class _ArchiveCall:
    """One call in a thread of its own. Once nobody waits for it, it commits nothing."""

    over: bool = False


class ParquetArchive:
    """What one namespace has in a folder or in a bucket of an S3-compatible store.

    ``timeout_s`` is the deadline of each call. Calls run one at a time, each in a thread. No I/O
    when it is made. Errors: ConfigError for a URL that cannot be used.
    """

    def __init__(
        self, url: str | SecretStr, *, namespace: str = "rs", timeout_s: float = 30.0
    ) -> None:
        self._timeout_s = limits.seconds("timeout_s", timeout_s)
        self._namespace = namespace
        plain = url.get_secret_value() if isinstance(url, SecretStr) else url
        self._objects = open_objects(plain, timeout_s=timeout_s)
        self._folder = folder_of(namespace)
        self._footers: OrderedDict[str, Any] = OrderedDict()
        self._lock = asyncio.Lock()
        self._call = _ArchiveCall()
        self._log = self._new_log()

    def __repr__(self) -> str:
        return f"<ParquetArchive namespace={self._namespace!r}>"

    async def prepare(self) -> None:
        """Write the first entry of the log, unless there is one. Several processes may call it."""
        await self._run("prepare", self._log.prepare)

    async def write(
        self, batch: ArchiveBatch, *, replaces: Mapping[tuple[str, str, int], str] | None = None
    ) -> None:
        """Write a batch in one entry of the log. What is there already is not written again.

        Rows of a session are written only if its last row in the archive is the one that they
        follow. Once many small files have come together, a write compacts them too.
        """
        work = partial(changes_of, batch=batch, replaces=replaces or {})
        await self._run("write", lambda: self._commit(work))
        if self._is_due:
            await self._run("compact", lambda: self._compact(_FEW), timeout_s=_COMPACT_S)

    async def verify(self, batch: ArchiveBatch) -> ArchiveVerdict:
        """Compare a batch with what is read back, by count and by digest."""
        return await self._read(lambda reader: _verdict(reader, batch))

    async def last_rows(self, session_ids: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Return number and time of the last row that was written of each session, if any."""

        def look(reader: FileReader) -> dict[str, tuple[int, int]]:
            found = {each: reader.last(plain_text(each)) for each in session_ids}
            return {each: (at[1], at[0]) for each, at in found.items() if at is not None}

        return await self._read(look)

    async def session(self, session_id: str) -> ArchivedSession | None:
        """Return what there is of a session, or None."""
        return await self._read(lambda reader: _session(reader, session_id))

    async def tasks(self, query: ArchiveQuery) -> list[ArchivedTask]:
        """Return tasks, the last that ended first. An id that was used again has several."""
        limits.count("limit", query.limit)
        return await self._read(lambda reader: reader.tasks(query))

    async def rows(
        self, session_id: str, *, after: tuple[int, int] | None, count: int
    ) -> list[ArchivedRow] | None:
        """Return rows behind a row's number and time, the oldest first.

        Rows that the server has lost are left out. None if that row is not kept, and the next one
        does not follow it by its number.
        """
        limits.count("count", count)
        n, ms = after or (0, 0)
        session = plain_text(session_id)

        def look(reader: FileReader) -> list[ArchivedRow] | None:
            rows = reader.rows(session, (ms, n), count)
            if after is None or (rows and rows[0].n == n + 1):
                return rows
            return rows if reader.some_rows(session, {(ms, n)}) else None

        return await self._read(look)

    async def records(
        self,
        kind: RecordKind,
        owner: str,
        *,
        key: str | None = None,
        after: RecordPlace | None = None,
        limit: int = 100,
    ) -> list[ArchivedRecord]:
        """Return records of an owner behind a place, in the order of their places.

        ``key`` wants those of one key. A page that is shorter than ``limit`` is the last.
        """
        limits.count("limit", limit)
        born_us, n, last = after or (0, -1, "")
        wanted = None if key is None else plain_text(key)
        place = (born_us, n, plain_text(last))
        return await self._read(
            lambda reader: reader.records(kind.value, plain_text(owner), wanted, place, limit)
        )

    async def status(self) -> ArchiveStatus:
        """Count what is kept. It reads the sessions' ids of all files."""
        return await self._read(_status)

    async def forget(self, session_id: str) -> ArchivedSession | None:
        """Erase a session; return what there was of it, or None.

        Files that have it are written again without it, and deleted, as is all that compaction
        replaced. What a crash left is deleted once it is ten minutes old: call it again by then.
        """
        session = plain_text(session_id)
        was = await self.session(session_id)
        work = partial(without, session=session)
        await self._run("forget", lambda: self._commit(work, delete=True))
        return was

    async def compact(self) -> int:
        """Make few files of many; return how many there are fewer. Delete what does not count."""
        return await self._run("compact", lambda: self._compact(1), timeout_s=_COMPACT_S)

    async def drop_months(self, before: datetime) -> int:
        """Erase all that is of months before that of a moment; return how many files.

        A task is of the month in which it was made.
        """
        month = f"{before:%Y-%m}"

        def drop() -> int:
            while True:
                files = self._log.files().by_name.values()
                names = [file.name for file in files if file.month < month]
                if not names or self._log.commit((), names):
                    delete_files(self._log, names)
                    return len(names)

        return await self._run("forget", drop)

    async def aclose(self) -> None:
        """Forget what was read."""
        async with self._lock:
            self._log = self._new_log()
            self._footers.clear()

    @property
    def _is_due(self) -> bool:
        files = self._log.known
        if files is None or files.n % _EVERY:
            return False
        return any(len(files.at(kind, NEW)) >= _MANY_NEW for kind in KINDS)

    def _compact(self, few: int) -> int:
        fewer = compact(self._log, self._footers, few=few)
        clean(self._log, grace=GRACE)
        return fewer

    def _commit(self, work: Callable[[FileReader], FileChanges], *, delete: bool = False) -> None:
        """Work out changes and commit them, until no other process comes between."""
        made: list[Any] = []
        keys: list[object] | None = None
        while True:
            reader = self._reading()
            changes = work(reader)
            if made and (changes.keys != keys or changes.edits):
                delete_files(self._log, [file.name for file in made])
                made = []
            if changes and not made:
                made, keys = write_files(self._log, reader, changes), changes.keys
            if not changes or self._log.commit(made, changes.edits):
                break
        if delete:
            delete_files(self._log, self._log.files().removed)
            clean(self._log, grace=GRACE)

    def _reading(self) -> FileReader:
        return FileReader(self._log, self._footers)

    async def _read(self, work: Callable[[FileReader], T]) -> T:
        return await self._run("read", lambda: work(self._reading()))

    def _new_log(self) -> FileLog:
        call = self._call = _ArchiveCall()
        return FileLog(self._objects, self._folder, may_go_on=lambda: not call.over)

    async def _run(
        self, action: str, work: Callable[[], T], *, timeout_s: float | None = None
    ) -> T:
        """Run a call in a thread. Errors: ArchiveUnavailable."""
        limit_s = timeout_s or self._timeout_s
        async with self._lock:
            try:
                async with asyncio.timeout(limit_s):
                    return await _in_thread(partial(self._attempts, action, work))
            except TimeoutError:
                self._abandon()
                raise ArchiveUnavailable(action, f"no answer in {limit_s:g} s") from None
            except asyncio.CancelledError:
                self._abandon()
                raise

    def _abandon(self) -> None:
        """Leave the thread of a call alone: it changes nothing any more that others see."""
        self._call.over = True
        known = self._log.was_there
        self._log = self._new_log()
        self._log.was_there = known
        self._footers = OrderedDict()

    def _attempts(self, action: str, work: Callable[[], T]) -> T:
        for attempt in range(_ATTEMPTS):
            try:
                return work()
            except FileGone:
                # Another process has replaced it since the log was read.
                self._log.forget_files()
                if attempt == _ATTEMPTS - 1:
                    raise ArchiveUnavailable(action, "a file of it has gone") from None
            except ArchiveUnavailable:
                raise
            except (ValueError, OverflowError, TypeError, pa.ArrowException) as error:
                # Its text may quote what was to be written.
                refused = action == "write"
                raise ArchiveUnavailable(action, type(error).__name__, refused=refused) from None
            except self._objects.problems as error:
                raise ArchiveUnavailable(action, type(error).__name__) from None
        raise AssertionError


async def _in_thread(work: Callable[[], T]) -> T:
    """Run what blocks in a thread that keeps no process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(found: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast("T", found))

    def run() -> None:
        found, problem = None, None
        try:
            found = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
            problem = error
        # The loop may be closed by then.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, found, problem)

    context = contextvars.copy_context()
    threading.Thread(
        target=context.run, args=[run], name="redis-state-archive", daemon=True
    ).start()
    return await future


def _verdict(reader: FileReader, batch: ArchiveBatch) -> ArchiveVerdict:
    named = {key_of(task): task for task in batch.tasks}
    tasks: dict[tuple[str, str, int], str | None] = {task.key: None for task in batch.tasks}
    for key, (record, journal, version, write) in reader.some_tasks(named).items():
        task = named[key]
        made = hashlib.sha256(f"{record}\n{journal}".encode()).hexdigest()
        if made == task.digest():
            del tasks[task.key]
        else:
            tasks[task.key] = f"{version} {text_of(write)}"
    other: set[str] = set()
    for each in batch.sessions:
        if each.rows:
            wanted = {row.place for row in each.rows}
            rows = reader.some_rows(plain_text(each.session_id), wanted)
            if len(rows) != len(each.rows) or rows_digest(rows) != rows_digest(each.rows):
                other.add(each.session_id)
    return ArchiveVerdict(tasks, frozenset(other), _other_records(reader, batch))


def _other_records(reader: FileReader, batch: ArchiveBatch) -> dict[RecordKey, str | None]:
    """Return the records that are not there as they are, each with the stamp that is."""
    named = {record_key(record): record for record in batch.records}
    other: dict[RecordKey, str | None] = {record.known_by: None for record in batch.records}
    for key, kept in reader.some_records(named).items():
        record = named[key]
        if kept.stamp == record.stamp and kept.digest() == record.digest():
            del other[record.known_by]
        else:
            other[record.known_by] = kept.stamp
    return other


def _session(reader: FileReader, session_id: str) -> ArchivedSession | None:
    session = plain_text(session_id)
    digest = digest_of(session)
    of_tasks, of_updates = (reader.files.having(kind, digest) for kind in (TASKS, UPDATES))
    tasks = sum(reader.keys(file, session, ["session_id"]).num_rows for file in of_tasks)
    lost = [reader.keys(file, session)["lost"].to_pylist() for file in of_updates]
    if not tasks and not any(lost):
        return None
    last = reader.last(session)
    updates = sum(each.count(False) for each in lost)
    return ArchivedSession(session_id, tasks, updates, None if last is None else (last[1], last[0]))


def _status(reader: FileReader) -> ArchiveStatus:
    sessions: set[str] = set()
    updates, kinds = 0, Counter[str]()
    for file in reader.files.by_name.values():
        if file.kind == RECORDS:
            kinds.update(reader.keys(file, None, ["kind"])["kind"].to_pylist())
            continue
        columns = ["session_id", "lost"] if file.kind == UPDATES else ["session_id"]
        table = reader.keys(file, None, columns)
        sessions.update(table["session_id"].unique().to_pylist())
        if file.kind == UPDATES:
            updates += table["lost"].to_pylist().count(False)
    tasks = reader.files.of(TASKS)
    ended = [file.ended for file in tasks if file.ended is not None]
    return ArchiveStatus(
        len(sessions),
        sum(file.rows for file in tasks),
        updates,
        sum(file.bytes for file in reader.files.by_name.values()),
        moment_of_us(min(least for least, _ in ended)) if ended else None,
        moment_of_us(max(most for _, most in ended)) if ended else None,
        {RecordKind(kind): count for kind, count in sorted(kinds.items())},
    )
