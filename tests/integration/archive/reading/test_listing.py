"""Archived tasks in the order of their creation or of their ends, and months that were dropped."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

pytest.importorskip("pyarrow", reason="needs the parquet extra")

import psycopg

from redis_state import RedisStateStore
from redis_state.archive import ArchivedTask, ArchiveListing, ArchiveReader
from redis_state.archive.encoding import json_of, moment_of_ms
from redis_state.archive.model import ArchiveBatch, ArchivedRow, RecordKind, SessionRows
from redis_state.archive.parquet import finding as of_files
from redis_state.archive.postgres import finding as of_tables
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.protocol import Archive
from redis_state.errors import CursorGap, InvalidField
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.serialization import codec
from redis_state.stores.sessions.task_fields import microseconds
from tests.support.processes.pools import SESSION
from tests.support.servers.postgres import OwnPostgres
from tests.support.tasks.archived.archives import log_of

pytestmark = pytest.mark.worker

_BEGIN = datetime(2025, 3, 1, tzinfo=UTC)


def made(
    number: int,
    *,
    at: datetime = _BEGIN,
    ended: datetime | None = None,
    born: int | None = None,
    version: int = 3,
    **about: Any,
) -> Any:
    """Make an archived task as an archiver would. Without ``ended`` it ended as it was made."""
    names: dict[str, Any] = {"session_id": SESSION, "task_id": f"t{number}", "handler": "answer"}
    names |= {"status": TaskStatus.COMPLETE, "attributes": {}} | about
    document = {"task_type": "BACKGROUND", "created_at": at.isoformat()}
    record = {
        b"status": names["status"].value.encode(),
        b"priority": b"0",
        b"document": codec.encode(document),
        b"job": codec.encode({"handler": names["handler"], "input": None, "secret": ""}),
        b"attributes": codec.encode(names["attributes"]),
        b"order": str(born or 1_700_000_000_000_000 + number).encode(),
        b"version": b"%d" % version,
        b"write": b"w",
        b"updated_at": b"%d" % microseconds(ended or at),
    }
    return ArchivedTask.stored(names["session_id"], names["task_id"], json_of(record), "{}")


async def list_all(archive: Archive, listing: ArchiveListing) -> list[str]:
    """List all pages; each continues behind the one before."""
    found: list[str] = []
    for _ in range(1000):
        page = await archive.find(listing)
        assert len(page.tasks) <= listing.limit
        found += [task.task_id for task in page.tasks]
        if page.end is None:
            return found
        assert page.end != listing.after
        listing = replace(listing, after=page.end)
    raise AssertionError("the listing does not end")


def read_few(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    """Let archives read few tasks for a page."""
    for finding in (of_tables, of_files):
        monkeypatch.setattr(finding, "_LEAST", least)
        monkeypatch.setattr(finding, "_READ_FOR_ONE", 1)


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("limit", [1, 3, 1000])
async def test_pages_have_every_task_once_in_the_order_of_places(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, limit: int, *, newest_first: bool
) -> None:
    read_few(monkeypatch, 2)
    # Three microseconds, with many tasks in each, and some days with one; in several writes.
    tasks = [made(n, at=_BEGIN + timedelta(microseconds=n % 3)) for n in range(25)]
    tasks += [made(n, at=_BEGIN + timedelta(days=n)) for n in range(25, 30)]
    for start in range(0, len(tasks), 7):
        await archive.write(ArchiveBatch(tasks=tasks[start : start + 7]))
    ordered = sorted(tasks, key=lambda task: task.place, reverse=newest_first)
    listing = ArchiveListing(newest_first=newest_first, limit=limit)
    assert await list_all(archive, listing) == [task.task_id for task in ordered]
    until = replace(listing, after=ordered[3].place, until=ordered[20].place)
    assert await list_all(archive, until) == [task.task_id for task in ordered[4:21]]


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("limit", [1, 3, 1000])
async def test_pages_have_every_task_once_in_the_order_of_the_ends(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, limit: int, *, newest_first: bool
) -> None:
    read_few(monkeypatch, 2)
    # The later one was made the earlier it ended; some in one microsecond.
    begin = _BEGIN + timedelta(days=60)
    tasks = [
        made(n, at=_BEGIN + timedelta(days=n), ended=begin - timedelta(days=n)) for n in range(20)
    ]
    tasks += [made(n, ended=begin + timedelta(microseconds=n % 2)) for n in range(20, 30)]
    for start in range(0, len(tasks), 7):
        await archive.write(ArchiveBatch(tasks=tasks[start : start + 7]))
    ordered = sorted(tasks, key=lambda task: task.end_place, reverse=newest_first)
    listing = ArchiveListing(ended_after=_BEGIN, newest_first=newest_first, limit=limit)
    assert await list_all(archive, listing) == [task.task_id for task in ordered]
    until = replace(listing, after=ordered[3].end_place, until=ordered[20].end_place)
    assert await list_all(archive, until) == [task.task_id for task in ordered[4:21]]


async def test_tasks_are_listed_by_their_ends_and_every_other_filter(archive: Archive) -> None:
    def day(number: int) -> datetime:
        return _BEGIN + timedelta(days=number)

    tasks = [
        made(1, ended=day(9), attributes={"n": 1}),
        made(2, at=day(1), ended=day(8), status=TaskStatus.FAILED),
        made(3, at=day(2), ended=day(7), handler="other", status=TaskStatus.FAILED),
        made(4, at=day(3), ended=day(6), session_id="other", attributes={"n": 1}),
        made(5, at=day(4), ended=day(5)),
    ]
    await archive.write(ArchiveBatch(tasks=tasks))

    async def names(**wanted: Any) -> list[str]:
        return await list_all(archive, ArchiveListing(limit=2, **wanted))

    assert await names(ended_after=day(7)) == ["t1", "t2", "t3"]
    assert await names(ended_before=day(7)) == ["t4", "t5"]
    naive = day(6).replace(tzinfo=None)
    assert await names(ended_after=naive, ended_before=day(9)) == ["t2", "t3", "t4"]
    since: dict[str, Any] = {"ended_after": day(0)}
    assert await names(**since, statuses=[TaskStatus.FAILED]) == ["t2", "t3"]
    assert await names(**since, statuses=[TaskStatus.FAILED, TaskStatus.COMPLETE]) == [
        *("t1", "t2", "t3", "t4", "t5")
    ]
    assert await names(**since, handler="other") == ["t3"]
    assert await names(**since, session_id="other") == ["t4"]
    assert await names(**since, attributes={"n": 1}) == ["t1", "t4"]
    assert await names(**since, created_after=day(2), created_before=day(4)) == ["t3", "t4"]
    assert await names(**since, created_before=naive - timedelta(days=5)) == ["t1"]
    # Retried, and ended again: it has the place of that end alone.
    await archive.write(ArchiveBatch(tasks=[made(1, ended=day(4), version=6)]))
    assert await names(**since) == ["t2", "t3", "t4", "t5", "t1"]


async def test_tasks_are_listed_by_every_filter(archive: Archive) -> None:
    long = "h" * 900
    tasks = [
        made(1, attributes={"tenant": "acme", "n": 1}),
        made(2, attributes={"tenant": "acme\0\ud800", "n": True}),
        made(3, handler=long, status=TaskStatus.FAILED),
        made(4, session_id="other", status=TaskStatus.CANCELLED, at=_BEGIN + timedelta(days=40)),
        made(5, handler=long + "x"),
    ]
    await archive.write(ArchiveBatch(tasks=tasks))

    async def names(**wanted: Any) -> set[str]:
        return set(await list_all(archive, ArchiveListing(limit=2, **wanted)))

    assert await names() == {"t1", "t2", "t3", "t4", "t5"}
    assert await names(attributes={"tenant": "acme"}) == {"t1"}
    assert await names(attributes={"tenant": "acme\0\ud800"}) == {"t2"}
    assert await names(attributes={"n": 1}) == {"t1"}
    assert await names(attributes={"n": True}) == {"t2"}
    assert await names(handler=long) == {"t3"}
    assert await names(handler=long, session_id=SESSION) == {"t3"}
    assert await names(session_id="other") == {"t4"}
    assert await names(statuses=[TaskStatus.FAILED, TaskStatus.CANCELLED]) == {"t3", "t4"}
    assert await names(created_after=_BEGIN + timedelta(days=40)) == {"t4"}
    assert await names(created_before=_BEGIN + timedelta(days=40)) == {"t1", "t2", "t3", "t5"}


async def test_of_an_id_that_was_used_again_the_last_task_is_listed(
    archive: Archive,
) -> None:
    old = made(1, status=TaskStatus.FAILED)
    new = made(1, born=1_760_000_000_000_000, at=_BEGIN + timedelta(days=200))
    await archive.write(ArchiveBatch(tasks=[old, new]))
    page = await archive.find(ArchiveListing())
    assert [task.key for task in page.tasks] == [new.key]
    assert await list_all(archive, ArchiveListing(statuses=[TaskStatus.FAILED])) == []


async def test_a_rare_task_among_many_costs_a_bounded_page(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_few(monkeypatch, 5)
    tasks = [made(n, at=_BEGIN + timedelta(seconds=n)) for n in range(40)]
    tasks[3] = made(3, at=_BEGIN + timedelta(seconds=3), attributes={"rare": True})
    await archive.write(ArchiveBatch(tasks=tasks))
    listing = ArchiveListing(attributes={"rare": True}, limit=1)
    first = await archive.find(listing)
    assert (list(first.tasks), first.end is None) == ([], False)
    assert await list_all(archive, listing) == ["t3"]


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
@pytest.mark.parametrize("again", [True, False])
async def test_a_cursor_into_a_month_that_was_dropped_is_a_gap(
    live: RedisStateStore, archive: Archive, postgres: OwnPostgres, *, again: bool
) -> None:
    # January and March stay. In March the log has begun again, or has gone on.
    months = [datetime(2021, month, 10, tzinfo=UTC) for month in (1, 2, 3)]
    numbers = [(1, 2), (3, 4), (1, 2) if again else (5, 6)]
    rows = [
        [_row(live, n, int(at.timestamp() * 1000) + n) for n in pair]
        for at, pair in zip(months, numbers, strict=True)
    ]
    after: tuple[int, int] | None = None
    for month in rows:
        await archive.write(ArchiveBatch(sessions=[SessionRows(SESSION, after, month)]))
        after = month[-1].n, month[-1].ms
    log = log_of(live)
    async with ArchiveReader(live, archive) as reader:
        whole = [entry async for entry in reader.all_updates(SESSION)]
        assert len(whole) == 6
        async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as sql:
            await sql.execute("DROP TABLE redis_state.updates_2021_02")
        for row in (rows[0][1], rows[1][0], rows[1][1]):
            with pytest.raises(CursorGap) as gap:
                await reader.updates(SESSION, after=log.cursor_at(row.n, row.ms))
            assert gap.value.reason == "trimmed"
            page = await reader.updates(SESSION, after=gap.value.resume_after)
            assert [entry.cursor for entry in page.entries] == [each.cursor for each in whole[4:]]
        inside = await reader.updates(SESSION, after=whole[0].cursor, limit=1)
        assert [entry.cursor for entry in inside.entries] == [whole[1].cursor]
        # The last row is known, also when its month is dropped.
        async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as sql:
            await sql.execute("DROP TABLE redis_state.updates_2021_03")
        end = await reader.updates(SESSION, after=whole[-1].cursor)
        assert (end.values, end.at_end) == ([], True)


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
@pytest.mark.parametrize("newest_first", [True, False])
async def test_of_a_microsecond_with_many_tasks_few_are_in_memory_at_once(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, *, newest_first: bool
) -> None:
    read_few(monkeypatch, 4)
    monkeypatch.setattr(of_tables, "_SLICE", 4, raising=False)
    read: list[int] = []

    def counting(owner: Any, name: str) -> None:
        fetch: Any = getattr(owner, name)

        async def counted(*given: Any) -> Any:
            rows = await fetch(*given)
            read.append(len(rows))
            return rows

        monkeypatch.setattr(owner, name, counted)

    # One before, one after, and every other one of those at one time is wanted.
    about: list[dict[str, Any]] = [{"attributes": {"even": n % 2 == 0}} for n in range(40)]
    tasks = [made(n, at=_BEGIN, **about[n]) for n in range(40)]
    tasks += [made(n, at=_BEGIN + timedelta(seconds=n - 41), **about[0]) for n in (40, 42)]
    await archive.write(ArchiveBatch(tasks=tasks))
    wanted = [task for task in tasks if task.attributes["even"]]
    ordered = sorted(wanted, key=lambda task: task.place, reverse=newest_first)
    counting(psycopg.AsyncCursor, "fetchall")
    counting(psycopg.AsyncServerCursor, "fetchmany")
    listing = ArchiveListing(attributes={"even": True}, newest_first=newest_first, limit=3)
    assert await list_all(archive, listing) == [task.task_id for task in ordered]
    assert max(read) <= 4


@pytest.mark.parametrize("limit", [0, -1, True])
async def test_a_limit_that_is_none_is_refused(
    live: RedisStateStore, archive: Archive, limit: int
) -> None:
    async with ArchiveReader(live, archive) as reader:
        for call in (reader.tasks, reader.tasks_or_more, reader.updates, reader.events):
            with pytest.raises(InvalidField, match="limit"):
                await call(SESSION, limit=limit)
        for other in (reader.find(limit=limit), reader.records(RecordKind.EVENT, "t", limit=limit)):
            with pytest.raises(InvalidField, match="limit"):
                await other


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_a_month_of_another_namespace_that_was_dropped_is_no_gap(
    live: RedisStateStore, archive: Archive, postgres: OwnPostgres
) -> None:
    # In a year that no other test has. Of the two namespaces one has no rows in February.
    ms = [int(datetime(2019, month, 10, tzinfo=UTC).timestamp() * 1000) for month in (1, 2, 3)]
    rows = [_row(live, n, at) for n, at in enumerate(ms, start=1)]
    ours = [rows[0], replace(rows[2], n=2)]
    other = PostgresArchive(postgres.url, namespace=f"{live.settings.namespace}-other")
    await other.write(ArchiveBatch(sessions=[SessionRows(SESSION, None, rows)]))
    await archive.write(ArchiveBatch(sessions=[SessionRows(SESSION, None, ours)]))
    await other.retain({"updates": datetime(2019, 3, 1, tzinfo=UTC)})
    await other.aclose()
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as sql:
        found = await sql.execute("SELECT to_regclass('redis_state.updates_2019_02')")
        assert await found.fetchone() == (None,)
        assert await archive.rows(SESSION, after=(1, ms[0]), count=9) == ours[1:]
        # Whose rows a month had is not known of those from before: it may have had ours.
        await sql.execute("INSERT INTO redis_state.months (name) VALUES ('updates_2019_02')")
        assert await archive.rows(SESSION, after=(1, ms[0]), count=9) is None
        await sql.execute("DELETE FROM redis_state.months WHERE namespace = ''")


@pytest.mark.parametrize("again", [True, False])
async def test_a_cursor_into_what_has_expired_is_a_gap(
    live: RedisStateStore, archive: Archive, *, again: bool
) -> None:
    months = [datetime(2021, month, 10, tzinfo=UTC) for month in (1, 2, 3)]
    numbers = [(1, 2), (3, 4), (1, 2) if again else (5, 6)]
    rows = [
        [_row(live, n, int(at.timestamp() * 1000) + n) for n in pair]
        for at, pair in zip(months, numbers, strict=True)
    ]
    after: tuple[int, int] | None = None
    for month in rows:
        await archive.write(ArchiveBatch(sessions=[SessionRows(SESSION, after, month)]))
        after = month[-1].n, month[-1].ms
    log = log_of(live)
    async with ArchiveReader(live, archive) as reader:
        whole = [entry async for entry in reader.all_updates(SESSION)]
        # Two months and a row of the third.
        await archive.retain({"updates": moment_of_ms(rows[2][1].ms)})
        for row in (*rows[0], *rows[1]):
            with pytest.raises(CursorGap) as gap:
                await reader.updates(SESSION, after=log.cursor_at(row.n, row.ms))
            assert gap.value.reason == "trimmed"
            page = await reader.updates(SESSION, after=gap.value.resume_after)
            assert [entry.cursor for entry in page.entries] == [whole[-1].cursor]
        # The last row is known, also when it is not kept: what was before is not written again.
        await archive.retain({"updates": moment_of_ms(rows[2][1].ms + 1)})
        assert await archive.last_rows([SESSION]) == {SESSION: after}
        await archive.write(ArchiveBatch(sessions=[SessionRows(SESSION, None, rows[0])]))
        assert await archive.rows(SESSION, after=None, count=9) == []
        end = await reader.updates(SESSION, after=whole[-1].cursor)
        assert (end.values, end.at_end) == ([], True)
        more = [_row(live, 7, rows[2][1].ms + 5)]
        await archive.write(ArchiveBatch(sessions=[SessionRows(SESSION, after, more)]))
        assert await archive.rows(SESSION, after=None, count=9) == more


async def test_a_cursor_of_a_row_that_was_removed_is_a_gap_whatever_number_follows(
    live: RedisStateStore, archive: Archive
) -> None:
    # The log has begun again, and what is kept of it begins with the number after the cursor's.
    begin = int(datetime(2021, 1, 10, tzinfo=UTC).timestamp() * 1000)
    first = [_row(live, n, begin + n) for n in (1, 2, 3)]
    second = [_row(live, n, begin + 10 + n) for n in (1, 2, 3)]
    await archive.write(ArchiveBatch(sessions=[SessionRows(SESSION, None, first)]))
    after = (first[-1].n, first[-1].ms)
    await archive.write(ArchiveBatch(sessions=[SessionRows(SESSION, after, second)]))
    await archive.retain({"updates": moment_of_ms(begin + 12)})
    async with ArchiveReader(live, archive) as reader:
        with pytest.raises(CursorGap) as gap:
            await reader.updates(SESSION, after=log_of(live).cursor_at(1, first[0].ms))
        page = await reader.updates(SESSION, after=gap.value.resume_after)
        assert [entry.cursor for entry in page.entries] == [
            log_of(live).cursor_at(row.n, row.ms) for row in second[1:]
        ]


def _row(live: RedisStateStore, n: int, ms: int) -> ArchivedRow:
    update = StateUpdate(
        session_id=SESSION, task_id="t", update_type=UpdateType.PROGRESS, content={"n": n}
    )
    return ArchivedRow(n, ms, *_named(live, update))


def _named(live: RedisStateStore, update: StateUpdate) -> tuple[bytes, str, bytes]:
    row_id, data = live.updates.write(update)
    return row_id, "t", data
