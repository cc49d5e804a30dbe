"""What an archiver does while others change what it looks at."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.copying.updates import UpdateCopies
from redis_state.archive.model import ArchiveBatch, ArchivedTask
from redis_state.archive.protocol import Archive
from redis_state.archive.waiting import ArchiveList
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.stores.archive_list import session_entry
from tests.support.processes.pools import SESSION
from tests.support.tasks.archived.archives import all_due, archive_all, archived, ended, expected
from tests.support.tasks.crash_states import send

pytestmark = pytest.mark.worker


async def test_a_task_that_ends_again_while_an_archiver_looks_stays_on_the_list(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await ended(live, TaskStatus.FAILED)
    waiting, key = ArchiveList(live), live.tasks.keys(SESSION, task).task
    await waiting.enlist(SESSION, task)
    await archive_all(live, archive)
    # It is retried: an archiver that looks twice finds it running.
    await waiting.enlist(SESSION, task)
    await send(live, "HSET", key, "version", "98", "write", "r", "status", "RUNNING")
    archiver, last_rows = Archiver(live, archive), archive.last_rows
    await all_due(live)
    await archiver.run_once()
    fired = 0

    async def slow(sessions: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        nonlocal fired
        fired += 1
        # It ends, and a sweeper hands it on, before the archiver settles what it has seen.
        await send(live, "HSET", key, "version", "99", "write", "n", "status", "COMPLETE")
        await waiting.enlist(SESSION, task)
        return await last_rows(sessions)

    monkeypatch.setattr(archive, "last_rows", slow)
    await all_due(live)
    await archiver.run_once()
    monkeypatch.setattr(archive, "last_rows", last_rows)
    assert fired == 1
    assert (await waiting.backlog()).tasks == 1
    await archive_all(live, archive)
    assert await archived(archive) == await expected(live, task)


async def test_a_session_that_is_used_again_while_an_archiver_looks_stays_on_the_list(
    live: RedisStateStore, archive: Archive
) -> None:
    waiting, watch = ArchiveList(live), ArchiveList(live).sessions
    await waiting.watch_session(SESSION, within_ms=0)
    archiver = Archiver(live, archive)
    await all_due(live)
    await archiver.run_once()
    await all_due(live)
    (claim,) = await watch.claim_due(hold_ms=120_000)
    assert claim.again
    await waiting.watch_session(SESSION, within_ms=900_000)
    await watch.settle([(claim, None)])
    assert await watch.has(session_entry(SESSION))


async def test_sessions_are_copied_in_batches_of_a_bounded_size(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [f"s{n}" for n in range(40)]
    for session in sessions:
        update = StateUpdate(
            session_id=session, task_id="t", update_type=UpdateType.RESULT, content="x" * 1_000_000
        )
        assert await live.updates.save(update)
    written: list[int] = []
    write = archive.write

    async def measured(batch: ArchiveBatch) -> None:
        written.append(sum(len(row.data) for each in batch.sessions for row in each.rows))
        await write(batch)

    monkeypatch.setattr(archive, "write", measured)
    copied = await UpdateCopies(live, archive).copy(dict.fromkeys(sessions))
    assert copied.whole.keys() == set(sessions)
    assert copied.rows.total() == len(sessions)
    assert sum(written) > 40_000_000
    assert max(written) < 10_000_000
    assert (await archive.status()).updates == len(sessions)


async def test_few_tasks_are_in_memory_at_once_however_many_are_due(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [await ended(live, updates=0) for _ in range(40)]
    waiting = ArchiveList(live)
    await asyncio.gather(*(waiting.enlist(SESSION, task) for task in tasks))
    read = most = 0
    make, write = ArchivedTask.of, archive.write

    def counted(*arguments: Any) -> ArchivedTask:
        nonlocal read
        read += 1
        return make(*arguments)

    async def wrote(batch: ArchiveBatch) -> None:
        nonlocal read, most
        if batch.tasks:
            most, read = max(most, read), 0
        await write(batch)

    monkeypatch.setattr(ArchivedTask, "of", counted)
    monkeypatch.setattr(archive, "write", wrote)
    report = await Archiver(live, archive, limit=100).run_once()
    assert report.tasks == len(tasks)
    assert 0 < most <= 16
