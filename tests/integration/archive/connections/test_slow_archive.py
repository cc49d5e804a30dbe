# pyright: reportPrivateUsage=false
"""A slow archive is not one that is away: calls run beside each other, and footers stay known."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import defaultdict
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("pyarrow", reason="needs the parquet extra")

import psycopg

from redis_state import Settings
from redis_state.archive.model import ArchiveBatch, ArchivedRow, SessionRows
from redis_state.archive.parquet import calls
from redis_state.archive.parquet.archive import ParquetArchive
from redis_state.archive.parquet.files.columns import pq
from redis_state.archive.parquet.files.data_files import Files
from redis_state.archive.parquet.files.log import FileLog, LogChange
from redis_state.archive.parquet.files.objects import FolderObjects
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.protocol import AT_ONCE, Archive, answered, patience
from redis_state.archive.queries import ArchiveListing
from redis_state.errors import ArchiveUnavailable
from redis_state.models import TaskStatus
from redis_state.postgres.connection import PostgresConnection
from redis_state.testing import eventually
from tests.support.servers.postgres import OwnPostgres
from tests.support.tasks.archived.archived_tasks import sample_task


class Gate:
    """Hold the reads of data files from some number on, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, free: int = 0) -> None:
        self.held, self.opened = 0, threading.Event()
        self._free, self._lock = free, threading.Lock()
        get = FolderObjects.get

        def held(its: FolderObjects, name: str) -> bytes | None:
            if name.endswith(".parquet"):
                self._wait()
            return get(its, name)

        monkeypatch.setattr(FolderObjects, "get", held)

    def _wait(self) -> None:
        with self._lock:
            self._free -= 1
            if self._free >= 0:
                return
            self.held += 1
        assert self.opened.wait(60)


async def compacted(folder: Path) -> ParquetArchive:
    """Make an archive of several files, all of them compacted."""
    archive = ParquetArchive(folder.as_uri(), namespace="n")
    await archive.prepare()
    tasks = [sample_task(f"s{n}", "t", 3, at_ms=1_700_000_000_000 + n) for n in range(60)]
    await archive.write(ArchiveBatch(tasks))
    await archive.compact()
    return archive


async def test_an_archive_says_that_it_has_answered(archive: Archive) -> None:
    heard = asyncio.Event()
    answered.set(heard)
    assert await archive.erased(["s"]) == {}
    assert heard.is_set()


