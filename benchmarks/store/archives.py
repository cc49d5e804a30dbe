"""What archiving costs: tasks a second of one archiver, and bytes of a task, for both archives."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.driver import NotMeasured
from benchmarks.report import Row, missing, row
from benchmarks.runner import Run
from benchmarks.tasks.postgres import BenchPostgres
from redis_state.archive.model import ArchiveBatch, ArchivedRow, ArchivedTask, SessionRows
from redis_state.archive.parquet.archive import ParquetArchive
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.protocol import Archive

# As an archiver writes: so many tasks at once, and the updates of so many sessions.
_TOGETHER, _SESSIONS = 16, 8
_UPDATES, _STEPS = 10, 3
_BEGIN_US = 1_764_000_000_000_000
_WORDS = [f"{number * 7919 % 1_000_003:06d}" for number in range(2_000)]


def measure_archives(run: Run) -> list[Row]:
    """Measure PostgreSQL and a folder of Parquet files."""
    count = 1_600 if run.quick else 8_000
    rows: list[Row] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redis-state-bench-")))
        rows += _rows("Parquet", asyncio.run(_parquet(run, folder, count)), count)
        try:
            server = stack.enter_context(BenchPostgres())
        except NotMeasured as error:
            return [*rows, missing("archive: PostgreSQL", str(error))]
        rows += _rows("PostgreSQL", asyncio.run(_postgres(run, server, count)), count)
    return rows


def _rows(name: str, measured: tuple[float, int], count: int) -> list[Row]:
    seconds, size = measured
    return [
        row(f"archive: tasks written and verified, {name}", count / seconds, "tasks/s"),
        row(f"archive: a task with {_UPDATES} updates, {name}", size / count, "bytes"),
    ]


async def _parquet(run: Run, folder: Path, count: int) -> tuple[float, int]:
    archive = ParquetArchive(folder.as_uri())
    run.tell(f"archive: {count:,} tasks in Parquet files")
    seconds = await _fill(archive, count)
    await archive.compact()
    return seconds, (await archive.status()).bytes


async def _postgres(run: Run, server: BenchPostgres, count: int) -> tuple[float, int]:
    archive = PostgresArchive(server.url)
    run.tell(f"archive: {count:,} tasks in {server.version}")
    seconds = await _fill(archive, count)
    size = (await archive.status()).bytes
    await archive.aclose()
    return seconds, size


async def _fill(archive: Archive, count: int) -> float:
    await archive.prepare()
    batches = [_batch(first) for first in range(0, count, _TOGETHER)]
    began = time.perf_counter()
    for tasks, sessions in batches:
        for start in range(0, len(sessions.sessions), _SESSIONS):
            part = ArchiveBatch(sessions=sessions.sessions[start : start + _SESSIONS])
            await _keep(archive, part)
        await _keep(archive, tasks)
    return time.perf_counter() - began


async def _keep(archive: Archive, batch: ArchiveBatch) -> None:
    await archive.write(batch)
    if not (await archive.verify(batch)).is_whole:
        raise RuntimeError("the archive has something else")


def _batch(first: int) -> tuple[ArchiveBatch, ArchiveBatch]:
    numbers = range(first, first + _TOGETHER)
    tasks = [_task(number) for number in numbers]
    rows = [SessionRows(f"session-{number:06}", None, _updates(number)) for number in numbers]
    return ArchiveBatch(tasks), ArchiveBatch(sessions=rows)


def _task(number: int) -> ArchivedTask:
    text = _text(number, 200)
    us = _BEGIN_US + number * 20_000
    document = {"created_at": "2025-11-24T16:00:00+00:00", "task_type": "BACKGROUND"}
    job = {"handler": "summarise", "input": {"text": text}, "secret": f"s{number}"}
    record = {
        b"status": b"COMPLETE",
        b"document": json.dumps({**document, "trace_id": f"trace-{number}"}).encode(),
        b"job": json.dumps(job).encode(),
        b"result": json.dumps({"summary": text}).encode(),
        b"order": b"%d" % us,
        b"version": b"4",
        b"write": b"%016x" % number,
        b"updated_at": b"%d" % (us + 2_000_000),
    }
    journal = {
        b"step:work#%d" % step: json.dumps({"result": text[:100]}).encode()
        for step in range(_STEPS)
    }
    flat = [[part for pair in fields.items() for part in pair] for fields in (record, journal)]
    return ArchivedTask.of(f"session-{number:06}", f"task-{number:06}", *flat)


def _updates(number: int) -> list[ArchivedRow]:
    ms = _BEGIN_US // 1000 + number * 20
    return [
        ArchivedRow(
            n,
            ms + n,
            f"{number:08x}{n:08x}".encode(),
            f"task-{number:06}",
            json.dumps(
                {"update_type": "PROGRESS", "content": _text(number * 100 + n, 100)}
            ).encode(),
        )
        for n in range(1, _UPDATES + 1)
    ]


def _text(seed: int, size: int) -> str:
    """Make text of 2,000 words, each as likely as the others: it compresses less than real text."""
    chosen = random.Random(seed)
    return " ".join(chosen.choices(_WORDS, k=size // 7))
