"""The archive in PostgreSQL: plain tables, for anyone to read with SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection
from pydantic import SecretStr

from redis_state import limits
from redis_state.archive.encoding import moment_of_ms, moment_of_us
from redis_state.archive.erased import scope_of, session_scope
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
    counts_of,
)
from redis_state.archive.postgres import erasing
from redis_state.archive.postgres import statements as sqls
from redis_state.archive.postgres.calls import (
    LONG_S,
    NoMonthError,
    PostgresCalls,
    although_in_a_deadlock,
)
from redis_state.archive.postgres.finding import PAGE_BYTES, find_tasks
from redis_state.archive.postgres.retention import CLASSES, Retaining
from redis_state.archive.postgres.rows import ms_of, record_of, row_of, task_of, us_of
from redis_state.archive.postgres.schema import identity, is_dropped, is_migrated, migrate
from redis_state.archive.postgres.verifying import verify_records, verify_rows, verify_tasks
from redis_state.archive.postgres.writing import MadeMonths, write_batch
from redis_state.archive.queries import ArchivedPage, ArchiveListing, ArchiveQuery
from redis_state.archive.retention import RetentionReport, check_classes
from redis_state.errors import ArchiveUnavailable
from redis_state.postgres.text import id_of, id_text

_NONE = (0, 0)
_MIGRATION_S = 3600.0


class PostgresArchive:
    """What one namespace has in a PostgreSQL database, over four connections at most.

    ``timeout_s`` is the deadline of each call, its connection included, but for those that may read
    all. No I/O when it is made.
    """

    def __init__(
        self, url: str | SecretStr, *, namespace: str = "rs", timeout_s: float = 30.0
    ) -> None:
        self._namespace = id_text(namespace)
        self._months = MadeMonths(self._namespace)
        self._calls = PostgresCalls(
            url if isinstance(url, SecretStr) else SecretStr(url),
            timeout_s=limits.seconds("timeout_s", timeout_s),
            failed=self._months.forget,
        )

    def __repr__(self) -> str:
        return f"<PostgresArchive namespace={self._namespace!r}>"

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of data that it keeps."""
        return CLASSES

    async def prepare(self) -> None:
        """Make the tables and the id, unless they are there.

        Several processes may call it at once.
        """
        async with self._calls.using("prepare") as connection:
            if await is_migrated(connection):
                return
        async with self._calls.using("prepare", timeout_s=_MIGRATION_S) as connection:
            encoding = connection.info.parameter_status("server_encoding")
            if encoding != "UTF8":
                raise ArchiveUnavailable(
                    "prepare", f"the database's encoding is {encoding}, not UTF8"
                )
            await migrate(connection)

    async def identify(self) -> str | None:
        """Return the id, which is of the database; None if there is none."""
        async with self._calls.using("read") as connection:
            return await identity(connection)

    async def write(self, batch: ArchiveBatch) -> None:
        """Write a batch in one transaction. What is there already is not written again.

        Rows of a session are written only if its last row in the archive is the one that they
        follow: so what was read before the server lost rows never comes after it. What was erased
        since it was read is left out.
        """

        async def once() -> None:
            async with self._calls.using("write", settled=False) as connection:
                await self._months.make(connection, batch)
                async with (
                    connection.settled(),
                    connection.transaction(),
                    connection.cursor() as cursor,
                ):
                    left = await erasing.without_erased(cursor, self._namespace, batch)
                    await write_batch(cursor, self._namespace, left)

        # A month that another process has dropped is made again. One that stands apart, or refuses
        # the row, is no other for that.
        with suppress(NoMonthError):
            return await although_in_a_deadlock(once)
        return await although_in_a_deadlock(once)

    async def verify(self, batch: ArchiveBatch) -> ArchiveVerdict:
        """Compare a batch with what is kept, by count and by digests that the server makes."""
        async with self._calls.using("verify") as connection, connection.cursor() as cursor:
            tasks = await verify_tasks(cursor, self._namespace, batch.tasks)
            sessions = await verify_rows(cursor, self._namespace, batch.sessions)
            records = await verify_records(cursor, self._namespace, batch.records)
            return ArchiveVerdict(tasks, sessions, records)

    async def last_rows(self, session_ids: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Return number and time of the last row that was written of each session, if any."""
        by_text = {id_text(each): each for each in session_ids}
        async with self._calls.using("read") as connection:
            found = await connection.execute(sqls.LAST_ROWS, [self._namespace, list(by_text)])
            return {
                by_text[session]: (n, ms_of(at))
                for session, at, n in await found.fetchall()
                if n or ms_of(at)
            }

    async def session(self, session_id: str) -> ArchivedSession | None:
        """Return what there is of a session, or None."""
        async with self._calls.using("read") as connection:
            return await self._session(connection, session_id)

    async def tasks(self, query: ArchiveQuery) -> list[ArchivedTask]:
        """Return tasks, the last that ended first; of 4 MiB, or the first.

        An id that was used again has several.
        """
        limits.count("limit", query.limit)
        conditions, values = sqls.conditions(self._namespace, query)
        statement = sqls.TASKS.format(conditions=" AND ".join(conditions))
        async with self._calls.using("read") as connection:
            found = await connection.execute(statement.encode(), [*values, query.limit, PAGE_BYTES])
            return [task_of(row) for row in await found.fetchall()]

    async def find(self, listing: ArchiveListing) -> ArchivedPage:
        """List tasks in the order of their places. See `redis_state.archive.postgres.finding`."""
        limits.count("limit", listing.limit)
        async with self._calls.using("read") as connection:
            return await find_tasks(connection, self._namespace, listing)

    async def rows(
        self,
        session_id: str,
        *,
        after: tuple[int, int] | None,
        count: int,
        over_gaps: bool = False,
    ) -> list[ArchivedRow] | None:
        """Return rows behind a row's number and time, the oldest first; of 4 MiB, or the first.

        Rows that the server has lost are left out. None if that row is not kept, unless it is the
        place just before the next one. None, too, if a month between the two was dropped. With
        ``over_gaps`` the rows that are kept behind it.
        """
        limits.count("count", count)
        n, ms = after or _NONE
        place = [self._namespace, id_text(session_id), moment_of_ms(ms), n]
        async with self._calls.using("read") as connection:
            found = await connection.execute(sqls.ROWS_AFTER, [*place, count, PAGE_BYTES])
            rows = [row_of(row) for row in await found.fetchall()]
            if after is None or over_gaps:
                return rows
            if rows and await is_dropped(
                connection, self._namespace, moment_of_ms(ms), moment_of_ms(rows[0].ms)
            ):
                return None
            if rows and (rows[0].n, rows[0].ms) == (n + 1, ms):
                # Where a `CursorGap` reads on: just before a row that is kept.
                return rows
            found = await connection.execute(sqls.HAS_ROW, place)
            return None if await found.fetchone() is None else rows

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
        place = [moment_of_us(born_us), n, id_text(last)]
        wanted = None if key is None else id_text(key)
        named = [self._namespace, kind.value, id_text(owner)]
        async with self._calls.using("read") as connection:
            found = await connection.execute(
                sqls.RECORDS, [*named, *place, wanted, limit, PAGE_BYTES]
            )
            return [record_of(kind, row) for row in await found.fetchall()]

    async def last_records(
        self, kind: RecordKind, owners: Sequence[str], *, before_us: int | None = None
    ) -> Mapping[str, RecordPlace]:
        """Return the place of the last record of a kind that each owner has, if it has any.

        With ``before_us`` the last of those that were born before that time.
        """
        by_text = {id_text(each): each for each in owners}
        before = None if before_us is None else moment_of_us(before_us)
        async with self._calls.using("read") as connection:
            found = await connection.execute(
                sqls.LAST_RECORDS, [list(by_text), self._namespace, kind.value, before]
            )
            return {
                by_text[owner]: (us_of(born), n, id_of(key, whole, 1))
                for owner, born, n, key, whole in await found.fetchall()
            }

    async def forget_records(
        self, kind: RecordKind, owners: Collection[str], *, before_us: int
    ) -> int:
        """Erase owners' records of a kind, in one transaction; return how many there were.

        It holds a lock of each owner, of which a server has some thousands for all.
        """

        async def once() -> int:
            async with self._calls.using_long("forget") as connection:
                scopes = [scope_of(kind, owner) for owner in owners]
                await erasing.mark(connection, self._namespace, scopes, before_us)
                done = await connection.execute(
                    sqls.FORGET_RECORDS,
                    [self._namespace, kind.value, [id_text(owner) for owner in owners]],
                )
                return done.rowcount

        return await although_in_a_deadlock(once)

    async def count_records(self, kind: RecordKind, owners: Collection[str]) -> int:
        """Count owners' records of a kind."""
        async with self._calls.using("read") as connection:
            found = await connection.execute(
                sqls.COUNT_RECORDS,
                [self._namespace, kind.value, [id_text(owner) for owner in owners]],
            )
            row: Any = await found.fetchone()
            return int(row[0])

    async def first_places(
        self, kind: RecordKind, owner: str, keys: Collection[str]
    ) -> Mapping[str, RecordPlace]:
        """Return of each key the place of an owner's first record that has it, if any has."""
        by_text = {id_text(each): each for each in keys}
        async with self._calls.using("read") as connection:
            found = await connection.execute(
                sqls.FIRST_PLACES, [self._namespace, kind.value, id_text(owner), list(by_text)]
            )
            return {
                by_text[key]: (us_of(born), n, by_text[key])
                for key, born, n in await found.fetchall()
            }

    async def shared_traces(
        self, trace_ids: Collection[str], *, besides: Collection[str]
    ) -> frozenset[str]:
        """Return those of the traces that a session has which is none of ``besides``."""
        by_text = {id_text(each): each for each in trace_ids}
        others = [self._namespace, [id_text(each) for each in besides]]
        async with self._calls.using_long("read") as connection:
            found = await connection.execute(sqls.SHARED_TRACES, [list(by_text), *others, *others])
            return frozenset(by_text[trace] for (trace,) in await found.fetchall())

    async def status(self) -> ArchiveStatus:
        """Count what is kept. It reads all of the namespace's keys."""
        async with self._calls.using_long("read") as connection:
            found = await connection.execute(sqls.STATUS, {"namespace": self._namespace})
            row: Any = await found.fetchone()
            found = await connection.execute(sqls.RECORD_COUNTS, [self._namespace])
            kinds = counts_of(dict(await found.fetchall()))
            return replace(ArchiveStatus(*row), records=kinds)

    async def forget(
        self, session_id: str, *, before_us: int | None = None
    ) -> ArchivedSession | None:
        """Erase a session in one transaction; return what there was of it, or None.

        With ``before_us`` nothing of before that time of the Redis server is written again.
        """

        async def once() -> ArchivedSession | None:
            async with self._calls.using_long("forget") as connection:
                scope = session_scope(session_id)
                await erasing.mark(connection, self._namespace, [scope], before_us)
                was = await self._session(connection, session_id)
                for statement in sqls.FORGET:
                    await connection.execute(statement, [self._namespace, id_text(session_id)])
                return was

        return await although_in_a_deadlock(once)

    async def erased(self, scopes: Sequence[str]) -> Mapping[str, int]:
        """Return up to which time of the Redis server scopes were erased, in us, if any were."""
        async with self._calls.using("read") as connection, connection.cursor() as cursor:
            return await erasing.marks(cursor, self._namespace, scopes)

    async def sessions_of(
        self, attribute: str, value: Any, *, also: Collection[str] = ()
    ) -> Mapping[str, bool]:
        """Return the sessions that have a task with this attribute. It reads all tasks.

        Each with whether it has a task with another value of it, too. Of the sessions in
        ``also`` those are in it too that have another value alone.
        """
        async with self._calls.using_long("read") as connection:
            return await erasing.sessions_of(connection, self._namespace, attribute, value, also)

    async def owners_with(self, kind: RecordKind, parts: Collection[bytes]) -> frozenset[str]:
        """Return the owners of records of a kind whose data has some bytes. It reads all of it."""
        async with self._calls.using_long("read") as connection:
            return await erasing.owners_with(connection, self._namespace, kind, parts)

    async def retain(
        self, before: Mapping[str, datetime], *, dry_run: bool = False
    ) -> RetentionReport:
        """Remove of each class what has expired, 20,000 rows at most and whole months."""
        check_classes(before, self.classes)

        report = RetentionReport()

        async def once() -> None:
            # In transactions of its own: what is locked is soon free again.
            async with self._calls.using("retain", timeout_s=LONG_S, settled=False) as connection:
                work = Retaining(connection, self._namespace, dry_run=dry_run, report=report)
                await work.run(before)

        await although_in_a_deadlock(once)
        self._months.forget()
        return report

    async def aclose(self) -> None:
        """Disconnect."""
        await self._calls.aclose()

    async def _session(
        self, connection: AsyncConnection[Any], session_id: str
    ) -> ArchivedSession | None:
        found = await connection.execute(
            sqls.SESSION, {"namespace": self._namespace, "session": id_text(session_id)}
        )
        row: Any = await found.fetchone()
        tasks, updates, last_at, last_n = row
        owned = await connection.execute(
            sqls.RECORDS_OF_SESSION, [self._namespace, id_text(session_id)]
        )
        records = {RecordKind(kind): count for kind, count in await owned.fetchall()}
        if not tasks and last_at is None and not records:
            return None
        last = None if last_at is None or not last_n else (last_n, ms_of(last_at))
        return ArchivedSession(session_id, tasks, updates, last, records)