async def test_no_open_file_is_read_by_two_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads of one mix, and the process may crash: several sessions of a page are in one file."""
    archive = await compacted(tmp_path)
    readers, opened = defaultdict[int, set[int]](set), list[Any]()
    read = pq.ParquetFile.read_row_group

    def noted(its: Any, *args: Any, **options: Any) -> Any:
        opened.append(its)  # Else another may be in its place.
        readers[id(its)].add(threading.get_ident())
        return read(its, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    assert len((await archive.find(ArchiveListing(limit=100))).tasks) == 60
    threads = set[int]().union(*readers.values())
    assert len(threads) > 1
    assert {len(each) for each in readers.values()} == {1}
    await archive.aclose()


async def test_a_call_of_files_does_not_wait_for_a_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = await compacted(tmp_path)
    gate = Gate(monkeypatch)
    slow = asyncio.ensure_future(archive.find(ArchiveListing(limit=100)))
    await eventually(lambda: gate.held == 1, "the call reads")
    assert await archive.erased(["s1"]) == {}
    # What is committed meanwhile is another call's.
    await archive.write(ArchiveBatch([sample_task("more", "t", 3)]))
    gate.opened.set()
    assert len((await slow).tasks) == 60
    assert len((await archive.find(ArchiveListing(limit=100))).tasks) == 61


async def test_what_is_known_of_files_outlives_a_call_that_nobody_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await compacted(tmp_path)
    archive = ParquetArchive(tmp_path.as_uri(), namespace="n")
    gate = Gate(monkeypatch, free=3)
    call = asyncio.ensure_future(archive.find(ArchiveListing(limit=100)))
    await eventually(lambda: gate.held > 0, "the call reads")
    call.cancel()
    await asyncio.wait({call})
    files = archive._calls.log.known
    assert files is not None
    known = [file for file in files.of("tasks") if archive._calls._footers.metadata(file)]
    assert 0 < len(known) < len(files.of("tasks"))
    # Its threads read no further file.
    gate.opened.set()
    assert len((await archive.find(ArchiveListing(limit=100))).tasks) == 60


def test_a_call_that_ends_late_takes_no_later_entry_of_the_log_away(tmp_path: Path) -> None:
    log = FileLog(FolderObjects(tmp_path), "n")
    log.prepare()
    first, later, again = (log.for_call(lambda: True) for _ in range(3))
    for each in (first, later, again):
        each.files()
    assert later.commit(LogChange(kept_from={"tasks": 1}), later.files())
    again.forget_files()
    log.learn(later)
    log.learn(first)
    log.learn(FileLog(log.objects, log.folder))
    assert log.known is later.known
    # Such a call has found that the store went back.
    log.learn(again)
    assert log.known is None


def test_a_change_counts_only_behind_the_files_that_it_was_worked_out_of(tmp_path: Path) -> None:
    log = FileLog(FolderObjects(tmp_path), "n")
    log.prepare()
    first, second = (log.for_call(lambda: True) for _ in range(2))
    was = first.files()
    assert second.commit(LogChange(kept_from={"tasks": 1}), second.files())
    # Whatever the call has read since.
    assert first.files().kept_from == {"tasks": 1}
    assert not first.commit(LogChange(kept_from={"tasks": 2}), was)
    assert first.files().kept_from == {"tasks": 1}
    assert first.commit(LogChange(kept_from={"tasks": 2}), first.files())


async def test_a_call_of_files_that_gets_no_turn_ends_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = await compacted(tmp_path)
    gate = Gate(monkeypatch)
    slow = [asyncio.ensure_future(archive.find(ArchiveListing(limit=100))) for _ in range(AT_ONCE)]
    await eventually(lambda: gate.held >= AT_ONCE, "all turns are taken")
    with pytest.raises(ArchiveUnavailable, match="no answer"):
        await archive._calls.run("read", lambda: None, timeout_s=0.05)
    gate.opened.set()
    assert [len(page.tasks) for page in await asyncio.gather(*slow)] == [60] * AT_ONCE
    await archive.aclose()


async def test_an_erasure_of_files_may_take_longer_than_other_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await compacted(tmp_path)
    archive = ParquetArchive(tmp_path.as_uri(), namespace="n", timeout_s=0.3)
    gate = Gate(monkeypatch)
    long = [archive.forget("s1"), archive.sessions_of("user", "ann"), archive.status()]
    calls = [asyncio.ensure_future(call) for call in long]
    await eventually(lambda: gate.held >= len(calls), "all of them read")
    # Their time began before that of this one, which is over.
    with pytest.raises(ArchiveUnavailable, match="no answer"):
        await archive.find(ArchiveListing(limit=1))
    gate.opened.set()
    await asyncio.gather(*calls)
    assert (await archive.status()).tasks == 59


async def test_an_erasure_writes_no_file_twice_because_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = await compacted(tmp_path)
    other = ParquetArchive(tmp_path.as_uri(), namespace="n")
    again = [sample_task(f"s{n}", "later", 3, at_ms=1_710_000_000_000) for n in range(60)]
    await archive.write(ArchiveBatch(again))
    commit, create = FileLog.commit, FolderObjects.create
    busy, made = list(range(6)), list[str]()

    def beside(its: FileLog, change: LogChange, files: Files) -> bool:
        if "s1" in erasing and busy:
            erasing.clear()
            asyncio.run(other.write(ArchiveBatch([sample_task("s2", f"b{busy.pop()}", 3)])))
            erasing.add("s1")
        return commit(its, change, files)

    def counted(its: FolderObjects, name: str, data: bytes) -> bool:
        if erasing and name.endswith(".parquet"):
            made.append(name)
        return create(its, name, data)

    erasing = {"s1"}
    monkeypatch.setattr(FileLog, "commit", beside)
    monkeypatch.setattr(FolderObjects, "create", counted)
    found = await archive.forget("s1")
    assert found is not None
    assert (found.tasks, busy) == (2, [])
    # One for each file that had it, although six others came between.
    assert len(made) == 2
    assert (await other.status()).tasks == 60 + 60 - 2 + 6
    assert await other.session("s1") is None


async def test_an_erasure_in_postgresql_may_take_longer_than_other_calls(
    postgres: OwnPostgres, settings: Settings
) -> None:
    prepared = PostgresArchive(postgres.url, namespace=settings.namespace)
    await prepared.prepare()
    await prepared.write(ArchiveBatch([sample_task("s", "t", 3)]))
    await prepared.aclose()
    archive = PostgresArchive(postgres.url, namespace=settings.namespace, timeout_s=0.3)
    with psycopg.connect(postgres.url) as beside:
        beside.execute("LOCK TABLE redis_state.tasks IN ACCESS EXCLUSIVE MODE")
        forgetting = asyncio.ensure_future(archive.forget("s", before_us=1))
        await eventually(lambda: not archive._calls._free, "the erasure waits")
        with pytest.raises(ArchiveUnavailable, match="no answer"):
            await archive.find(ArchiveListing(limit=1))
        assert not forgetting.done()
        beside.rollback()
    found = await forgetting
    assert found is not None
    assert found.tasks == 1
    await archive.aclose()


async def shown(calls: AbstractAsyncContextManager[PostgresConnection], name: str) -> Any:
    async with calls as connection:
        found = await connection.execute(
            "SELECT setting::int FROM pg_settings WHERE name = %s", [name]
        )
        return (await found.fetchone() or [None])[0]


async def test_postgresql_ends_what_nobody_waits_for(
    postgres: OwnPostgres, settings: Settings
) -> None:
    archive = PostgresArchive(postgres.url, namespace=settings.namespace)
    using, long = archive._calls.using, archive._calls.using_long
    assert await shown(using("read"), "statement_timeout") == 60_000
    assert 1_700_000 < await shown(long("read"), "statement_timeout") <= 1_800_000
    given = patience.set(asyncio.get_running_loop().time() + 120)
    assert 60_000 < await shown(long("read"), "statement_timeout") <= 120_000
    patience.reset(given)
    assert await shown(using("read"), "client_connection_check_interval") in (10_000, None)
    # An operator may have chosen another time.
    own = f"{postgres.url}&options=-cclient_connection_check_interval%3D7s"
    asked = PostgresArchive(own, namespace=settings.namespace)
    assert await shown(asked._calls.using("read"), "client_connection_check_interval") == 7_000
    await archive.aclose()
    await asked.aclose()


async def test_a_rare_status_is_found_in_one_page(
    postgres: OwnPostgres, settings: Settings
) -> None:
    archive = PostgresArchive(postgres.url, namespace=settings.namespace)
    await archive.prepare()
    failed = [sample_task("s", f"t{n}", 3, at_ms=1_700_000_000_000 + n) for n in range(420)]
    complete = [
        replace(
            each,
            status=TaskStatus.COMPLETE,
            record=dict(each.record) | {b"status": b"COMPLETE"},
        )
        for each in failed
    ]
    await archive.write(ArchiveBatch([failed[0], *complete[1:]]))
    page = await archive.find(ArchiveListing(statuses=(TaskStatus.FAILED,), limit=10))
    assert ([task.task_id for task in page.tasks], page.end) == (["t0"], None)
    await archive.aclose()


async def test_a_new_month_waits_for_no_query_and_has_the_indexes_of_the_others(
    postgres: OwnPostgres, settings: Settings
) -> None:
    archive = PostgresArchive(postgres.url, namespace=settings.namespace)
    await archive.prepare()
    # A month that no other test has.
    rows = [ArchivedRow(1, 4_000_000_000_000, b"1", "t", b"[1]")]
    batch = ArchiveBatch(
        [sample_task("s", "t", 3, at_ms=4_000_000_000_000)], [SessionRows("s", None, rows)]
    )
    with psycopg.connect(postgres.url) as beside:
        beside.execute("SELECT count(*) FROM redis_state.tasks")
        beside.execute("SELECT count(*) FROM redis_state.updates")
        await archive.write(batch)
        assert (await archive.verify(batch)).is_whole
        indexes = beside.execute(
            """SELECT parent.relname, count(own.oid) FROM pg_class AS parent
            JOIN pg_index AS its ON its.indrelid = parent.oid
            LEFT JOIN pg_inherits AS tree ON tree.inhparent = its.indexrelid
            LEFT JOIN pg_index AS part ON part.indexrelid = tree.inhrelid
            LEFT JOIN pg_class AS own ON own.oid = part.indrelid AND own.relname LIKE '%_2096_10'
            WHERE parent.oid IN ('redis_state.tasks'::regclass, 'redis_state.updates'::regclass)
            GROUP BY parent.relname, its.indexrelid"""
        ).fetchall()
    # Each index of a table has one of the month, and the month has no other.
    assert {count for _, count in indexes} == {1}
    with psycopg.connect(postgres.url) as beside:
        own = beside.execute(
            "SELECT count(*) FROM pg_indexes WHERE tablename LIKE '%s_2096_10'"
        ).fetchone()
    assert own == (len(indexes),)
    await archive.aclose()


async def test_a_call_of_postgresql_does_not_wait_for_a_slow_one(
    postgres: OwnPostgres, settings: Settings
) -> None:
    archive = PostgresArchive(postgres.url, namespace=settings.namespace)
    await archive.prepare()
    with psycopg.connect(postgres.url) as beside:
        beside.execute("LOCK TABLE redis_state.tasks IN ACCESS EXCLUSIVE MODE")
        calls: list[Any] = [
            asyncio.ensure_future(archive.find(ArchiveListing(limit=10)))
            for _ in range(2 * AT_ONCE)
        ]
        waiting = archive._calls._turns
        await eventually(lambda: len(waiting._waiters or ()) == AT_ONCE, "all turns are taken")
        for call in calls[1:AT_ONCE]:
            call.cancel()
        await asyncio.wait(calls[1:AT_ONCE])
        for call in calls[AT_ONCE:]:
            call.cancel()
        await asyncio.wait(calls[AT_ONCE:])
        assert await archive.erased(["s"]) == {}
        beside.rollback()
    assert not (await calls[0]).tasks
    # Of its connections those are left that no call was cancelled on.
    assert len(archive._calls._free) == 2
    await archive.aclose()
    assert not archive._calls._free


async def test_calls_of_a_folder_that_says_nothing_leave_a_bounded_number_of_threads(
    tmp_path: Path,
) -> None:
    await compacted(tmp_path)
    archive = ParquetArchive(tmp_path.as_uri(), namespace="n", timeout_s=0.02)
    log = tmp_path / "namespace=n" / "log"
    first = max(log.glob("*.whole.json"))
    kept = first.read_bytes()
    # To open it waits for who writes it, as for a server of files that has gone.
    first.unlink()
    silent = tmp_path / "silent"
    os.mkfifo(silent)
    os.link(silent, first)

    # Those of tests before this one end when they do.
    others = set(threading.enumerate())

    def left() -> int:
        named = [each.name for each in threading.enumerate() if each not in others]
        return named.count("redis-state-archive")

    for _ in range(calls._MOST_THREADS + 8):
        with pytest.raises(ArchiveUnavailable):
            await archive.erased(["s1"])
    assert 0 < left() <= calls._MOST_THREADS
    with pytest.raises(ArchiveUnavailable, match="earlier calls"):
        await archive.erased(["s1"])
    (log / "kept").write_bytes(kept)
    (log / "kept").rename(first)

    def have_ended() -> bool:
        # One may open it again, behind the writer that it has waited for.
        os.close(os.open(silent, os.O_RDWR))
        return left() == 0

    await eventually(have_ended, "they end")
    patient = ParquetArchive(tmp_path.as_uri(), namespace="n")
    assert await patient.erased(["s1"]) == {}
