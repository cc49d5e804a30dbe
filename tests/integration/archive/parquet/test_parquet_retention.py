"""What of files goes when, and what of it the log keeps."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the parquet extra")

from redis_state import RedisStateStore
from redis_state.archive.encoding import moment_of_ms
from redis_state.archive.model import (
    ArchiveBatch,
    ArchivedRecord,
    ArchivedRow,
    RecordKind,
    SessionRows,
)
from redis_state.archive.parquet import calls, expiring, retention
from redis_state.archive.parquet.archive import ParquetArchive
from redis_state.archive.parquet.files import log
from redis_state.archive.parquet.files.log import LogChange
from redis_state.archive.queries import ArchiveQuery
from redis_state.archive.retaining import Retainer
from tests.support.tasks.archived.archived_tasks import sample_task

_BEGIN_MS = 1_700_000_000_000


@pytest.fixture
async def files(tmp_path: Path) -> ParquetArchive:
    """Give an archive of files."""
    archive = ParquetArchive(tmp_path.as_uri(), namespace="n")
    await archive.prepare()
    return archive


def rows_of(*numbers: int) -> list[ArchivedRow]:
    return [ArchivedRow(n, _BEGIN_MS + n, b"%d" % n, "t", b"[1]") for n in numbers]


async def append(archive: ParquetArchive, session: str, *numbers: int) -> None:
    """Append rows behind those of the numbers before."""
    first = numbers[0] - 1
    after = (first, _BEGIN_MS + first) if first else None
    await archive.write(ArchiveBatch(sessions=[SessionRows(session, after, rows_of(*numbers))]))


async def test_a_call_reads_a_bounded_number_of_rows_and_hides_all_that_has_expired(
    files: ParquetArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_MOST", 5)
    for begin in (1, 4, 7, 10):
        await append(files, "s", begin, begin + 1, begin + 2)
    before = {"updates": moment_of_ms(_BEGIN_MS + 9)}
    counted = await files.retain(before, dry_run=True)
    assert (counted.rows, counted.more) == ({"updates": 3}, True)
    assert await files.rows("s", after=None, count=99) == rows_of(*range(1, 13))
    first = await files.retain(before)
    assert (first.rows, first.more) == ({"updates": 3}, True)
    # The others are still in files, but not there for a reader.
    assert await files.rows("s", after=None, count=99) == rows_of(*range(9, 13))
    assert await files.rows("s", after=(5, _BEGIN_MS + 5), count=99) is None
    assert (await files.status()).updates == 9
    rest = [await files.retain(before) for _ in range(2)]
    assert [(each.rows["updates"], each.more) for each in rest] == [(3, True), (2, False)]
    assert (await files.status()).updates == 4


async def test_a_large_file_is_written_again_once_a_part_of_it_has_expired(
    files: ParquetArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiring, "_LARGE", 1)
    await append(files, "s", *range(1, 21))
    report = await files.retain({"updates": moment_of_ms(_BEGIN_MS + 2)})
    assert (report.rows, len(report.left)) == ({"updates": 0}, 1)
    assert await files.rows("s", after=None, count=99) == rows_of(*range(2, 21))
    assert await files.rows("s", after=(1, _BEGIN_MS + 1), count=99) is None
    assert (await files.status()).updates == 20
    report = await files.retain({"updates": moment_of_ms(_BEGIN_MS + 4)})
    assert (report.rows, report.left) == ({"updates": 3}, {})
    assert (await files.status()).updates == 17


async def test_last_places_stay_through_compaction_and_go_back_with_the_server(
    files: ParquetArchive,
) -> None:
    for session in ("a", "b"):
        await append(files, session, 1, 2, 3)
    await files.retain({"updates": moment_of_ms(_BEGIN_MS + 3)})
    await files.retain({"updates": moment_of_ms(_BEGIN_MS + 4)})
    last = (3, _BEGIN_MS + 3)
    assert await files.last_rows(["a", "b"]) == {"a": last, "b": last}
    await files.compact()
    assert await files.last_rows(["a", "b"]) == {"a": last, "b": last}
    found = await files.session("a")
    assert found is not None
    assert (found.updates, found.last) == (0, last)
    # The server has lost the third row: what follows the second comes next.
    cut = (2, _BEGIN_MS + 2)
    again = ArchivedRow(3, _BEGIN_MS + 50, b"other", "t", b"[2]")
    await files.write(ArchiveBatch(sessions=[SessionRows("a", last, [again], cut)]))
    await files.write(ArchiveBatch(sessions=[SessionRows("b", last, [], cut)]))
    assert await files.last_rows(["a", "b"]) == {"a": (3, _BEGIN_MS + 50), "b": cut}
    assert await files.rows("a", after=None, count=9) == [again]
    await append(files, "b", 3, 4)
    assert await files.last_rows(["b"]) == {"b": (4, _BEGIN_MS + 4)}


async def test_what_was_erased_and_what_has_expired_is_known_when_the_entries_have_gone(
    files: ParquetArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "GRACE", timedelta(0))
    old = ArchiveBatch([sample_task("s", "t", 3, at_ms=_BEGIN_MS)])
    await files.write(old)
    await append(files, "r", 1, 2, 3)
    await files.forget("s", before_us=_BEGIN_MS * 1000 + 1)
    await files.retain({"updates": moment_of_ms(_BEGIN_MS + 3)})
    await files.compact()
    names = sorted(path.name for path in (tmp_path / "namespace=n" / "log").iterdir())
    assert "000000000000.json" not in names
    other = ParquetArchive(tmp_path.as_uri(), namespace="n")
    assert await other.erased(["s", "r"]) == {"s": _BEGIN_MS * 1000 + 1}
    await other.write(old)
    assert await other.tasks(ArchiveQuery()) == []
    assert await other.rows("r", after=(1, _BEGIN_MS + 1), count=9) is None
    assert await other.rows("r", after=None, count=9) == rows_of(3)


async def test_files_that_are_left_keep_no_call_from_those_behind_them(
    files: ParquetArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiring, "_LARGE", 1)
    monkeypatch.setattr(retention, "_MOST", 30)
    # A sixteenth of the first ones has expired by then, of the last one a half.
    for session in ("a", "b", "c"):
        await append(files, session, *range(1, 17))
    await append(files, "d", 1, 2)
    for part in range(3):
        early, late = records_of(_BEGIN_MS - part), records_of(_BEGIN_MS + 10 + part, count=16)
        await files.write(ArchiveBatch(records=[*early, *late]))
    moment = moment_of_ms(_BEGIN_MS + 2)
    reports = [await files.retain({"updates": moment, "trajectories": moment}) for _ in range(2)]
    assert [each.rows["updates"] for each in reports] == [1, 0]
    # It ends: what it has read and left is no reason to come again.
    assert not reports[-1].more
    assert len(reports[-1].left) == 6


def records_of(at_ms: int, *, count: int = 1) -> list[ArchivedRecord]:
    """Make records of each class, whose states are of one moment."""
    return [
        ArchivedRecord(kind, "o", f"k{at_ms}-{n}", at_ms * 1000, at_ms * 1000, b"1", version=1)
        for kind in RecordKind
        for n in range(count)
    ]


async def test_each_class_of_records_expires_by_itself(
    files: ParquetArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at_ms in (_BEGIN_MS, _BEGIN_MS + 10):
        await files.write(ArchiveBatch(records=records_of(at_ms)))
    await files.compact()
    before = {"events": moment_of_ms(_BEGIN_MS + 10), "artifacts": moment_of_ms(_BEGIN_MS)}
    for dry_run in (True, False):
        report = await files.retain(before, dry_run=dry_run)
        assert report.rows == {"events": 1, "artifacts": 0}
    counts = dict.fromkeys(RecordKind, 2) | {RecordKind.EVENT: 1}
    assert (await files.status()).records == counts
    # All of it has expired: it goes whole, and nothing is read.
    monkeypatch.setattr(retention, "_MOST", 0)
    report = await files.retain(dict.fromkeys(files.classes, moment_of_ms(_BEGIN_MS + 11)))
    assert report.rows == {
        **dict.fromkeys(files.classes, 0),
        **{kind.what: count for kind, count in counts.items()},
    }
    assert report.partitions["events"] == 1
    assert (await files.status()).records == {}


async def test_a_large_file_of_records_is_written_again_once_a_part_of_it_has_expired(
    files: ParquetArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiring, "_LARGE", 1)
    early, late = records_of(_BEGIN_MS), records_of(_BEGIN_MS + 10, count=3)
    await files.write(ArchiveBatch(records=[*early, *late]))
    before = moment_of_ms(_BEGIN_MS + 10)
    report = await files.retain({"trajectories": before})
    assert (report.rows, len(report.left)) == ({"trajectories": 0}, 1)
    report = await files.retain({"trajectories": before, "events": before})
    assert (report.rows, report.left) == ({"trajectories": 1, "events": 1}, {})
    left = await files.records(RecordKind.TRAJECTORY, "o")
    assert left == [each for each in late if each.kind is RecordKind.TRAJECTORY]


async def test_a_missing_file_of_an_older_entry_is_left_and_the_others_expire(
    files: ParquetArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = log._entry

    def without_classes(n: int, change: LogChange) -> bytes:
        entry = json.loads(write(n, change))
        for file in entry["add"]:
            del file["classes"]
        return json.dumps(entry).encode()

    monkeypatch.setattr(log, "_entry", without_classes)
    for at_ms in (_BEGIN_MS, _BEGIN_MS + 1):
        await files.write(ArchiveBatch(records=records_of(at_ms)))
    await append(files, "s", 1)
    first, _ = files._calls.log.files().of("records")
    (tmp_path / "namespace=n" / first.name).unlink()
    moment = moment_of_ms(_BEGIN_MS + 2)
    report = await files.retain({"updates": moment, "events": moment})
    assert (report.rows, report.left) == (
        {"updates": 1, "events": 1},
        {first.name: "is missing"},
    )
    assert (await files.status()).records[RecordKind.TRAJECTORY] == 1
    assert RecordKind.EVENT not in (await files.status()).records


async def test_an_archive_that_nobody_has_prepared_is_left_alone_until_somebody_has(
    store: RedisStateStore, tmp_path: Path
) -> None:
    archive = ParquetArchive((tmp_path / "new").as_uri(), namespace="n")
    assert await Retainer(store, archive).run_once() is None
    assert not (tmp_path / "new").exists()
    await archive.prepare()
    # The round before has not taken the lease of an hour.
    report = await Retainer(store, archive).run_once()
    assert report is not None
    assert not any(report.rows.values())
