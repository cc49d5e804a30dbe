"""Archiving by hand, and in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from time import monotonic
from typing import TYPE_CHECKING, Any

from redis_state import RedisStateStore
from redis_state.archive import ArchiveReader, open_archive
from redis_state.archive.copying.archiver import Archiver, ArchiveReport
from redis_state.archive.copying.backfill import backfill as backfill_tasks
from redis_state.archive.copying.records import RecordArchiver
from redis_state.archive.identity import KnownArchive, all_compared
from redis_state.archive.retaining import Retainer
from redis_state.archive.working import WorkingArchivers
from redis_state.errors import ArchiveUnavailable, CommandRefused
from redis_state.store import process_name
from redis_state.stores.archive_list import RecordList

if TYPE_CHECKING:
    from redis_state.worker.observe.stats import WorkerStats

_CHECK_S = 0.5
_BY_NAMES = ("tasks of hosts", "updates of sessions without tasks")


async def archive_due(
    url: str | None, *, backfill: bool, again: bool, accept: bool = False
) -> dict[str, Any]:
    """Archive what is due until nothing is; return what was done, by name.

    With ``accept`` into another archive than Redis knows. Redis knows it once all is listed again:
    so who was killed before that has changed nothing for good. ``archivers`` are the others that
    worked until then: what they marked may be in the earlier archive.
    """
    again |= accept
    async with (
        RedisStateStore.from_url(url) as store,
        ArchiveReader(store) as reader,
        WorkingArchivers(store) as signs,
    ):
        known = KnownArchive(store, reader.archive)
        others = set(await signs.names()) if accept else set[str]()
        await (reader.archive.prepare() if accept else known.ready())
        enlisted, sessions, found, left = 0, 0, Counter[str](), list[str]()
        if backfill or again:
            from redis_state.worker.archiving.again import (  # noqa: PLC0415 - the extra
                enlist_records,
                enlist_saved_tasks,
                enlist_sessions,
            )

            enlisted = await backfill_tasks(store, again=again)
            try:
                enlisted += await enlist_saved_tasks(store, again=again)
                sessions = await enlist_sessions(store)
            except CommandRefused:
                # It takes the right to read names, which the index of tasks does not.
                left += _BY_NAMES
            records_found = await enlist_records(store, again=again)
            found, left = records_found.counts, [*left, *sorted(records_found.left)]
        if accept:
            await known.accept()
            others |= set(await signs.names())
        due_at = monotonic()
        if found.total():
            due_at += RecordList(store.base).rest_s + 1
        archiver, total = Archiver(store, reader.archive), ArchiveReport()
        records = RecordArchiver(store, reader.archive)
        copied: Counter[str] = Counter()
        while True:
            await signs.sign()
            report, other = await archiver.run_once(), await records.run_once()
            total += report
            copied += other.copied
            total.missed += other.missed
            if report.postponed or other.postponed:
                raise ArchiveUnavailable("write", "see the log")
            if report.looked or other.looked:
                continue
            if monotonic() >= due_at:
                await Retainer(store, reader.archive).clean()
                counts = asdict(total) | copied | {"enlisted": enlisted}
                counts |= {"enlisted_records": found.total(), "enlisted_sessions": sessions}
                return counts | ({"archivers": len(others)} if accept else {}) | {"left": left}
            await asyncio.sleep(_CHECK_S)


async def archive_once_more(url: str | None) -> dict[str, Any]:
    """Archive all again once archivers of an earlier archive refuse; return what was done."""
    await all_compared()
    return await archive_due(url, backfill=False, again=True)


async def follow_until_ended(
    url: str | None, *, share: float, nice: int, metrics: tuple[str, int] | None
) -> None:
    """Archive until SIGTERM or SIGINT. What is claimed then is due again after two minutes.

    ``metrics`` are served at a host and a port. Errors: ConfigError without their extra.
    """
    from redis_state.worker.archiving.loop import (  # noqa: PLC0415 - needs the extra
        archive_regularly,
    )
    from redis_state.worker.observe.stats import WorkerStats  # noqa: PLC0415 - as above

    stats = WorkerStats()
    async with _serving(stats, metrics), RedisStateStore.from_url(url) as store:
        archive = open_archive(store.settings)
        # Not on every system.
        with suppress(AttributeError):
            os.nice(nice)
        work = asyncio.create_task(archive_regularly(store, archive, share=share, stats=stats))
        for name in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(name, work.cancel)
        await asyncio.wait({work})
        if not work.cancelled():
            await work


@asynccontextmanager
async def _serving(stats: WorkerStats, metrics: tuple[str, int] | None) -> AsyncGenerator[None]:
    if metrics is None:
        yield
        return
    from redis_state.worker.pool.process import need_prometheus  # noqa: PLC0415 - needs the extra

    need_prometheus()
    from redis_state.worker.observe.metrics import ArchiveMetrics, Served  # noqa: PLC0415 - as above

    host, port = metrics
    served = Served(ArchiveMetrics(process_name(), stats), registry=None, host=host, port=port)
    try:
        yield
    finally:
        await served.aclose()
