"""Who changes files of the archive while others do: what they leave out stays out, once."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from io import BytesIO
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the parquet extra")

from redis_state.archive.model import ArchiveBatch, ArchivedRow, ArchivedTask, SessionRows
from redis_state.archive.parquet import calls
from redis_state.archive.parquet.archive import ParquetArchive
from redis_state.archive.parquet.files import compacting, log
from redis_state.archive.parquet.files.columns import pq
from redis_state.archive.parquet.files.data_files import Files
from redis_state.archive.parquet.files.log import FileLog, LogChange
from redis_state.archive.parquet.files.objects import FolderObjects
from redis_state.archive.queries import ArchiveListing, ArchiveQuery
from redis_state.errors import ArchiveUnavailable, ConfigError
from tests.support.tasks.archived.archived_tasks import sample_task

_BEGIN_MS = 1_700_000_000_000
_ROWS = [ArchivedRow(n, _BEGIN_MS + n, b"%d" % n, "t", b"[1]") for n in range(1, 9)]


def meanwhile(monkeypatch: pytest.MonkeyPatch, does: Callable[[], Awaitable[Any]]) -> list[int]:
    """Have another process do something just before the next entry is written; count it."""
    commit, did = FileLog.commit, list[int]()

    def raced(its: FileLog, change: LogChange, files: Files) -> bool:
        if not did:
            did.append(1)
            asyncio.run(_whole(does))
        return commit(its, change, files)

    monkeypatch.setattr(FileLog, "commit", raced)
    return did


async def _whole(does: Callable[[], Awaitable[Any]]) -> None:
    await does()


async def test_two_who_erase_one_session_at_once_leave_others_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (ParquetArchive(tmp_path.as_uri()) for _ in range(2))
    await one.prepare()
    tasks = [sample_task(session, "t", 3, at_ms=_BEGIN_MS) for session in ("gone", "stays")]
    await one.write(
        ArchiveBatch(tasks, [SessionRows(each, None, _ROWS) for each in ("gone", "stays")])
    )
    at_us = (_BEGIN_MS + 100) * 1000
    did = meanwhile(monkeypatch, lambda: other.forget("gone", before_us=at_us))
    await one.forget("gone", before_us=at_us + 1)
    assert did
    assert await one.erased(["gone"]) == {"gone": at_us + 1}
    assert await one.rows("stays", after=None, count=99) == _ROWS
    assert [each.session_id for each in await one.tasks(ArchiveQuery())] == ["stays"]


async def test_two_who_keep_retention_at_once_leave_tasks_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (ParquetArchive(tmp_path.as_uri()) for _ in range(2))
    await one.prepare()
    tasks = [sample_task("s", str(n), 3, at_ms=_BEGIN_MS + n * 60_000) for n in range(4)]
    await one.write(ArchiveBatch(tasks))
    first, second = (tasks[n].ended_at for n in (1, 2))
    did = meanwhile(monkeypatch, lambda: other.retain({"tasks": second}))
    await one.retain({"tasks": first, "updates": first})
    assert did
    left = await one.tasks(ArchiveQuery())
    assert sorted(each.task_id for each in left) == ["2", "3"]


async def test_who_was_stopped_while_the_log_went_on_says_that_it_wrote_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (ParquetArchive(tmp_path.as_uri()) for _ in range(2))
    await one.prepare()
    # `one` stands still from here on, for longer than what counts no more is kept.
    monkeypatch.setattr(calls, "GRACE", timedelta(0))

    async def go_on() -> None:
        await other.write(ArchiveBatch([sample_task("s", "other", 3, at_ms=_BEGIN_MS)]))
        await other.write(ArchiveBatch([sample_task("s", "other", 4, at_ms=_BEGIN_MS)]))
        await other.compact()

    did = meanwhile(monkeypatch, go_on)
    batch = ArchiveBatch([sample_task("s", "one", 3, at_ms=_BEGIN_MS)])
    with pytest.raises(ArchiveUnavailable, match="went on"):
        await one.write(batch)
    assert did
    assert not (await one.verify(batch)).is_whole
    await one.write(batch)
    for each in (one, other):
        assert (await each.verify(batch)).is_whole
        assert (await each.status()).tasks == 2


async def test_a_folder_that_went_back_and_on_is_read_again(tmp_path: Path) -> None:
    folder, backup = tmp_path / "folder", tmp_path / "backup"
    stays = ParquetArchive(folder.as_uri())
    await stays.prepare()
    await stays.write(ArchiveBatch([sample_task("s", "old", 3, at_ms=_BEGIN_MS)]))
    shutil.copytree(folder, backup)
    for n in range(3):
        await stays.write(ArchiveBatch([sample_task("lost", str(n), 3, at_ms=_BEGIN_MS)]))
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    # Its log gets as many entries as `stays` knows: the same numbers, and others.
    other = ParquetArchive(folder.as_uri())
    for n in range(3):
        await other.write(ArchiveBatch([sample_task("new", str(n), 3, at_ms=_BEGIN_MS)]))
    assert await stays.session("new") is not None
    # An erasure that knew the other files would leave these.
    assert await stays.forget("new") is not None
    assert await other.session("new") is None


@pytest.mark.parametrize("goes_on", [0, 2])
async def test_a_change_of_a_folder_that_went_back_meanwhile_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes_on: int
) -> None:
    folder, backup = tmp_path / "folder", tmp_path / "backup"
    one, other = (ParquetArchive(folder.as_uri()) for _ in range(2))
    await one.prepare()
    await one.write(ArchiveBatch([sample_task("s", "old", 3, at_ms=_BEGIN_MS)]))
    shutil.copytree(folder, backup)
    for n in range(2):
        await one.write(ArchiveBatch([sample_task("s", f"lost{n}", 3, at_ms=_BEGIN_MS)]))

    async def go_back() -> None:
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)
        for n in range(goes_on):
            await other.write(ArchiveBatch([sample_task("new", str(n), 3, at_ms=_BEGIN_MS)]))

    did = meanwhile(monkeypatch, go_back)
    with pytest.raises(ArchiveUnavailable, match="went on"):
        await one.forget("s")
    assert did
    # Nobody has to mend the log, and all of the session goes.
    for archive in (one, ParquetArchive(folder.as_uri())):
        assert (await archive.status()).tasks == 1 + goes_on
    assert await one.forget("s") is not None
    assert (await other.status()).tasks == goes_on


@pytest.mark.parametrize("body", [b"", b'{"n": 2', b"{}", b"[]", b"null", b"7", b'"x"', b"\xff"])
async def test_an_entry_that_is_none_is_named_and_refuses_no_task(
    tmp_path: Path, body: bytes
) -> None:
    archive = ParquetArchive(tmp_path.as_uri())
    await archive.prepare()
    batch = ArchiveBatch([sample_task("s", "t", 3, at_ms=_BEGIN_MS)])
    await archive.write(batch)
    entry = tmp_path / "namespace=rs" / "log" / f"{2:012d}.json"
    entry.write_bytes(body)
    for opened in (archive, ParquetArchive(tmp_path.as_uri())):
        with pytest.raises(ArchiveUnavailable, match="log") as raised:
            await opened.write(batch)
        assert not raised.value.refused
        with pytest.raises(ArchiveUnavailable, match="log"):
            await opened.status()
    entry.unlink()
    assert (await archive.verify(batch)).is_whole


async def test_a_page_of_large_rows_is_bounded_in_bytes(tmp_path: Path) -> None:
    archive = ParquetArchive(tmp_path.as_uri())
    await archive.prepare()
    rows = [
        ArchivedRow(n, _BEGIN_MS + n, b"%d" % n, "t", os.urandom(5 << 20 if n == 3 else 1 << 20))
        for n in range(1, 10)
    ]
    await archive.write(ArchiveBatch(sessions=[SessionRows("s", None, rows)]))
    found: list[ArchivedRow] = []
    pages: list[int] = []
    while len(found) < len(rows):
        after = (found[-1].n, found[-1].ms) if found else None
        page = await archive.rows("s", after=after, count=99)
        assert page
        pages.append(len(page))
        found += page
    assert found == rows
    assert pages == [2, 1, 4, 2]


async def test_a_row_group_of_large_rows_is_bounded_in_bytes(tmp_path: Path) -> None:
    archive = ParquetArchive(tmp_path.as_uri())
    await archive.prepare()
    rows = [ArchivedRow(n, _BEGIN_MS + n, b"%d" % n, "t", b"a" * (1 << 20)) for n in range(1, 41)]
    await archive.write(ArchiveBatch(sessions=[SessionRows("s", None, rows)]))
    await archive.compact()
    (file,) = (tmp_path / "namespace=rs" / "updates").rglob("bucket=?/*.parquet")
    assert pq.ParquetFile(BytesIO(file.read_bytes())).metadata.num_row_groups == 3
    assert (await archive.verify(ArchiveBatch(sessions=[SessionRows("s", None, rows)]))).is_whole


async def test_a_page_of_large_tasks_is_bounded_in_bytes(tmp_path: Path) -> None:
    archive = ParquetArchive(tmp_path.as_uri())
    await archive.prepare()
    tasks: list[ArchivedTask] = []
    for n in range(6):
        task = sample_task("s", str(n), 3, at_ms=_BEGIN_MS + n)
        large = {**task.record, b"result": b"x" * (6 << 20 if n == 2 else 3 << 19)}
        tasks.append(replace(task, record=large))
    await archive.write(ArchiveBatch(tasks))
    found: list[str] = []
    pages: list[int] = []
    after: bytes | None = None
    while True:
        page = await archive.find(ArchiveListing(limit=50, after=after))
        pages.append(len(page.tasks))
        found += [each.task_id for each in page.tasks]
        after = page.end
        if after is None:
            break
    assert sorted(found) == [str(n) for n in range(6)]
    assert pages == [2, 1, 1, 2]


async def test_who_was_stopped_past_the_deadline_of_a_call_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (ParquetArchive(tmp_path.as_uri()) for _ in range(2))
    await one.prepare()

    async def stand_still() -> None:
        monkeypatch.setattr(calls, "monotonic", lambda: monotonic() + 31)

    did = meanwhile(monkeypatch, stand_still)
    batch = ArchiveBatch([sample_task("s", "t", 3, at_ms=_BEGIN_MS)])
    with pytest.raises(ArchiveUnavailable, match="time is over"):
        await one.write(batch)
    assert did
    # Its file is one that others delete by then.
    assert (await other.status()).tasks == 0
    await one.write(batch)
    assert (await other.verify(batch)).is_whole


async def test_a_write_that_nobody_waits_for_any_more_commits_nothing_in_the_name_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = ParquetArchive(tmp_path.as_uri(), timeout_s=3.0)
    await archive.prepare()
    create, stalled, go_on = FolderObjects.create, list[threading.Thread](), threading.Event()

    def stalling(its: FolderObjects, name: str, data: bytes) -> bool:
        if name.endswith(".parquet"):
            if not stalled:
                stalled.append(threading.current_thread())
                assert go_on.wait(60)
            elif threading.current_thread() not in stalled and not go_on.is_set():
                # The next one has read the log by now.
                go_on.set()
                stalled[0].join(60)
        return create(its, name, data)

    monkeypatch.setattr(FolderObjects, "create", stalling)
    batch = ArchiveBatch(
        [sample_task("s", "t", 3, at_ms=_BEGIN_MS)], [SessionRows("s", None, _ROWS)]
    )
    with pytest.raises(ArchiveUnavailable, match="no answer"):
        await archive.write(batch)
    await archive.write(batch)
    assert go_on.is_set()
    assert not stalled[0].is_alive()
    assert (await archive.verify(batch)).is_whole
    status = await archive.status()
    assert (status.tasks, status.updates) == (1, len(_ROWS))


@pytest.mark.parametrize("url", ["file:///folder#part", "s3://bucket/a#b", "file:///folder%00"])
def test_a_url_whose_folder_would_be_cut_short_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="%23"):
        ParquetArchive(url)


async def test_who_has_a_clock_that_is_ahead_deletes_no_file_that_is_to_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (ParquetArchive(tmp_path.as_uri()) for _ in range(2))
    await one.prepare()
    did = list[int]()

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Ahead:
            did.append(1)
            return cls.fromtimestamp(datetime.now(tz).timestamp() + 3600, tz)

    async def clean_up() -> None:
        for module in (compacting, log):
            monkeypatch.setattr(module, "datetime", Ahead, raising=False)
        await other.compact()

    meanwhile(monkeypatch, clean_up)
    batch = ArchiveBatch([sample_task("s", "t", 3, at_ms=_BEGIN_MS)])
    await one.write(batch)
    assert did
    assert (await one.verify(batch)).is_whole
    assert (await other.verify(batch)).is_whole
