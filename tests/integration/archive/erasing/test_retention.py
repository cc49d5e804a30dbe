"""Retention removes what has expired, and nothing else: months whole, the rest in pieces."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, cast

import psycopg
import pytest
from pydantic import SecretStr

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.archive import open_archive
from redis_state.archive.model import (
    ArchiveBatch,
    ArchivedRecord,
    ArchivedRow,
    ArchivedTask,
    RecordKind,
    SessionRows,
)
from redis_state.archive.parquet.files.log import FileLog
from redis_state.archive.postgres import retention
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.protocol import Archive
from redis_state.archive.queries import ArchiveQuery
from redis_state.archive.retaining import Retainer
from redis_state.archive.retention import RetentionReport
from redis_state.embedded.server import start_embedded
from redis_state.errors import ArchiveUnavailable, ConfigError
from redis_state.testing.clock import ClockSettings
from tests.support.samples import admin
from tests.support.servers.postgres import OwnPostgres

_DAY_MS = 86_400_000
_NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def _task(session: str, task: str, ended: datetime, **attributes: Any) -> ArchivedTask:
    document = {"created_at": ended.isoformat(), "task_type": "BACKGROUND"}
    us = round(ended.timestamp() * 1e6)
    record: dict[bytes, bytes] = {
        b"version": b"3",
        b"write": b"w",
        b"order": b"%d" % us,
        b"status": b"COMPLETE",
        b"document": json.dumps(document).encode(),
        b"job": b'{"handler":"h","secret":"s"}',
        b"updated_at": b"%d" % us,
        b"attributes": json.dumps(attributes).encode(),
    }
    flat = [part for pair in record.items() for part in pair]
    return ArchivedTask.of(session, task, flat, [])


def _rows(*days_ago: int) -> list[ArchivedRow]:
    moments = sorted(_NOW - timedelta(days=ago) for ago in days_ago)
    return [
        ArchivedRow(n, round(at.timestamp() * 1000), b"u%d" % n, "t", b"{}")
        for n, at in enumerate(moments, start=1)
    ]


async def _fill(archive: Archive, session: str, *days_ago: int) -> None:
    tasks = [_task(session, f"t{ago}", _NOW - timedelta(days=ago)) for ago in days_ago]
    await archive.write(ArchiveBatch(tasks, [SessionRows(session, None, _rows(*days_ago))]))


async def _kept(archive: Archive, session: str) -> tuple[int, int]:
    found = await archive.session(session)
    return (0, 0) if found is None else (found.tasks, found.updates)


async def _partitions(postgres: OwnPostgres, table: str) -> set[str]:
    async with await psycopg.AsyncConnection.connect(postgres.url) as connection:
        found = await connection.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass",
            [f"redis_state.{table}"],
        )
        return {name for (name,) in await found.fetchall()}


async def test_what_is_over_goes_and_the_rest_stays(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_PIECE", 2)
    await _fill(archive, "s", 1, 2, 3, 4, 5, 6, 7, 8, 9)
    before = {"tasks": _NOW - timedelta(days=4, hours=1), "updates": _NOW - timedelta(days=6.5)}
    counted = await archive.retain(before, dry_run=True)
    assert counted.rows == {"tasks": 5, "updates": 3}
    assert await _kept(archive, "s") == (9, 9)
    done = await archive.retain(before)
    assert (done.rows, done.more, done.left) == (counted.rows, False, {})
    assert await _kept(archive, "s") == (4, 6)
    assert (await archive.retain(before)).rows == {"tasks": 0, "updates": 0}


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_a_call_has_a_limit_and_says_so(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_PIECE", 2)
    monkeypatch.setattr(retention, "_MOST", 3)
    await _fill(archive, "s", *range(1, 9))
    before = {"tasks": _NOW - timedelta(days=1, hours=1)}
    first = await archive.retain(before)
    assert (first.rows, first.more) == ({"tasks": 3}, True)
    while (await archive.retain(before)).more:
        pass
    assert await _kept(archive, "s") == (1, 8)


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_a_month_is_dropped_whole_only_without_rows_of_another_namespace(
    archive: Archive, postgres: OwnPostgres
) -> None:
    other = PostgresArchive(postgres.url, namespace="another")
    before = {"updates": _NOW - timedelta(days=100), "tasks": _NOW - timedelta(days=100)}
    # Months that other tests of this process have left empty are dropped, too.
    await archive.retain(before)
    # Months that no other test has.
    years = 365 * 30
    await _fill(archive, "mine", 5, years)
    await _fill(archive, "both", years + 400)
    await _fill(other, "both", years + 400)
    months = await _partitions(postgres, "updates")
    report = await archive.retain(before)
    assert (report.rows["updates"], report.partitions["updates"]) == (2, 1)
    assert (report.rows["tasks"], report.partitions["tasks"]) == (2, 1)
    assert len(months - await _partitions(postgres, "updates")) == 1
    assert await _kept(archive, "mine") == (1, 1)
    assert await _kept(other, "both") == (1, 1)
    # A month that was dropped is made again.
    await _fill(archive, "late", years)
    assert await _kept(archive, "late") == (1, 1)
    await other.retain(before)
    await other.aclose()


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_a_partition_in_use_is_left_and_named(
    archive: Archive, postgres: OwnPostgres
) -> None:
    years = 365 * 40
    await _fill(archive, "s", years)
    async with await psycopg.AsyncConnection.connect(postgres.url) as reader:
        at = _NOW - timedelta(days=years)
        part = f"redis_state.updates_{at.year:04d}_{at.month:02d}"
        await reader.execute(f"SELECT count(*) FROM {part}".encode())  # noqa: S608
        before = {"updates": _NOW - timedelta(days=100)}
        report = await archive.retain(before)
        assert report.left == {part.partition(".")[2]: "is in use: a later round removes it"}
        assert await _kept(archive, "s") == (1, 1)
    report = await archive.retain(before)
    assert (report.left, report.partitions["updates"]) == ({}, 1)


async def test_sessions_go_when_nothing_of_them_is_left(archive: Archive) -> None:
    await _fill(archive, "old", 40)
    await _fill(archive, "new", 40, 1)
    before: dict[str, datetime] = dict.fromkeys(archive.classes, _NOW - timedelta(days=30))
    assert (await archive.retain({"sessions": before["sessions"]})).rows == {"sessions": 0}
    report = await archive.retain(before)
    assert +Counter(report.rows) == {"tasks": 2, "updates": 2, "sessions": 1}
    assert set(await archive.last_rows(["old", "new"])) == {"new"}


async def test_processes_may_retain_and_write_at_once(
    archiving: Settings, archive: Archive
) -> None:
    others = [open_archive(archiving) for _ in range(2)]
    await _fill(archive, "s", *range(1, 30))
    before = dict.fromkeys(archive.classes, _NOW - timedelta(days=10, hours=1))

    async def write() -> None:
        try:
            await _fill(others[1], "w", 1, 40)
        except ArchiveUnavailable:
            # Its month was dropped meanwhile. An archiver repeats it, too.
            await _fill(others[1], "w", 1, 40)

    one, two, _ = await asyncio.gather(archive.retain(before), others[0].retain(before), write())
    assert one.rows["tasks"] + two.rows["tasks"] >= 19
    await archive.retain(before)
    assert await _kept(archive, "s") == (10, 10)
    assert await _kept(archive, "w") == (1, 1)
    for each in others:
        await each.aclose()


@pytest.mark.parametrize("archive_url", ["parquet"], indirect=True)
async def test_a_retention_whose_files_another_one_replaces_is_worked_out_again(
    archiving: Settings, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _fill(archive, "s", *range(1, 30))
    before = dict.fromkeys(archive.classes, _NOW - timedelta(days=10, hours=1))
    other, loop, missing = open_archive(archiving), asyncio.get_running_loop(), FileLog.missing
    others: list[RetentionReport] = []

    def come_between(log: FileLog) -> frozenset[str]:
        # In the thread of the call, once it has read which files count.
        monkeypatch.setattr(FileLog, "missing", missing)
        others.append(asyncio.run_coroutine_threadsafe(other.retain(before), loop).result())
        return missing(log)

    monkeypatch.setattr(FileLog, "missing", come_between)
    report = await archive.retain(before)
    assert (others[0].rows["tasks"], report.rows["tasks"]) == (19, 0)
    assert await _kept(archive, "s") == (10, 10)
    await other.aclose()


def test_an_unknown_class_is_refused(archiving: Settings) -> None:
    wrong = archiving.model_copy(update={"archive_retention": {"tasx": timedelta(days=2)}})
    with pytest.raises(ConfigError, match="unknown class 'tasx': known are tasks, updates"):
        open_archive(wrong)
    with pytest.raises(ValueError, match="archive_retention"):
        Settings(url=SecretStr("redis://h"), archive_retention={"tasks": timedelta(hours=1)})


@pytest.mark.parametrize("session", ["", "a:b", "ü\0\\", "\ud800", "x" * 500])
async def test_what_was_erased_is_not_written_again_by_who_read_it_before(
    archive: Archive, session: str
) -> None:
    old = _task(session, "t", _NOW)
    rows = SessionRows(session, None, _rows(3, 2))
    await archive.write(ArchiveBatch([old], [rows]))
    at_us = round((_NOW + timedelta(days=1)).timestamp() * 1e6)
    was = await archive.forget(session, before_us=at_us)
    assert was is not None
    assert (was.tasks, was.updates) == (1, 2)
    assert await archive.erased([session, "other"]) == {session: at_us}
    # Repeated, and of two times the later stands.
    assert await archive.forget(session, before_us=at_us - 5) is None
    assert await archive.erased([session]) == {session: at_us}
    # An archiver that has read the session before.
    late = SessionRows(session, (2, rows.rows[-1].ms), _rows(1))
    await archive.write(ArchiveBatch([old], [rows, late]))
    assert await archive.session(session) is None
    # A new life of the id is archived.
    new = _task(session, "t", _NOW + timedelta(days=2))
    row = ArchivedRow(1, at_us // 1000 + 1, b"u", None, b"{}")
    await archive.write(ArchiveBatch([old, new], [SessionRows(session, None, [row])]))
    assert await _kept(archive, session) == (1, 1)


async def test_a_writer_and_an_erasure_at_once_leave_nothing(
    archiving: Settings, archive: Archive
) -> None:
    writers = [open_archive(archiving) for _ in range(3)]
    at_us = round((_NOW + timedelta(days=1)).timestamp() * 1e6)
    for number in range(15):
        session = f"s{number}"
        await asyncio.gather(
            *(_fill(each, session, 3, 2) for each in writers),
            archive.forget(session, before_us=at_us),
        )
        assert await archive.session(session) is None
    for each in writers:
        await each.aclose()


@pytest.mark.parametrize("value", ['a"b', "ü\\", "x\0y", "\ud800", 7, True, "7"])
async def test_sessions_are_found_by_an_attribute(archive: Archive, value: Any) -> None:
    async def add(session: str, task: str, **attributes: Any) -> None:
        await archive.write(ArchiveBatch([_task(session, task, _NOW, **attributes)]))

    await add("only", "1", user=value, tenant="x")
    await add("only", "2")
    await add("shared", "1", user=value)
    await add("shared", "2", user="somebody else")
    await add("none", "1", user=f"{value}2", xuser=value, other='"user": 7')
    await add("long" * 200, "1", a=1, user=value)
    found = await archive.sessions_of("user", value)
    assert found == {"long" * 200: False, "only": False, "shared": True}


async def test_a_month_that_was_emptied_in_pieces_is_dropped(
    settings: Settings, postgres: OwnPostgres
) -> None:
    archive = PostgresArchive(postgres.url, namespace=f"{settings.namespace}-emptied")
    await archive.prepare()
    was = await _partitions(postgres, "updates")
    await _fill(archive, "s", 2_010, 2_030)
    made = await _partitions(postgres, "updates") - was
    assert made
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as link:
        for name in made:
            await link.execute(f"DELETE FROM {name}".encode())  # noqa: S608 - of ours
    await archive.retain({"updates": _NOW - timedelta(days=1_900)})
    assert not made & await _partitions(postgres, "updates")
    # What is of such a month is written again all the same.
    await _fill(archive, "other", 2_010)
    assert (await _kept(archive, "other"))[1] == 1
    await archive.aclose()


class _LaterKind(StrEnum):
    """A class of records that a newer version has."""

    LATER = "later"


async def test_a_class_of_a_newer_version_is_left_out_and_left_alone(archive: Archive) -> None:
    kind = cast("RecordKind", _LaterKind.LATER)
    later = ArchivedRecord(kind, "s", "k", born_us=1, at_us=1, data=b"x", version=1, write="w")
    known = ArchivedRecord(
        RecordKind.ARTIFACT, "s", "k", born_us=1, at_us=1, data=b"x", version=1, write="w"
    )
    await archive.write(ArchiveBatch(records=[later, known]))
    assert (await archive.verify(ArchiveBatch(records=[known]))).is_whole
    assert (await archive.status()).records == {RecordKind.ARTIFACT: 1}
    session = await archive.session("s")
    assert session is not None
    assert session.records == {RecordKind.ARTIFACT: 1}
    done = await archive.retain({"artifacts": _NOW})
    assert done.rows == {"artifacts": 1}
    if isinstance(archive, PostgresArchive):
        assert await archive.count_records(kind, ["s"]) == 1
        return
    await cast("Any", archive).compact()
    assert (await archive.retain(dict.fromkeys(archive.classes, _NOW))).left == {}
    assert await archive.count_records(kind, ["s"]) == 1
    assert (await archive.status()).records == {}


async def test_what_is_young_stays_although_the_clock_of_the_server_is_ahead(
    archive_url: str,
) -> None:
    server = await asyncio.to_thread(start_embedded, None)
    settings = ClockSettings(
        url=SecretStr(server.url),
        namespace=f"test-clock-{secrets.token_hex(8)}",
        archive_url=SecretStr(archive_url),
        archive_retention={"updates": timedelta(days=30)},
    )
    archive = open_archive(settings)
    try:
        await archive.prepare()
        now_ms = round(datetime.now(UTC).timestamp() * 1000)
        ages = (now_ms - 40 * _DAY_MS, now_ms - _DAY_MS)
        rows = [ArchivedRow(n, ms, b"%d" % n, "t", b"{}") for n, ms in enumerate(ages, start=1)]
        await archive.write(ArchiveBatch(sessions=[SessionRows("s", None, rows)]))
        async with RedisStateStore(settings) as store:
            shift = store.base.keys.test_clock()
            await admin(store, "SET", shift, 400 * _DAY_MS, "PX", _DAY_MS)
            seconds, _ = await store.transport.commands.time()
            assert int(seconds) * 1000 > now_ms + 399 * _DAY_MS
            done = await Retainer(store, archive).run_once()
            assert done is not None
            assert done.rows == {"updates": 1}
            assert await _kept(archive, "s") == (0, 1)
    finally:
        await archive.aclose()
        await asyncio.to_thread(server.stop)


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_a_month_that_was_detached_refuses_its_tasks_and_no_others(
    archive: PostgresArchive, postgres: OwnPostgres
) -> None:
    old, new = (
        _task("s", name, _NOW - timedelta(days=ago)) for name, ago in (("a", 400), ("b", 1))
    )
    await archive.write(ArchiveBatch([old]))
    part = f"redis_state.tasks_{old.ended_at:%Y_%m}"
    later = _task("s", "c", old.ended_at)
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as sql:
        await sql.execute(f"ALTER TABLE redis_state.tasks DETACH PARTITION {part}".encode())
        for batch in ([later], [later, new]):
            with pytest.raises(ArchiveUnavailable) as refused:
                await archive.write(ArchiveBatch(batch))
            # It is the batch that is refused: the archive is not away.
            assert refused.value.refused
        await archive.write(ArchiveBatch([new]))
        # One that is dropped is made again in the same call.
        await sql.execute(f"DROP TABLE {part}".encode())
        await archive.write(ArchiveBatch([later]))
    assert {task.task_id for task in await archive.tasks(ArchiveQuery(session_id="s"))} == {
        "b",
        "c",
    }
