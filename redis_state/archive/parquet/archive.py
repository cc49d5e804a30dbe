"""The archive of Parquet files: for any tool to read, with one log that says which files count."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

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
from redis_state.archive.parquet.calls import FileCalls
from redis_state.archive.parquet.ended import ended_tasks
from redis_state.archive.parquet.files.columns import KINDS, folder_of
from redis_state.archive.parquet.files.data_files import NEW
from redis_state.archive.parquet.files.log import LogChange
from redis_state.archive.parquet.files.objects import open_objects
from redis_state.archive.parquet.files.reading import FileReader
from redis_state.archive.parquet.files.writing import (
    FileChanges,
    changes_of,
    erased_in,
    without,
    without_records,
)
from redis_state.archive.parquet.finding import find_tasks
from redis_state.archive.parquet.retention import CLASSES, Expiry
from redis_state.archive.queries import ArchivedPage, ArchiveListing, ArchiveQuery
from redis_state.archive.retention import RetentionReport, check_classes
from redis_state.postgres.text import plain_text, text_of

# From so many new files on they are compacted, by the process that writes such an entry.
_MANY_NEW, _EVERY, _FEW = 256, 64, 8
# The deadline of calls that may read or write again all that is kept. What a call has written and
# not committed is deleted once it is `GRACE` old, which must be longer.
_LONG_S = 300.0


class ParquetArchive:
    """What one namespace has in a folder or in a bucket of an S3-compatible store.

    ``timeout_s`` is the deadline of each call, but for those that may read all. Four calls run at a
    time, each in a thread. No I/O when it is made. Errors: ConfigError for a URL that cannot be
    used.
    """

    def __init__(
        self, url: str | SecretStr, *, namespace: str = "rs", timeout_s: float = 30.0
    ) -> None:
        limit_s = limits.seconds("timeout_s", timeout_s)
        self._namespace = namespace
        plain = url.get_secret_value() if isinstance(url, SecretStr) else url
        objects = open_objects(plain, timeout_s=timeout_s)
        self._calls = FileCalls(objects, folder_of(namespace), limit_s=limit_s)

    def __repr__(self) -> str:
        return f"<ParquetArchive namespace={self._namespace!r}>"

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of data that it keeps."""
        return CLASSES

    async def prepare(self) -> None:
        """Write the first entry of the log, and the id, unless they are there.

        Several processes may call it.
        """
        await self._calls.run("prepare", self._calls.prepare)

    async def identify(self) -> str | None:
        """Return the id, which is of the namespace's folder; None if there is none."""
        return await self._calls.run("read", self._calls.identify)

    async def write(self, batch: ArchiveBatch) -> None:
        """Write a batch in one entry of the log. What is there already is not written again.

        Rows of a session are written only if its last row in the archive is the one that they
        follow. What was erased since it was read is left out. Once many small files have come
        together, a write compacts them too.
        """
        work = partial(changes_of, batch=batch)

        def once() -> bool:
            self._calls.commit(work)
            return self._is_due

        if await self._calls.run("write", once):
            await self._calls.run("compact", lambda: self._calls.compact(_FEW), timeout_s=_LONG_S)

    async def verify(self, batch: ArchiveBatch) -> ArchiveVerdict:
        """Compare a batch with what is read back, by count and by digest."""
        return await self._calls.read(lambda reader: answers.verdict(reader, batch))

    async def last_rows(self, session_ids: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Return number and time of the last row that was written of each session, if any."""

        def look(reader: FileReader) -> dict[str, tuple[int, int]]:
            found = {each: reader.last(plain_text(each)) for each in session_ids}
            return {each: (at[1], at[0]) for each, at in found.items() if at is not None}

        return await self._calls.read(look)

    async def session(self, session_id: str) -> ArchivedSession | None:
        """Return what there is of a session, or None."""
        return await self._calls.read(lambda reader: answers.session(reader, session_id))

    async def tasks(self, query: ArchiveQuery) -> list[ArchivedTask]:
        """Return tasks, the last that ended first; of 4 MiB, or the first.

        An id that was used again has several.
        """
        limits.count("limit", query.limit)
        return await self._calls.read(lambda reader: ended_tasks(reader, query))

    async def find(self, listing: ArchiveListing) -> ArchivedPage:
        """List tasks in the order of their places. See `redis_state.archive.parquet.finding`."""
        limits.count("limit", listing.limit)
        return await self._calls.read(lambda reader: find_tasks(reader, listing))

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
        return await self._calls.read(
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
        return await self._calls.read(
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

        return await self._calls.read(look)

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

        await self._calls.run(
            "forget", lambda: self._calls.commit(work, delete=True), timeout_s=_LONG_S
        )
        return was[-1]

    async def count_records(self, kind: RecordKind, owners: Collection[str]) -> int:
        """Count owners' records of a kind."""
        return await self._calls.read(lambda reader: sharing.count(reader, kind, owners))

    async def first_places(
        self, kind: RecordKind, owner: str, keys: Collection[str]
    ) -> Mapping[str, RecordPlace]:
        """Return of each key the place of an owner's first record that has it, if any has."""
        return await self._calls.read(
            lambda reader: sharing.first_places(reader, kind, owner, keys)
        )

    async def shared_traces(
        self, trace_ids: Collection[str], *, besides: Collection[str]
    ) -> frozenset[str]:
        """Return those of the traces that a session has which is none of ``besides``.

        It reads the traces of all tasks and trajectories.
        """
        return await self._calls.read(
            lambda reader: sharing.shared_traces(reader, trace_ids, besides), timeout_s=_LONG_S
        )

    async def status(self) -> ArchiveStatus:
        """Count what is kept. It reads the sessions' ids of all files."""
        return await self._calls.read(
            lambda reader: answers.status(reader, self._calls.log.missing()),
            action="status",
            timeout_s=_LONG_S,
        )

    async def forget(
        self, session_id: str, *, before_us: int | None = None
    ) -> ArchivedSession | None:
        """Erase a session in one entry of the log; return what there was of it, or None.

        Files that have it are written again without it, and deleted, as is all that compaction
        replaced. What a call left that died before its entry is deleted once it is ten minutes old:
        by the next call of this, or by `retain`, which archivers call once an hour.
        With ``before_us`` nothing of before that time of the Redis server is written again.
        """
        was: list[ArchivedSession | None] = []

        def work(reader: FileReader) -> FileChanges:
            was.append(answers.session(reader, session_id))
            return without(reader, plain_text(session_id), before_us)

        await self._calls.run(
            "forget", lambda: self._calls.commit(work, delete=True), timeout_s=_LONG_S
        )
        # As the entry found it. One whose file had gone was worked out again.
        return was[-1]

    async def erased(self, scopes: Sequence[str]) -> Mapping[str, int]:
        """Return up to which time of the Redis server scopes were erased, in us, if any were."""
        return await self._calls.read(lambda reader: erased_in(reader, scopes))

    async def sessions_of(
        self, attribute: str, value: Any, *, also: Collection[str] = ()
    ) -> Mapping[str, bool]:
        """Return the sessions that have a task with this attribute. It reads it of all tasks.

        Each with whether it has a task with another value of it, too. Of the sessions in
        ``also`` those are in it too that have another value alone.
        """
        return await self._calls.read(
            lambda reader: answers.sessions_of(reader, attribute, value, also), timeout_s=_LONG_S
        )

    async def owners_with(self, kind: RecordKind, parts: Collection[bytes]) -> frozenset[str]:
        """Return the owners of records of a kind whose data has some bytes. It reads all of it."""
        return await self._calls.read(
            lambda reader: sharing.owners_with(reader, kind, parts), timeout_s=_LONG_S
        )

    async def retain(
        self, before: Mapping[str, datetime], *, dry_run: bool = False
    ) -> RetentionReport:
        """Remove of each class what has expired: files whole, and so many rewritten ones at most.

        Rows that have expired are not read any more from the first call on. A large file is
        written again once an eighth of it has expired; until then the report names it as left.
        Files that no entry names are deleted once they are ten minutes old, whatever has expired.
        """
        check_classes(before, self.classes)
        reports: list[RetentionReport] = []

        def work(reader: FileReader) -> FileChanges:
            expiry = Expiry(reader, before, self._calls.log.missing())
            reports.append(expiry.report)
            return FileChanges() if dry_run else expiry.changes

        def once() -> RetentionReport:
            self._calls.commit(work)
            if not dry_run and not reports[-1].more:
                self._calls.clean()
            return reports[-1]

        return await self._calls.run("retain", once, timeout_s=_LONG_S)

    async def compact(self) -> int:
        """Make few files of many; return how many there are fewer. Delete what does not count."""
        return await self._calls.run("compact", lambda: self._calls.compact(1), timeout_s=_LONG_S)

    async def drop_missing(self) -> list[str]:
        """Count files that are missing no more, in one entry of the log; return their names.

        A file that comes back is deleted. What of them Redis still has is archived again once it is
        listed again: see `backfill` and `enlist_records`. Of updates and events that is what
        follows the last one: `forget` a session first to have all of it copied.
        """

        def once() -> list[str]:
            log = self._calls.log
            while missing := sorted(log.missing()):
                if log.commit(LogChange(remove=missing), log.files()):
                    return missing
            return []

        return await self._calls.run("drop", once, timeout_s=_LONG_S)

    def known_files(self) -> dict[str, int]:
        """Count the files of each kind that counted when the log was last read."""
        known = self._calls.log.known
        return {kind: 0 if known is None else len(known.of(kind)) for kind in KINDS}

    async def aclose(self) -> None:
        """Forget what was read."""
        await self._calls.aclose()

    @property
    def _is_due(self) -> bool:
        files = self._calls.log.known
        if files is None or files.n % _EVERY:
            return False
        return any(len(files.at(kind, NEW)) >= _MANY_NEW for kind in KINDS)
