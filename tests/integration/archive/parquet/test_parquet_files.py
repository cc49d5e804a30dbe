"""The files of the archive as others read them, and archivers that come together."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the parquet extra")
pytest.importorskip("duckdb", reason="needs duckdb")

import duckdb

from redis_state.archive.encoding import moment_of_ms
from redis_state.archive.model import (
    ArchiveBatch,
    ArchivedRecord,
    ArchivedRow,
    RecordKind,
    SessionRows,
)
from redis_state.archive.parquet.archive import ParquetArchive
from redis_state.archive.queries import ArchiveListing, ArchiveQuery
from redis_state.errors import ArchiveFileMissing
from tests.support.tasks.archived.archived_tasks import sample_task

GUIDE = Path(__file__).resolve().parents[4] / "docs" / "guides" / "archive.md"


async def test_the_query_of_the_guide_counts_each_task_once(tmp_path: Path) -> None:
    archive = ParquetArchive(tmp_path.as_uri(), namespace="rs")
    await archive.prepare()
    for version in (3, 4):
        await archive.write(
            ArchiveBatch(tasks=[sample_task("s", str(n), version) for n in range(5)])
        )
        await archive.write(ArchiveBatch(tasks=[sample_task("s", f"only-{version}", 1)]))
    asked = _query(tmp_path)
    assert duckdb.connect().execute(asked).fetchall() == [("h", "FAILED", 7)]
    assert await archive.compact() > 0
    assert duckdb.connect().execute(asked).fetchall() == [("h", "FAILED", 7)]
    assert (await archive.status()).tasks == 7


async def test_the_query_of_the_guide_has_each_record_once_as_it_was_last(tmp_path: Path) -> None:
    archive = ParquetArchive(tmp_path.as_uri(), namespace="rs")
    await archive.prepare()
    born_us = 1_700_000_000_000_000
    for version in (1, 2):
        records = [
            ArchivedRecord(
                kind, "s", f"k{n}", born_us + n, born_us + version, b"%d" % version, version=version
            )
            for n in range(3)
            for kind in RecordKind
        ]
        await archive.write(ArchiveBatch(records=records))
    asked = _query(tmp_path, "records")
    for _ in range(2):
        found = duckdb.connect().execute(asked).fetchall()
        assert [(row[0], row[1], row[3]) for row in found] == [
            ("s", f"k{n}", "2") for n in range(3)
        ]
        await archive.compact()


async def test_pandas_reads_with_the_code_of_the_guide_what_duckdb_reads(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="needs pandas")
    archive = ParquetArchive(tmp_path.as_uri(), namespace="rs")
    await archive.prepare()
    born_us = 1_700_000_000_000_000
    rows = [ArchivedRow(n, 1_700_000_000_000 + n, b"%d" % n, "t", b"[1]") for n in (1, 2)]
    for version in (3, 4):
        records = [
            ArchivedRecord(
                kind, "s", f"k{n}", born_us + n, born_us + version, b"%d" % version, version=version
            )
            for n in range(3)
            for kind in RecordKind
        ]
        tasks = [sample_task("s", str(n), version) for n in range(5)]
        sessions = [SessionRows(f"s{version}", None, rows)]
        await archive.write(ArchiveBatch(tasks, sessions, records))
    for _ in range(2):
        named = _pandas_code(tmp_path.as_uri())
        counts = [(*key, count) for key, count in named["counts"].items()]
        asked = duckdb.connect().execute(_query(tmp_path)).fetchall()
        assert counts == asked == [("h", "FAILED", 5)]
        found = named["read_archive"](f"{tmp_path.as_uri()}/namespace=rs", "records")
        found = found[found["kind"] == "trajectory"].sort_values(["owner", "born", "n", "key"])
        asked = duckdb.connect().execute(_query(tmp_path, "records")).fetchall()
        states = list(zip(found["owner"], found["key"], found["at"], found["data"], strict=True))
        assert [(owner, key, at, data.decode()) for owner, key, at, data in states] == asked
        assert [data for _, _, _, data in states] == [b"4"] * 3
        updates = named["read_archive"](f"{tmp_path.as_uri()}/namespace=rs", "updates")
        assert sorted(updates["data"]) == [b"[1]"] * 4
        await archive.compact()


async def test_pandas_leaves_out_rows_that_were_lost_and_finds_nothing_in_no_files(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pandas", reason="needs pandas")
    archive = ParquetArchive(tmp_path.as_uri(), namespace="rs")
    await archive.prepare()
    read = _pandas_code(tmp_path.as_uri())["read_archive"]
    url = f"{tmp_path.as_uri()}/namespace=rs"
    for kind in ("tasks", "updates", "records"):
        assert len(read(url, kind)) == 0
    rows = [ArchivedRow(n, 1_700_000_000_000 + n, b"%d" % n, "t", b"%d" % n) for n in (1, 2, 3)]
    await archive.write(ArchiveBatch(sessions=[SessionRows("s", None, rows)]))
    # The server was restored, and gives the number 2 again.
    again = ArchivedRow(2, rows[2].ms + 1, b"new", "t", b"new")
    lost = SessionRows("s", (3, rows[2].ms), [again], lost_behind=(1, rows[0].ms))
    await archive.write(ArchiveBatch(sessions=[lost]))
    kept = await archive.rows("s", after=None, count=9)
    assert kept is not None
    assert [row.data for row in kept] == [b"1", b"new"]
    for _ in range(2):
        found = read(url, "updates").sort_values(["at", "n"])
        assert list(found["data"]) == [b"1", b"new"]
        await archive.compact()


async def test_pandas_and_duckdb_read_a_bucket_without_the_library(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    pytest.importorskip("pandas", reason="needs pandas")
    with _bucket(monkeypatch, unused_tcp_port) as endpoint:
        archive = ParquetArchive(
            f"s3://archive/others?endpoint_url=http://{endpoint}&region=us-east-1", namespace="rs"
        )
        await archive.prepare()
        rows = [ArchivedRow(n, 1_700_000_000_000 + n, b"%d" % n, "t", b"[1]") for n in (1, 2)]
        for version in (3, 4):
            tasks = [sample_task("s", str(n), version) for n in range(5)]
            await archive.write(ArchiveBatch(tasks, [SessionRows(f"s{version}", None, rows)]))
        options = f"?endpoint_override={endpoint}&scheme=http&region=us-east-1"
        for _ in range(2):
            named = _pandas_code("s3://archive/others", options)
            assert [(*key, count) for key, count in named["counts"].items()] == [("h", "FAILED", 5)]
            connection = duckdb.connect()
            connection.register("tasks", named["tasks"])
            asked = "SELECT handler, status, count(*) FROM tasks GROUP BY ALL"
            assert connection.execute(asked).fetchall() == [("h", "FAILED", 5)]
            updates = named["read_archive"](f"s3://archive/others/namespace=rs{options}", "updates")
            assert sorted(updates["data"]) == [b"[1]"] * 4
            await archive.compact()
        _ask_by_httpfs(endpoint)


def _ask_by_httpfs(endpoint: str) -> None:
    """Ask by the query of the guide, if this DuckDB has its extension."""
    connection = duckdb.connect()
    try:
        connection.execute("LOAD httpfs")
    except duckdb.Error:
        return
    connection.execute(
        "CREATE SECRET (TYPE s3, KEY_ID 'test', SECRET 'test', REGION 'us-east-1', "
        f"ENDPOINT '{endpoint}', URL_STYLE 'path', USE_SSL false)"
    )
    asked = _query("s3://archive/others")
    assert connection.execute(asked).fetchall() == [("h", "FAILED", 5)]


async def test_archives_that_write_at_once_have_each_row_once(tmp_path: Path) -> None:
    archives = [ParquetArchive(tmp_path.as_uri()) for _ in range(4)]
    await asyncio.gather(*(each.prepare() for each in archives))
    rows = [ArchivedRow(n, 1_700_000_000_000 + n, b"%d" % n, "t", b"[1]") for n in range(1, 9)]
    batches = [
        ArchiveBatch(sessions=[SessionRows("all", None, rows), SessionRows(f"s{n}", None, rows)])
        for n in range(4)
    ]
    await asyncio.gather(
        *(each.write(batch) for each, batch in zip(archives, batches, strict=True))
    )
    for batch in batches:
        assert (await archives[0].verify(batch)).is_whole
    assert (await archives[1].status()).updates == 5 * len(rows)


async def test_no_compacted_file_is_opened_for_a_session_that_it_has_not(tmp_path: Path) -> None:
    archive = ParquetArchive((tmp_path / "a").as_uri())
    await archive.prepare()
    rows = [ArchivedRow(n, 1_700_000_000_000 + n, b"%d" % n, "t", b"[1]") for n in (1, 2)]

    def batch(first: int) -> ArchiveBatch:
        names = [f"{number * 7919 % 10_007}" for number in range(first, first + 60)]
        tasks = [sample_task(name, "t", 3) for name in names]
        return ArchiveBatch(tasks, [SessionRows(name, None, rows) for name in names])

    earlier = batch(0)
    await archive.write(earlier)
    await archive.compact()
    # Each file is opened once, for its footer.
    assert (await archive.verify(earlier)).is_whole
    compacted = [
        file for file in (tmp_path / "a").rglob("*.parquet") if "bucket=new" not in str(file)
    ]
    away = tmp_path / "away"
    away.mkdir()
    assert len(compacted) > 24
    # Its filter may err for some of the 60: those it says yes of are left out.
    fresh = batch(60)
    for file in compacted:
        file.rename(away / file.name)
    known = await asyncio.gather(*(_is_known(archive, each) for each in fresh.sessions))
    fresh = ArchiveBatch(
        [task for task, opens in zip(fresh.tasks, known, strict=True) if not opens],
        [each for each, opens in zip(fresh.sessions, known, strict=True) if not opens],
    )
    assert len(fresh.sessions) > 50
    await archive.write(fresh)
    assert (await archive.verify(fresh)).is_whole
    for file in compacted:
        (away / file.name).rename(file)
    assert (await archive.verify(earlier)).is_whole
    assert (await archive.status()).sessions == 60 + len(fresh.sessions)


async def test_no_new_file_is_opened_again_for_other_tasks_of_a_session(tmp_path: Path) -> None:
    archive = ParquetArchive((tmp_path / "a").as_uri())
    await archive.prepare()
    batches = [ArchiveBatch([sample_task("busy", f"{n}", 3)]) for n in range(4)]
    for each in batches[:3]:
        await archive.write(each)
        assert (await archive.verify(each)).is_whole
    away = tmp_path / "away"
    away.mkdir()
    files = list((tmp_path / "a").rglob("*.parquet"))
    assert len(files) == 3
    for file in files:
        file.rename(away / file.name)
    await archive.write(batches[3])
    assert (await archive.verify(batches[3])).is_whole
    # What is verified is read from the file, and not from what a process knows.
    with pytest.raises(ArchiveFileMissing):
        await archive.verify(batches[2])
    for file in files:
        (away / file.name).rename(file)
    again = ArchiveBatch([sample_task("busy", "1", 4)])
    await archive.write(again)
    assert (await archive.verify(again)).is_whole
    found = await archive.tasks(ArchiveQuery(session_id="busy"))
    assert sorted((task.task_id, task.version) for task in found) == [
        *(("0", 3), ("1", 4), ("2", 3), ("3", 3))
    ]


async def _is_known(archive: ParquetArchive, session: SessionRows) -> bool:
    """Return whether a file has to be opened for a session: here none can be."""
    try:
        assert await archive.last_rows([session.session_id]) == {}
        assert await archive.tasks(ArchiveQuery(session_id=session.session_id)) == []
    except ArchiveFileMissing:
        return True
    return False


async def test_a_bucket_of_an_s3_compatible_server_is_an_archive(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    with _bucket(monkeypatch, unused_tcp_port) as endpoint:
        url = f"s3://archive/a/b?endpoint_url=http://{endpoint}&region=us-east-1"
        archives = [ParquetArchive(url) for _ in range(3)]
        await asyncio.gather(*(each.prepare() for each in archives))
        batch = ArchiveBatch(tasks=[sample_task("s", str(n), 3) for n in range(5)])
        await asyncio.gather(*(each.write(batch) for each in archives))
        assert (await archives[0].verify(batch)).is_whole
        assert (await archives[1].status()).tasks == 5
        await archives[2].compact()
        assert (await archives[0].verify(batch)).is_whole
        page = await archives[1].find(ArchiveListing(limit=3))
        assert (len(page.tasks), page.end is None) == (3, False)
        at_us = batch.tasks[0].born_us + 1
        assert await archives[0].forget("s", before_us=at_us) is not None
        await archives[2].write(batch)
        assert (await archives[1].status()).tasks == 0
        assert await archives[2].erased(["s"]) == {"s": at_us}
        rows = [ArchivedRow(n, 1_700_000_000_000 + n, b"%d" % n, "t", b"[1]") for n in (1, 2, 3)]
        await archives[0].write(ArchiveBatch(sessions=[SessionRows("r", None, rows)]))
        report = await archives[1].retain({"updates": moment_of_ms(rows[2].ms)})
        assert report.rows == {"updates": 2}
        at_us = rows[0].ms * 1000
        records = [
            ArchivedRecord(kind, "o", "k", at_us, at_us, b"\0\xff", version=1)
            for kind in RecordKind
        ]
        both = ArchiveBatch(records=records)
        await asyncio.gather(*(each.write(both) for each in archives))
        assert (await archives[0].verify(both)).is_whole
        assert set((await archives[1].status()).records.values()) == {1}
        report = await archives[2].retain({"trajectories": moment_of_ms(rows[1].ms)})
        assert report.rows == {"trajectories": 1}
        await archives[0].forget("o")
        assert (await archives[1].status()).records == {RecordKind.EVENT: 1}
        assert await archives[2].rows("r", after=None, count=9) == rows[2:]


@contextmanager
def _bucket(monkeypatch: pytest.MonkeyPatch, port: int) -> Generator[str]:
    """Serve a bucket "archive"; give the server's host and port."""
    server = pytest.importorskip("moto.server", reason="needs moto's server")
    boto3: Any = pytest.importorskip("boto3", reason="needs moto's server")
    running = server.ThreadedMotoServer(port=port, verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        endpoint = f"{host}:{port}"
        s3 = boto3.client("s3", endpoint_url=f"http://{endpoint}", region_name="us-east-1")
        s3.create_bucket(Bucket="archive")
        yield endpoint
    finally:
        running.stop()


def _pandas_code(url: str, options: str = "") -> dict[str, Any]:
    """Run the code of the guide for a folder or a bucket; return what it defines."""
    (code,) = re.findall(r"```python\n(import json\n.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    code = code.replace("file:///folder/namespace=rs", f"{url}/namespace=rs{options}")
    named: dict[str, Any] = {}
    exec(code, named)  # noqa: S102 - the guide's
    return named


def _query(root: Path | str, what: str = "tasks") -> str:
    """Return what the guide asks of DuckDB for files of a kind."""
    found = re.findall(r"```postgres\n(SET VARIABLE.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    tasks, records = found
    # The second one needs the first two statements of the other.
    asked = tasks if what == "tasks" else ";".join(tasks.split(";")[:2]) + f";{records}"
    return str(asked).replace("'/folder/", f"'{root}/")
