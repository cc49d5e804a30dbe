"""Files of the archive that are gone, and bounds of what is read of the others at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the parquet extra")
pytest.importorskip("arq", reason="needs the worker extra")

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.copying.backfill import backfill
from redis_state.archive.encoding import moment_of_ms
from redis_state.archive.model import ArchiveBatch, ArchivedRow, RecordKind, SessionRows
from redis_state.archive.parquet.archive import ParquetArchive
from redis_state.archive.parquet.files import compacting
from redis_state.archive.parquet.files.data_files import DataFile
from redis_state.archive.parquet.files.log import FileGone, FileLog
from redis_state.archive.parquet.files.objects import FolderObjects, ListedObject
from redis_state.archive.protocol import overlooked
from redis_state.archive.queries import ArchiveQuery
from redis_state.archive.waiting import ArchiveList
from redis_state.errors import ArchiveFileMissing, ArchiveUnavailable
from redis_state.worker.archiving.again import enlist_records
from tests.support.processes.pools import SESSION
from tests.support.tasks.archived.archived_records import archive_records, save_records
from tests.support.tasks.archived.archived_tasks import sample_task
from tests.support.tasks.archived.archives import (
    all_due,
    archive_all,
    archived_rows,
    ended,
    live_rows,
    log_of,
)

_BEGIN_MS = 1_700_000_000_000


@pytest.fixture
async def files(tmp_path: Path) -> ParquetArchive:
    """Give an archive of files."""
    archive = ParquetArchive(tmp_path.as_uri(), namespace="n")
    await archive.prepare()
    return archive


def rows_of(*numbers: int) -> list[ArchivedRow]:
    return [ArchivedRow(n, _BEGIN_MS + n, b"%d" % n, "t", b"[1]") for n in numbers]


def lose(folder: Path, kind: str, *, which: int = 0) -> str:
    """Delete a data file, as a bucket's lifecycle does; return its name in the log."""
    found = sorted((folder / "namespace=n" / kind).rglob("*.parquet"))[which]
    found.unlink()
    return found.relative_to(folder / "namespace=n").as_posix()


@pytest.mark.parametrize("kind", ["tasks", "updates"])
async def test_a_file_that_is_gone_is_named_and_the_rest_goes_on(
    files: ParquetArchive, tmp_path: Path, kind: str
) -> None:
    for session in ("lost", "kept", "other"):
        await files.write(
            ArchiveBatch(
                [sample_task(session, "t", 3)], [SessionRows(session, None, rows_of(1, 2))]
            )
        )
    (first,) = (
        each.name for each in files._calls.log.files().of(kind) if _has(files, each.name, "lost")
    )
    (tmp_path / "namespace=n" / first).unlink()
    status = await files.status()
    assert status.missing == (first,)
    assert (status.tasks, status.updates) == ((2, 6) if kind == "tasks" else (3, 4))
    reading = (
        files.tasks(ArchiveQuery()) if kind == "tasks" else files.rows("lost", after=None, count=9)
    )
    with pytest.raises(ArchiveFileMissing) as raised:
        await reading
    assert raised.value.file == first
    assert first in str(raised.value)
    assert await files.rows("kept", after=None, count=9) == rows_of(1, 2)
    # The others of its kind are merged.
    assert await files.compact() >= 0
    assert len(files._calls.log.files().at(kind, "new")) == 1
    assert (await files.status()).missing == (first,)
    # A retention that need not read it takes it along; one that does names it.
    report = await files.retain({kind: moment_of_ms(_BEGIN_MS + 2)}, dry_run=True)
    assert list(report.left) == ([first] if kind == "updates" else [])
    # Once it counts no more all is read.
    assert await files.drop_missing() == [first]
    assert (await files.status()).missing == ()
    assert len(await files.tasks(ArchiveQuery())) == (2 if kind == "tasks" else 3)
    assert await files.drop_missing() == []


def _has(files: ParquetArchive, name: str, session: str) -> bool:
    reader = files._calls._reading()
    return bool(reader.keys(reader.files.by_name[name], session).num_rows)


async def test_an_archiver_sets_aside_the_sessions_of_a_file_that_is_gone(
    settings: Settings, store: RedisStateStore, tmp_path: Path
) -> None:
    archive = ParquetArchive(tmp_path.as_uri(), namespace="n")
    task = await ended(store)
    await ArchiveList(store).enlist(SESSION, task)
    await archive_all(store, archive)
    await archive.compact()
    lost = lose(tmp_path, "updates")
    again = await ended(store)
    await ArchiveList(store).enlist(SESSION, again)
    await all_due(store)
    report = await Archiver(store, archive).run_once()
    assert (report.refused > 0, report.tasks, report.postponed) == (True, 0, 0)
    assert await archive.drop_missing() == [lost]
    # Redis still has the rows: they are copied once more.
    await archive_all(store, archive)
    assert (await archive.status()).tasks == 2
    assert await archive.session(SESSION) is not None


