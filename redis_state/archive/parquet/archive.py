"""The archive of Parquet files: for any tool to read, with one log that says which files count."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from pydantic import SecretStr

from redis_state import limits
from redis_state.archive.erased import scope_of
from redis_state.archive.model import (
    ArchiveBatch,
    ArchivedRecord,
    ArchivedRow,
    ArchivedSession,
    ArchivedTask,
    ArchiveStatus,
    ArchiveVerdict,
    RecordKind,
    RecordPlace,
)
from redis_state.archive.parquet import answers, sharing
from redis_state.archive.parquet.calls import ArchiveCall, in_thread
from redis_state.archive.parquet.ended import ended_tasks
from redis_state.archive.parquet.files.columns import KINDS, folder_of, pa
from redis_state.archive.parquet.files.compacting import GRACE, clean, compact
from redis_state.archive.parquet.files.log import NEW, FileGone, FileLog, LogChange
from redis_state.archive.parquet.files.objects import open_objects
from redis_state.archive.parquet.files.reading import FileReader
from redis_state.archive.parquet.files.writing import (
    FileChanges,
    changes_of,
    delete_files,
    erased_in,
    without,
    without_records,
    write_files,
)
from redis_state.archive.parquet.finding import find_tasks
from redis_state.archive.parquet.retention import CLASSES, Expiry
from redis_state.archive.protocol import overlooked
from redis_state.archive.queries import ArchivedPage, ArchiveListing, ArchiveQuery
from redis_state.archive.retention import RetentionReport, check_classes
from redis_state.errors import ArchiveFileMissing, ArchiveUnavailable
from redis_state.postgres.text import plain_text, text_of

T = TypeVar("T")
_ATTEMPTS = 3
# From so many new files on they are compacted, by the process that writes such an entry.
_MANY_NEW, _EVERY, _FEW = 256, 64, 8
_LONG_S = 300.0
# The files that are gone, and that a call does without. Each thread has a context of its own.
_without: ContextVar[frozenset[str]] = ContextVar("without", default=frozenset())


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
        self._call = ArchiveCall()
        self._log = self._new_log()

    def __repr__(self) -> str:
        return f"<ParquetArchive namespace={self._namespace!r}>"

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of data that it keeps."""
        return CLASSES

    async def prepare(self) -> None:
        """Write the first entry of the log, unless there is one. Several processes may call it."""
        await self._run("prepare", self._log.prepare)

    async def write(
        self, batch: ArchiveBatch, *, replaces: Mapping[tuple[str, str, int], str] | None = None
    ) -> None:
        """Write a batch in one entry of the log. What is there already is not written again.

        Rows of a session are written only if its last row in the archive is the one that they
        follow. What was erased since it was read is left out. Once many small files have come
        together, a write compacts them too.
        """
        work = partial(changes_of, batch=batch, replaces=replaces or {})
        await self._run("write", lambda: self._commit(work))
        if self._is_due:
            await self._run("compact", lambda: self._compact(_FEW), timeout_s=_LONG_S)

    async def verify(self, batch: ArchiveBatch) -> ArchiveVerdict:
        """Compare a batch with what is read back, by count and by digest."""
        return await self._read(lambda reader: answers.verdict(reader, batch))

    async def last_rows(self, session_ids: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Return number and time of the last row that was written of each session, if any."""

        def look(reader: FileReader) -> dict[str, tuple[int, int]]:
            found = {each: reader.last(plain_text(each)) for each in session_ids}
            return {each: (at[1], at[0]) for each, at in found.items() if at is not None}

        return await self._read(look)

    async def session(self, session_id: str) -> ArchivedSession | None:
        """Return what there is of a session, or None."""
        return await self._read(lambda reader: answers.session(reader, session_id))

    async def tasks(self, query: ArchiveQuery) -> list[ArchivedTask]:
        """Return tasks, the last that ended first; of 4 MiB, or the first.

        An id that was used again has several.
        """
        limits.count("limit", query.limit)
        return await self._read(lambda reader: ended_tasks(reader, query))

    async def find(self, listing: ArchiveListing) -> ArchivedPage:
        """List tasks in the order of their places. See `redis_state.archive.parquet.finding`."""
        limits.count("limit", listing.limit)
        return await self._read(lambda reader: find_tasks(reader, listing))

    async def rows(
        self,
        session_id: str,
        *,
        after: tuple[int, int] | None,
        count: int,
        over_gaps: bool = False,
    ) -> list[ArchivedRow] | None:
        """Return rows behind a row's number and time, the oldest first.

        Rows that the server has lost are left out. None if that row is not kept, unless it is the
        place just before the next one. With ``over_gaps`` the rows that are kept behind it.
        """
        limits.count("count", count)
        place = None if after is None else (after[1], after[0])
        return await self._read(
            lambda reader: answers.rows(reader, session_id, place, count, over_gaps=over_gaps)
        )

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

        ``key`` wants those of one key. A page has 4 MiB, or one record.
        """
        limits.count("limit", limit)
        born_us, n, last = after or (0, -1, "")
        wanted = None if key is None else plain_text(key)
        place = (born_us, n, plain_text(last))
        return await self._read(
            lambda reader: reader.records(kind.value, plain_text(owner), wanted, place, limit)
        )

    async def last_records(
        self, kind: RecordKind, owners: Sequence[str], *, before_us: int | None = None
    ) -> Mapping[str, RecordPlace]:
        """Return the place of the last record of a kind that each owner has, if it has any.

        With ``before_us`` the last of those that were born before that time.
        """

        def look(reader: FileReader) -> dict[str, RecordPlace]:
            found = {
                each: reader.last_record(kind.value, plain_text(each), before_us) for each in owners
            }
            return {
                each: (place[0], place[1], text_of(place[2]))
                for each, place in found.items()
                if place is not None
            }

        return await self._read(look)

    async def forget_records(
        self, kind: RecordKind, owners: Collection[str], *, before_us: int
    ) -> int:
        """Erase owners' records of a kind in one entry of the log; return how many there were.

        Files that have them are written again without, and deleted, as by `forget`.
        """
        was: list[int] = []
        scopes = {plain_text(each): plain_text(scope_of(kind, each)) for each in owners}

        def work(reader: FileReader) -> FileChanges:
            changes = without_records(reader, kind.value, scopes, before_us)
            was.append(sum(len(edit.records) for edit in changes.edits.values()))
            return changes

        await self._run("forget", lambda: self._commit(work, delete=True))
        return was[-1]

    async def count_records(self, kind: RecordKind, owners: Collection[str]) -> int:
        """Count owners' records of a kind."""
        return await self._read(lambda reader: sharing.count(reader, kind, owners))

    async def first_places(
        self, kind: RecordKind, owner: str, keys: Collection[str]
    ) -> Mapping[str, RecordPlace]:
        """Return of each key the place of an owner's first record that has it, if any has."""
        return await self._read(lambda reader: sharing.first_places(reader, kind, owner, keys))

    async def shared_traces(
        self, trace_ids: Collection[str], *, besides: Collection[str]
    ) -> frozenset[str]:
        """Return those of the traces that a session has which is none of ``besides``.

        It reads the traces of all tasks and trajectories.
        """
        return await self._read(lambda reader: sharing.shared_traces(reader, trace_ids, besides))

    async def status(self) -> ArchiveStatus:
        """Count what is kept. It reads the sessions' ids of all files."""
        return await self._read(
            lambda reader: answers.status(reader, self._log.missing()), action="status"
        )

    async def forget(
        self, session_id: str, *, before_us: int | None = None
    ) -> ArchivedSession | None:
        """Erase a session in one entry of the log; return what there was of it, or None.

        Files that have it are written again without it, and deleted, as is all that compaction
        replaced. What a crash left is deleted once it is ten minutes old: call it again by then.
        With ``before_us`` nothing of before that time of the Redis server is written again.
        """
        was: list[ArchivedSession | None] = []

        def work(reader: FileReader) -> FileChanges:
            was.append(answers.session(reader, session_id))
            return without(reader, plain_text(session_id), before_us)

        await self._run("forget", lambda: self._commit(work, delete=True))
        # As the entry found it. One whose file had gone was worked out again.
        return was[-1]

    async def erased(self, session_ids: Sequence[str]) -> Mapping[str, int]:
        """Return up to which time of the Redis server sessions were erased, in us, if any were."""
        return await self._read(lambda reader: erased_in(reader, session_ids))

    async def sessions_of(self, attribute: str, value: Any, *, only: bool = False) -> list[str]:
        """List the sessions that have a task with this attribute. It reads it of all tasks.

        With ``only``, those without a task that has another value of it.
        """
        return await self._read(
            lambda reader: answers.sessions_of(reader, attribute, value, only=only)
        )

    async def retain(
        self, before: Mapping[str, datetime], *, dry_run: bool = False
    ) -> RetentionReport:
        """Remove of each class what has expired: files whole, and so many rewritten ones at most.

        Rows that have expired are not read any more from the first call on. A large file is
        written again once an eighth of it has expired; until then the report names it as left.
        """
        check_classes(before, self.classes)
        reports: list[RetentionReport] = []

        def work(reader: FileReader) -> FileChanges:
            expiry = Expiry(reader, before, self._log.missing())
            reports.append(expiry.report)
            return FileChanges() if dry_run else expiry.changes

        def once() -> RetentionReport:
            self._commit(work)
            if not dry_run and not reports[-1].more:
                clean(self._log, grace=GRACE)
            return reports[-1]

        return await self._run("retain", once, timeout_s=_LONG_S)

    async def compact(self) -> int:
        """Make few files of many; return how many there are fewer. Delete what does not count."""
        return await self._run("compact", lambda: self._compact(1), timeout_s=_LONG_S)

    async def drop_missing(self) -> list[str]:
        """Count files that are missing no more, in one entry of the log; return their names.

        A file that comes back is deleted. What of them Redis still has is archived again once it is
        listed again: see `backfill` and `enlist_records`. Of updates and events that is what
        follows the last one: `forget` a session first to have all of it copied.
        """

        def once() -> list[str]:
            while missing := sorted(self._log.missing()):
                if self._log.commit(LogChange(remove=missing)):
                    return missing
            return []

        return await self._run("drop", once, timeout_s=_LONG_S)

    def known_files(self) -> dict[str, int]:
        """Count the files of each kind that counted when the log was last read."""
        known = self._log.known
        return {kind: 0 if known is None else len(known.of(kind)) for kind in KINDS}

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
        edited = False
        while True:
            reader = self._reading()
            changes = work(reader)
            # What is written again is of files that count no more once others have edited them.
            if made and (edited or changes.edits or changes.keys != keys):
                delete_files(self._log, [file.name for file in made])
                made = []
            if changes and not made:
                made, keys = write_files(self._log, reader, changes), changes.keys
                edited = bool(changes.edits)
            if not changes or self._log.commit(changes.entry(made)):
                break
        if delete:
            delete_files(self._log, self._log.files().removed)
            clean(self._log, grace=GRACE)

    def _reading(self) -> FileReader:
        return FileReader(self._log, self._footers, without=_without.get())

    async def _read(self, work: Callable[[FileReader], T], *, action: str = "read") -> T:
        return await self._run(action, lambda: work(self._reading()))

    def _new_log(self) -> FileLog:
        call = self._call = ArchiveCall()
        return FileLog(self._objects, self._folder, may_go_on=call.may_go_on)

    async def _run(
        self, action: str, work: Callable[[], T], *, timeout_s: float | None = None
    ) -> T:
        """Run a call in a thread. Errors: ArchiveUnavailable; ArchiveFileMissing."""
        limit_s = timeout_s or self._timeout_s
        async with self._lock:
            self._call.begin(limit_s)
            try:
                async with asyncio.timeout(limit_s):
                    return await in_thread(partial(self._attempts, action, work))
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
        known = ""
        # One more, without the files that are gone.
        for attempt in range(_ATTEMPTS + 1):
            try:
                return work()
            except FileGone as gone:
                if gone.file == known:
                    # A log that was read since it was gone names it still.
                    names = overlooked.get()
                    if names is None:
                        raise ArchiveFileMissing(action, known) from None
                    names.add(known)
                    _without.set(self._log.missing())
                    continue
                # Another process has replaced it since the log was read.
                self._log.forget_files()
                known = gone.file
                if attempt >= _ATTEMPTS - 1:
                    break
            except ArchiveUnavailable:
                raise
            except (ValueError, LookupError, OverflowError, TypeError, pa.ArrowException) as error:
                # Its text may quote what was to be written.
                refused = action == "write"
                raise ArchiveUnavailable(action, type(error).__name__, refused=refused) from None
            except self._objects.problems as error:
                raise ArchiveUnavailable(action, type(error).__name__) from None
        raise ArchiveUnavailable(action, "its files change meanwhile")
