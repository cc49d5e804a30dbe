"""The files of the archive as others read them, and archivers that come together."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the parquet extra")
pytest.importorskip("duckdb", reason="needs duckdb")

import duckdb

from redis_state.archive.model import ArchiveBatch, ArchivedRow, SessionRows
from redis_state.archive.parquet.archive import ParquetArchive
from tests.unit.archive.test_model import sample_task

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "archive.md"


async def test_the_query_of_the_guide_counts_each_task_once(tmp_path: Path) -> None:
    archive = ParquetArchive(tmp_path.as_uri(), namespace="rs")
    await archive.prepare()
    for version in (3, 4):
        await archive.write(
            ArchiveBatch(tasks=[sample_task("s", str(n), version) for n in range(5)])
        )
        await archive.write(ArchiveBatch(tasks=[sample_task("s", f"only-{version}", 1)]))
    asked = _query(tmp_path)
    assert duckdb.sql(asked).fetchall() == [("h", "FAILED", 7)]
    assert await archive.compact() > 0
    assert duckdb.sql(asked).fetchall() == [("h", "FAILED", 7)]
    assert (await archive.status()).tasks == 7


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


def _query(root: Path) -> str:
    (query,) = re.findall(r"```sql\n(SET VARIABLE.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    return str(query).replace("'/folder/", f"'{root}/")