@pytest.mark.role("any", why="it reads the names of all keys")
async def test_what_redis_has_of_a_file_that_is_gone_is_archived_again(
    settings: Settings, tmp_path: Path
) -> None:
    url, classes = SecretStr(tmp_path.as_uri()), frozenset({"trajectories"})
    chosen = settings.model_copy(update={"archive_url": url, "archive_classes": classes})
    async with RedisStateStore(chosen) as store:
        archive = ParquetArchive(tmp_path.as_uri(), namespace="n")
        await ArchiveList(store).enlist(SESSION, await ended(store))
        await archive_all(store, archive)
        await save_records(store)
        await archive_records(store, archive)
        was = await archive.records(RecordKind.TRAJECTORY, SESSION)
        lost = sorted(lose(tmp_path, kind) for kind in ("tasks", "records"))
        # Of two at once one drops them.
        other = ParquetArchive(tmp_path.as_uri(), namespace="n")
        dropped = await asyncio.gather(archive.drop_missing(), other.drop_missing())
        assert sorted(dropped) == [[], lost]
        await archive_all(store, archive)
        assert (await archive.status()).tasks == 0
        await backfill(store, again=True)
        await enlist_records(store, again=True)
        await archive_all(store, archive)
        await archive_records(store, archive)
        assert (await archive.status()).tasks == 1
        found = await archive.records(RecordKind.TRAJECTORY, SESSION)
        assert [each.stamp for each in found] == [each.stamp for each in was]


async def test_updates_between_that_are_gone_are_a_gap_until_their_session_is_archived_anew(
    settings: Settings, store: RedisStateStore, tmp_path: Path
) -> None:
    archive = ParquetArchive(tmp_path.as_uri(), namespace="n")
    for _ in range(3):
        await ArchiveList(store).enlist(SESSION, await ended(store))
        await archive_all(store, archive)
    middle = sorted(archive._calls.log.files().of("updates"), key=lambda file: file.least)[1]
    (tmp_path / "namespace=n" / middle.name).unlink()
    assert await archive.drop_missing() == [middle.name]
    whole = await log_of(store).read_all()
    # What follows the archive's last row is copied, and no row before it.
    await backfill(store, again=True)
    await archive_all(store, archive)
    rows = await archive.rows(SESSION, after=None, count=99)
    assert rows is not None
    assert len(rows) < len(whole)
    await archive.forget(SESSION)
    await backfill(store, again=True)
    await archive_all(store, archive)
    assert await archived_rows(archive) == await live_rows(store)
    assert (await archive.status()).tasks == 3


async def test_rows_that_a_clock_which_was_ahead_had_hidden_are_there_again(
    files: ParquetArchive,
) -> None:
    await files.write(ArchiveBatch(sessions=[SessionRows("s", None, rows_of(1, 2, 3))]))
    ahead = moment_of_ms(_BEGIN_MS + 1_000_000)
    assert (await files.retain({"updates": ahead})).rows == {"updates": 3}
    last = (3, _BEGIN_MS + 3)
    await files.write(ArchiveBatch(sessions=[SessionRows("s", last, rows_of(4, 5))]))
    assert await files.rows("s", after=None, count=9) == []
    # The clock is right again.
    await files.retain({"updates": moment_of_ms(_BEGIN_MS + 2)})
    assert await files.rows("s", after=None, count=9) == rows_of(4, 5)
    # What has gone is a gap still.
    assert await files.rows("s", after=(2, _BEGIN_MS + 2), count=9) is None


async def test_a_listing_that_is_behind_names_no_file_that_counts_no_more(
    files: ParquetArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await files.write(ArchiveBatch([sample_task("s", "t", 3), sample_task("p", "t", 3)]))
    listed, names = {each.name for each in files._calls._objects.names("")}, FolderObjects.names
    # The file is written again, and deleted.
    await files.forget("p")

    def behind(its: FolderObjects, folder: str, *, after: str = "") -> list[ListedObject]:
        return [each for each in names(its, folder, after=after) if each.name in listed]

    monkeypatch.setattr(FolderObjects, "names", behind)
    begun = ParquetArchive(tmp_path.as_uri(), namespace="n")
    assert [each.session_id for each in await begun.tasks(ArchiveQuery())] == ["s"]
    assert await begun.drop_missing() == []


async def test_a_merge_is_bounded_by_what_it_has_in_memory(
    files: ParquetArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacting, "_BYTES", 1 << 20)
    merged: list[int] = []
    merge = compacting._merge

    def measured(log: FileLog, kind: str, some: Sequence[Any]) -> list[DataFile]:
        merged.append(sum(table.nbytes for _, table in some))
        return merge(log, kind, some)

    monkeypatch.setattr(compacting, "_merge", measured)
    last = None
    for n in range(1, 9):
        # Half a MiB that is some hundred bytes on the disk.
        row = replace(rows_of(n)[0], data=b"x" * (1 << 19))
        await files.write(ArchiveBatch(sessions=[SessionRows("s", last, [row])]))
        last = (n, _BEGIN_MS + n)
    for _ in range(2):
        await files.compact()
    assert merged
    assert max(merged) <= 3 << 19
    assert (await files.status()).updates == 8
    assert not files._calls.log.files().at("updates", "new")


@pytest.mark.parametrize("last", ["done", "lost", "other"])
async def test_a_file_that_is_lost_behind_one_that_was_replaced_is_overlooked(
    files: ParquetArchive, last: str
) -> None:
    gone = iter(["replaced", "lost", "lost", last])

    def work() -> str:
        name = next(gone)
        if name != "done":
            raise FileGone(name)
        return name

    missing = set[str]()
    known = overlooked.set(missing)
    try:
        if last == "done":
            assert await files._calls.run("read", work) == "done"
        else:
            with pytest.raises(ArchiveUnavailable, match="its files change meanwhile"):
                await files._calls.run("read", work)
    finally:
        overlooked.reset(known)
    assert missing == {"lost"}
