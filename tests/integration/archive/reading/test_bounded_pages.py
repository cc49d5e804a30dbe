"""Pages of tasks and of records, in both archives: bounded in bytes, and whole together."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")

from redis_state.archive.model import (
    ArchiveBatch,
    ArchivedRecord,
    ArchivedTask,
    RecordKind,
    RecordPlace,
)
from redis_state.archive.protocol import Archive
from redis_state.archive.queries import ArchiveQuery
from tests.support.tasks.archived.archived_tasks import sample_task

_BEGIN_MS = 1_700_000_000_000
_LARGE = 3 << 20


async def test_pages_of_tasks_are_bounded_in_bytes_and_have_each_task_once(
    archive: Archive,
) -> None:
    tasks: list[ArchivedTask] = []
    for n in range(9):
        # Three end at a time, in an order that ids decide; one is used again.
        made = sample_task(f"s{n % 2}", f"t{n // 2}", 3, at_ms=_BEGIN_MS + n // 3)
        record = {**made.record, b"result": b"x" * (_LARGE if n % 4 else 10)}
        tasks.append(replace(made, record=record))
    await archive.write(ArchiveBatch(tasks))
    query = ArchiveQuery(limit=5)
    pages: list[list[ArchivedTask]] = []
    while page := await archive.tasks(query):
        pages.append(page)
        query = replace(query, after=page[-1].end)
    found = [task for page in pages for task in page]
    assert sorted(task.key for task in found) == sorted(task.key for task in tasks)
    assert [task.ended_at for task in found] == sorted(
        (task.ended_at for task in tasks), reverse=True
    )
    sizes = [[len(task.record[b"result"]) for task in page] for page in pages]
    assert max(sum(each[:-1]) for each in sizes) < 4 << 20
    assert len(pages) >= 3


async def test_pages_of_records_are_bounded_in_bytes_and_have_each_record_once(
    archive: Archive,
) -> None:
    records = [
        ArchivedRecord(
            RecordKind.TRAJECTORY,
            "owner",
            f"k{n}",
            born_us=_BEGIN_MS * 1000 + n // 2,
            at_us=_BEGIN_MS * 1000 + n,
            data=b"x" * _LARGE,
            version=1,
            write="w",
        )
        for n in range(5)
    ]
    await archive.write(ArchiveBatch(records=records))
    found: list[ArchivedRecord] = []
    after: RecordPlace | None = None
    pages = 0
    while page := await archive.records(RecordKind.TRAJECTORY, "owner", after=after):
        assert len(page) <= 2
        found += page
        after, pages = page[-1].place, pages + 1
    assert found == records
    assert pages > 2
