"""What a retention is to remove from PostgreSQL: whole months, and a part of others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import psycopg

from redis_state import RedisStateStore
from redis_state.archive.model import (
    ArchiveBatch,
    ArchivedRecord,
    ArchivedRow,
    RecordKind,
    SessionRows,
)
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.retaining import Retainer
from redis_state.archive.retention import RetentionReport
from redis_state.models.tasks import utc_now
from tests.support.tasks.archived.archived_tasks import sample_task

LIFETIME = timedelta(days=30)
RETENTION = dict.fromkeys(("tasks", "updates", "sessions", "trajectories"), LIFETIME)
# Of so many days ago, in a month each. Another namespace has rows in one of those that are over.
_AGES, _YOUNG, _SHARED = (400, 300, 200, 5), 5, 300
# One session has only what is over.
_GONE = (400, 300)
_OTHER = "other"


class Retained:
    """An archive with what is over and what is not, and what is wrong with it by now."""

    def __init__(self, url: str, namespace: str, now: datetime | None = None) -> None:
        self._url = url
        self._namespace = namespace
        self.now: datetime = now or utc_now()

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[tuple[PostgresArchive, PostgresArchive]]:
        both = [PostgresArchive(self._url, namespace=each) for each in (self._namespace, _OTHER)]
        try:
            yield both[0], both[1]
        finally:
            for each in both:
                await each.aclose()

    async def fill(self) -> None:
        """Make the tables again, and write."""
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as beside:
            await beside.execute("SET client_min_messages = warning")
            await beside.execute("DROP SCHEMA IF EXISTS redis_state CASCADE")
        async with self._open() as (archive, other):
            await archive.prepare()
            await archive.write(self._batch("kept", _AGES))
            await archive.write(self._batch("gone", _GONE))
            await other.write(self._batch("theirs", (_SHARED, _YOUNG)))

    async def problems(self, *, done: bool) -> list[str]:
        """Return what is lost, and with ``done`` what is there still."""
        found: list[str] = []
        rows, young = self._rows(_AGES), self._rows(_AGES)[-1]
        async with self._open() as (archive, other):
            theirs = await other.session("theirs")
            if theirs is None or (theirs.tasks, theirs.updates) != (2, 2):
                found.append(f"of another namespace there is {theirs}")
            kept = await archive.rows("kept", after=None, count=99) or []
            if not kept or kept != rows[-len(kept) :]:
                found.append(f"no end of the rows: {kept}")
            found += [
                f"no gap behind row {row.n}"
                for row in rows[: len(rows) - len(kept)]
                if await archive.rows("kept", after=(row.n, row.ms), count=99) is not None
            ]
            if await archive.last_rows(["kept"]) != {"kept": (young.n, young.ms)}:
                found.append("another last row")
            session = await archive.session("kept")
            records = await archive.records(RecordKind.TRAJECTORY, "kept")
            if session is None or session.tasks < 1 or f"k{_YOUNG}" not in {r.key for r in records}:
                found.append(f"of what is young there is {session}, {records}")
            if done:
                counts = (session and session.tasks, len(kept), len(records))
                if counts != (1, 1, 1) or await archive.session("gone") is not None:
                    found.append(f"too much is there: {counts}")
                found += await self._months()
                # What was removed does not come again.
                await archive.write(self._batch("kept", _AGES[:-1], tasks=False))
                if await archive.rows("kept", after=None, count=99) != kept:
                    found.append("removed rows are there again")
        return found

    async def _months(self) -> list[str]:
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as beside:
            parts = await beside.execute(
                "SELECT count(*) FROM pg_inherits JOIN pg_class ON oid = inhparent"
                " WHERE relkind = 'p'"
            )
            named = await beside.execute(
                "SELECT count(*) FROM redis_state.months WHERE namespace = %s", [self._namespace]
            )
            counts = *(await parts.fetchone() or ()), *(await named.fetchone() or ())
        # Two months of three tables, and what says that there were four.
        return [] if counts == (6, 4) else [f"months: {counts}"]

    def _rows(self, ages: Sequence[int]) -> list[ArchivedRow]:
        return [
            ArchivedRow(n, self._ms(age), b"u%d" % age, "t", b"{}")
            for n, age in enumerate(ages, start=1)
        ]

    def _ms(self, age: int) -> int:
        return round((self.now - timedelta(days=age)).timestamp() * 1000)

    def _batch(self, session: str, ages: Sequence[int], *, tasks: bool = True) -> ArchiveBatch:
        rows = SessionRows(session, None, self._rows(ages))
        if not tasks:
            return ArchiveBatch(sessions=[rows])
        return ArchiveBatch(
            [sample_task(session, f"t{age}", 3, at_ms=self._ms(age)) for age in ages],
            [rows],
            [
                ArchivedRecord(
                    RecordKind.TRAJECTORY,
                    session,
                    f"k{age}",
                    born_us=self._ms(age) * 1000,
                    at_us=self._ms(age) * 1000,
                    data=b"{}",
                    version=1,
                    write="w",
                )
                for age in ages
            ],
        )


async def next_round(store: RedisStateStore, archive: PostgresArchive) -> RetentionReport | None:
    """Have the next round come: an hour later, if one has begun."""
    await store.transport.commands.unlink(store.base.keys.archive_retention())
    return await Retainer(store, archive).run_once()
