"""What an archiver does when things are not as they should be."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

import psycopg
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive import ArchiveQuery, open_archive
from redis_state.archive.copying import archiver as module
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.copying.backfill import backfill
from redis_state.archive.model import ArchiveBatch
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.postgres.schema import MIGRATIONS
from redis_state.archive.protocol import Archive
from redis_state.archive.waiting import ArchiveList
from redis_state.errors import ArchiveUnavailable, ConfigError
from redis_state.models import TaskStatus
from redis_state.scripts import JOURNAL_PORTION, ReplyCode
from redis_state.scripts.stores.archive import ArchiveScripts
from redis_state.testing import eventually
from redis_state.worker.archiving.loop import archive_regularly
from redis_state.worker.observe.stats import WorkerStats
from redis_state.worker.recovery.sweeper import Sweeper
from redis_state.worker.tasks.move_parts import watch_entry
from tests.support.processes.pools import SESSION
from tests.support.scripts.replies import clock_ms, clock_passes
from tests.support.servers.postgres import OwnPostgres
from tests.support.tasks.archived.archives import (
    all_due,
    archive_all,
    archive_and_expire,
    archived,
    archived_rows,
    ended,
    expected,
    live_rows,
    tell,
)
from tests.support.tasks.crash_states import close_queues, make_due, send, sweeper_of

pytestmark = pytest.mark.worker
DAY_MS = 86_400_000


async def swept(store: RedisStateStore, task: str, sweeper: Sweeper) -> None:
    """Have a sweeper look at a task twice."""
    for _ in range(2):
        await make_due(store, watch_entry(SESSION, task))
        await sweeper.run_once()


async def test_a_journal_that_no_reply_holds_is_archived_whole(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await ended(live)
    journal = live.tasks.keys(SESSION, task).journal
    for number in range(100):
        await send(live, "HSET", journal, f"part:{number}:step:a#1", "x" * 300)
    await send(live, "PEXPIRE", journal, DAY_MS)
    assert await backfill(live) == 1
    monkeypatch.setattr(module, "JOURNAL_BYTES", 10_000)
    monkeypatch.setattr(module, "JOURNAL_NAMES", 60)
    sizes: list[int] = []
    real: Any = ArchiveScripts.read_ended

    async def counted(scripts: Any, *keys: Any, **given: Any) -> Any:
        reply = await real(scripts, *keys, **given)
        sizes.append(sum(map(len, reply.facts[2])) if reply.word is ReplyCode.OK else 0)
        return reply

    monkeypatch.setattr(ArchiveScripts, "read_ended", counted)
    await archive_all(live, archive)
    assert await archived(archive) == await expected(live, task)
    assert sum(sizes) > 30_000
    assert max(sizes) < 10_000 + JOURNAL_PORTION * 400


async def test_a_sweeper_hands_what_has_ended_on_only_if_something_is_archived(
    live: RedisStateStore, archive: Archive
) -> None:
    one, other = await ended(live), await ended(live)
    await swept(live, one, sweeper_of(live))
    assert (await ArchiveList(live).backlog()).tasks == 0
    await swept(live, other, sweeper_of(live, archiving=True))
    backlog = await ArchiveList(live).backlog()
    assert backlog.tasks == 1
    assert 0 <= backlog.oldest_s < 60
    await archive_all(live, archive)
    assert await archived(archive) == await expected(live, other)
    # What ended before is found by the index of tasks.
    assert await backfill(live) == 2
    await archive_all(live, archive)
    assert await archived(archive) == await expected(live, one, other)
    assert await archived_rows(archive) == await live_rows(live)
    assert (await ArchiveList(live).backlog()).oldest_s == 0
    await close_queues()


def gone(url: str) -> Archive:
    """Make an archive of the same kind that is not there."""
    if url.startswith("file:"):
        parquet = import_module("redis_state.archive.parquet.archive")
        away: Archive = parquet.ParquetArchive("file:///proc/nowhere", timeout_s=5)
        return away
    return PostgresArchive("postgresql:///x?host=/nowhere", timeout_s=5)


async def test_an_archive_that_is_away_delays_and_loses_nothing(
    live: RedisStateStore, archive: Archive, archive_url: str
) -> None:
    task = await ended(live)
    waiting = ArchiveList(live)
    await waiting.enlist(SESSION, task)
    away = Archiver(live, gone(archive_url))
    keys, log = live.tasks.keys(SESSION, task), live.updates.keys(SESSION)
    named = (keys.task, keys.journal, log.rows, log.ids)
    kept = [key for key in named if await live.transport.commands.exists(key)]
    assert len(kept) >= 3
    before = [int(await send(live, "PTTL", key)) for key in kept]
    for _ in range(3):
        await all_due(live)
        report = await away.run_once()
        # The task, and the session of its updates.
        assert (report.postponed, report.tasks) == (2, 0)
    # They do not expire while they are not archived, and wait without being looked at.
    held = [int(await send(live, "PTTL", key)) for key in kept]
    assert all(left > 300 * DAY_MS for left in held)
    assert (await away.run_once()).looked == 0
    assert (await waiting.backlog()).tasks == 1
    await archive_all(live, archive)
    assert await archived(archive) == await expected(live, task)
    after = [int(await send(live, "PTTL", key)) for key in kept]
    assert all(0 < now <= was for now, was in zip(after, before, strict=True))


async def test_rows_that_grow_old_while_the_archive_is_away_are_archived(
    live: RedisStateStore, archive: Archive, archive_url: str
) -> None:
    await tell(live, 5)
    await ArchiveList(live).watch_session(SESSION, within_ms=0)
    await all_due(live)
    assert (await Archiver(live, gone(archive_url)).run_once()).postponed == 1
    await clock_passes(live.base.scripts, await clock_ms(live.base.scripts) + 2)
    # To these, all rows of before are too old.
    short = live.settings.model_copy(update={"updates_ttl": timedelta(milliseconds=1)})
    async with RedisStateStore(short) as store:
        await tell(store, 3)
    rows = await live_rows(live)
    assert len(await live.list_updates(SESSION)) == 8
    await all_due(live)
    report = await Archiver(live, archive).run_once()
    assert (report.updates, report.missed) == (8, 0)
    assert await archived_rows(archive) == rows
    # From now on they are.
    async with RedisStateStore(short) as store:
        await tell(store, 1)
    assert len(await live.list_updates(SESSION)) < 8


async def test_the_list_of_a_session_forgets_a_task_when_the_task_expires(
    archiving: Settings, archive: Archive
) -> None:
    short = archiving.model_copy(update={"finished_task_ttl": timedelta(hours=2)})
    async with RedisStateStore(short) as store:
        task = await ended(store)
        keys = store.tasks.keys(SESSION, task)
        before = float(await send(store, "ZSCORE", keys.tasks, task))
        listed_ms = int(await send(store, "PTTL", keys.tasks))
        await ArchiveList(store).enlist(SESSION, task)
        await archive_all(store, archive)
        assert await send(store, "HEXISTS", keys.task, "archived") == 1
        assert float(await send(store, "ZSCORE", keys.tasks, task)) <= before + 1_000_000
        assert int(await send(store, "PTTL", keys.tasks)) <= listed_ms + 1_000
        assert int(await send(store, "PTTL", keys.task)) <= 7_200_000


async def test_a_task_that_is_retried_is_archived_as_it_ended_last(
    live: RedisStateStore, archive: Archive
) -> None:
    task = await ended(live, TaskStatus.FAILED)
    await ArchiveList(live).enlist(SESSION, task)
    archiver = Archiver(live, archive)
    await archive_all(live, archive, archiver)
    first = await archived(archive)
    key = live.tasks.keys(SESSION, task).task
    old = await send(live, "HGETALL", key)
    await send(live, "HSET", key, "version", "99", "write", "later", "status", "COMPLETE")
    await ArchiveList(live).enlist(SESSION, task)
    await archive_all(live, archive, archiver)
    assert await archived(archive) == await expected(live, task) != first
    # A server that went back gives lower versions again: what Redis has is the truth.
    await send(live, "HSET", key, *old)
    await send(live, "HSET", key, "write", "again")
    await ArchiveList(live).enlist(SESSION, task)
    await archive_all(live, archive, archiver)
    assert await archived(archive) == await expected(live, task)


async def test_the_look_at_a_session_whose_log_has_expired_asks_the_archive_for_no_rows(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await ended(live)
    await tell(live, 3)
    await archive_and_expire(live, archive, task)
    asked: list[Sequence[str]] = []
    last_rows = archive.last_rows

    async def counted(session_ids: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        asked.append(session_ids)
        return await last_rows(session_ids)

    monkeypatch.setattr(archive, "last_rows", counted)
    await archive_all(live, archive)
    assert asked == [[SESSION]]
    keys = live.updates.keys(SESSION)
    await send(live, "DEL", keys.rows, keys.ids)
    await all_due(live)
    await Archiver(live, archive).run_once()
    assert len(asked) == 1
    assert await ArchiveList(live).sessions.claim_due() == []


async def test_a_late_archiver_does_not_bring_an_older_end_back(
    live: RedisStateStore, archive: Archive
) -> None:
    task = await ended(live, TaskStatus.FAILED)
    await ArchiveList(live).enlist(SESSION, task)
    await archive_all(live, archive)
    (old,) = await archive.tasks(_of_session())
    await send(live, "HSET", live.tasks.keys(SESSION, task).task, "version", "99", "write", "n")
    await ArchiveList(live).enlist(SESSION, task)
    await archive_all(live, archive)
    late = ArchiveBatch(tasks=[old])
    await archive.write(late)
    assert (await archive.verify(late)).tasks == {old.key: "99 n"}
    assert await archived(archive) == await expected(live, task)


async def test_a_worker_counts_what_it_archives_and_what_waits(
    live: RedisStateStore, archiving: Settings, archive: Archive
) -> None:
    task = await ended(live)
    stats = WorkerStats()
    await ArchiveList(live).enlist(SESSION, task)
    own = open_archive(archiving)
    running = asyncio.create_task(archive_regularly(live, own, stats=stats))
    await eventually(lambda: stats.archived["tasks"] == 1, "it is archived")
    assert stats.archived["updates"] == len(await live.list_updates(SESSION))
    # It is counted after the round that has archived it.
    await eventually(lambda: stats.archive_backlog.value is not None, "it is counted")
    assert (stats.archive_backlog.value or (0, 0.0))[0] == 1
    running.cancel()
    await asyncio.wait({running})
    assert await archived(archive) == await expected(live, task)


def _of_session() -> ArchiveQuery:

    return ArchiveQuery(session_id=SESSION)


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_what_is_damaged_in_the_archive_is_not_marked(
    live: RedisStateStore, archive: Archive, postgres: OwnPostgres
) -> None:
    task = await ended(live)
    await ArchiveList(live).enlist(SESSION, task)
    write = archive.write

    async def damaging(batch: ArchiveBatch, **options: object) -> None:
        await write(batch, **options)
        async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as beside:
            await beside.execute(
                "UPDATE redis_state.tasks SET record = '{}', version = 0 WHERE namespace = %s",
                [live.settings.namespace],
            )

    archive.write = damaging  # type: ignore[method-assign]
    archiver = Archiver(live, archive)
    await all_due(live)
    assert (await archiver.run_once()).tasks == 0
    assert not await live.transport.commands.hexists(
        live.tasks.keys(SESSION, task).task, "archived"
    )
    archive.write = write  # type: ignore[method-assign]
    await archive_all(live, archive, archiver)
    assert await archived(archive) == await expected(live, task)


async def test_an_archive_that_was_restored_gets_what_it_lacks(
    live: RedisStateStore, archive: Archive
) -> None:
    tasks = [await ended(live), await ended(live)]
    assert await backfill(live) == 2
    await archive_all(live, archive)
    assert await archive.forget(SESSION) is not None
    assert await backfill(live) == 2
    await archive_all(live, archive)
    assert await archived(archive) == {}
    assert await backfill(live, again=True) == 2
    await archive_all(live, archive)
    assert await archived(archive) == await expected(live, *tasks)
    assert await archived_rows(archive) == await live_rows(live)


async def test_archivers_that_work_at_once_copy_nothing_twice(
    live: RedisStateStore, archiving: Settings, archive: Archive
) -> None:
    tasks = [await ended(live) for _ in range(6)]
    waiting = ArchiveList(live)
    others = [open_archive(archiving) for _ in range(3)]
    archivers = [Archiver(live, each) for each in others]
    for _ in range(3):
        for task in tasks:
            await waiting.enlist(SESSION, task)
        await all_due(live)
        await asyncio.gather(*(each.run_once() for each in archivers))
    await archive_all(live, archive)
    assert await archived(archive) == await expected(live, *tasks)
    assert await archived_rows(archive) == await live_rows(live)
    for each in others:
        await each.aclose()


async def test_migrators_that_come_together_make_the_tables_once(postgres: OwnPostgres) -> None:
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as beside:
        await beside.execute("DROP DATABASE IF EXISTS migrated")
        await beside.execute("CREATE DATABASE migrated")
    url = postgres.url.replace("/postgres?", "/migrated?")
    archives = [PostgresArchive(url) for _ in range(5)]
    with pytest.raises(ArchiveUnavailable, match="no worker has prepared it yet"):
        await archives[0].status()
    await asyncio.gather(*(each.prepare() for each in archives))
    await archives[0].prepare()
    async with await psycopg.AsyncConnection.connect(url) as beside:
        found = await (
            await beside.execute("SELECT version FROM redis_state.migrations")
        ).fetchall()
    assert sorted(found) == [(version,) for version in range(1, len(MIGRATIONS) + 1)]
    for each in archives:
        await each.aclose()


@pytest.mark.parametrize(
    "options",
    [
        {"archive_url": SecretStr("mysql://u:secret@h/d")},
        {"archive_url": None},
        {"archive_url": SecretStr("postgresql://u:s/secret@h/d")},
        {"archive_url": SecretStr("s3://u:secret@bucket/prefix")},
        {"archive_url": SecretStr("s3://bucket/prefix?secret=1")},
        {"archive_url": SecretStr("file://host/folder?secret=1")},
        {"archive_url": SecretStr("postgresql://u:secret@h/d"), "finished_task_ttl": 60},
    ],
)
def test_what_cannot_be_an_archive_is_refused(settings: Settings, options: dict[str, Any]) -> None:
    given = Settings(**{**settings.model_dump(), **options})
    with pytest.raises(ConfigError) as refused:
        open_archive(given)
    assert "secret" not in str(refused.value)


async def test_no_error_tells_a_password(settings: Settings) -> None:
    archive = PostgresArchive("postgresql://ann:secret@127.0.0.1:1/d", timeout_s=5)
    with pytest.raises(ArchiveUnavailable) as refused:
        await archive.prepare()
    assert "secret" not in f"{refused.value} {archive!r}"
