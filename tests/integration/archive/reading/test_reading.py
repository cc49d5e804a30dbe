"""Cursors that go from the archive to Redis: without a gap, without a repeat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from cryptography.fernet import Fernet
from pydantic import SecretStr

from redis_state import RedisStateStore
from redis_state.archive import ArchiveQuery, ArchiveReader
from redis_state.archive.protocol import Archive
from redis_state.archive.waiting import ArchiveList
from redis_state.errors import CursorGap
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.payloads.settings import make_payloads
from tests.support.processes.pools import SESSION
from tests.support.tasks.archived.archives import (
    archive_all,
    archived,
    archived_rows,
    ended,
    expected,
    live_rows,
    log_of,
    tell,
)
from tests.support.tasks.crash_states import send

pytestmark = pytest.mark.worker


@pytest.fixture
async def reader(live: RedisStateStore, archive: Archive) -> AsyncIterator[ArchiveReader]:
    async with ArchiveReader(live, archive) as opened:
        yield opened


async def read_all(reader: ArchiveReader, *, limit: int = 2) -> tuple[list[StateUpdate], str]:
    """Read all updates page by page; give the cursor behind the last one too."""
    found: list[StateUpdate] = []
    after: str | None = None
    while True:
        page = await reader.updates(SESSION, after=after, limit=limit)
        found += page.values
        if page.at_end:
            return found, page.cursor
        after = page.cursor


async def archive_task(live: RedisStateStore, archive: Archive, updates: int = 3) -> str:
    task = await ended(live, updates=updates)
    await ArchiveList(live).enlist(SESSION, task)
    await archive_all(live, archive)
    return task


async def drop_log(live: RedisStateStore) -> None:
    """Have a session's updates expire."""
    keys = live.updates.keys(SESSION)
    await send(live, "DEL", keys.rows, keys.ids)


async def test_a_reader_goes_from_the_archive_to_what_redis_still_has(
    live: RedisStateStore, archive: Archive, reader: ArchiveReader
) -> None:
    task = await archive_task(live, archive)
    whole = await live.list_updates(SESSION)
    assert await archived_rows(archive) == await live_rows(live)
    await tell(live, 3)
    later = (await live.list_updates(SESSION))[len(whole) :]
    # What was archived leaves Redis, as retention has it.
    log = log_of(live)
    keep = replace(log.bounds, max_rows=4)
    small = type(log)(live.base.scripts, log.keys, keep, named=True)
    update = StateUpdate(
        session_id=SESSION, task_id="t", update_type=UpdateType.RESULT, content={"last": True}
    )
    await small.append([live.updates.write(update)], topic="t")
    assert len(await log.read_all()) < len(whole) + 4
    found, cursor = await read_all(reader)
    assert [u.update_id for u in found] == [u.update_id for u in [*whole, *later, update]]
    assert found[:-1] == [*whole, *later]
    # The cursor is the store's own, and one of the store's continues here.
    assert (await live.read_updates(SESSION, after=cursor)).values == []
    mine = [each.update_id async for each in _values(reader, task)]
    assert mine == [u.update_id for u in whole if u.task_id == task]


async def _values(reader: ArchiveReader, task: str) -> AsyncIterator[StateUpdate]:
    async for entry in reader.all_updates(SESSION, task_id=task):
        yield entry.value


async def test_a_log_that_has_expired_and_began_again_follows_what_is_archived(
    live: RedisStateStore, archive: Archive, reader: ArchiveReader
) -> None:
    await archive_task(live, archive)
    first = await live.list_updates(SESSION)
    _, cursor = await read_all(reader)
    await drop_log(live)
    page = await reader.updates(SESSION, after=cursor)
    assert (page.values, page.cursor, page.at_end) == ([], cursor, True)
    await tell(live, 2)
    second = await live.list_updates(SESSION)
    assert (await reader.updates(SESSION, after=cursor)).values == second
    await archive_task(live, archive)
    third = (await live.list_updates(SESSION))[2:]
    await drop_log(live)
    found, _ = await read_all(reader)
    assert found == [*first, *second, *third]


async def test_what_was_trimmed_before_it_was_archived_is_a_gap_that_can_be_passed(
    live: RedisStateStore, archive: Archive, reader: ArchiveReader
) -> None:
    await archive_task(live, archive)
    _, cursor = await read_all(reader)
    log = log_of(live)
    small = type(log)(live.base.scripts, log.keys, replace(log.bounds, max_rows=2), named=True)
    rows = [
        live.updates.write(
            StateUpdate(
                session_id=SESSION, task_id="t", update_type=UpdateType.RESULT, content={"n": n}
            )
        )
        for n in range(8)
    ]
    for row in rows:
        await small.append([row], topic="t")
    left = len(await log.read_all())
    assert left < 8
    task = await ended(live, updates=0)
    await ArchiveList(live).enlist(SESSION, task)
    report = await archive_all(live, archive)
    assert report.missed == 8 - left
    await drop_log(live)
    with pytest.raises(CursorGap) as gap:
        await reader.updates(SESSION, after=cursor)
    assert (gap.value.reason, gap.value.missed) == ("trimmed", 8 - left)
    page = await reader.updates(SESSION, after=gap.value.resume_after)
    assert [u.content for u in page.values[:left]] == [{"n": n} for n in range(8 - left, 8)]


@pytest.mark.role("any", why="it takes keys back with RESTORE")
async def test_rows_of_a_history_that_the_server_lost_are_shown(
    live: RedisStateStore, archive: Archive, reader: ArchiveReader
) -> None:
    keys = live.updates.keys(SESSION)
    await tell(live, 2)
    kept = [await send(live, "DUMP", key) for key in (keys.rows, keys.ids)]
    before = await live.list_updates(SESSION)
    await archive_task(live, archive, updates=2)
    _, lost = await read_all(reader)
    # A row that was numbered again has a later time.
    await asyncio.sleep(0.002)
    for key, dump in zip((keys.rows, keys.ids), kept, strict=True):
        await send(live, "RESTORE", key, 3_600_000, dump, "REPLACE")
    task = await archive_task(live, archive, updates=3)
    after = (await live.list_updates(SESSION))[2:]
    assert after[0].task_id == task
    assert await archived_rows(archive) == await live_rows(live)
    with pytest.raises(CursorGap) as gap:
        await reader.updates(SESSION, after=lost)
    assert gap.value.reason == "rewound"
    assert (await reader.updates(SESSION, after=gap.value.resume_after)).values == after
    await drop_log(live)
    with pytest.raises(CursorGap):
        await reader.updates(SESSION, after=lost)
    found, _ = await read_all(reader)
    assert found == [*before, *after]


async def test_encrypted_payloads_stay_encrypted(live: RedisStateStore, archive: Archive) -> None:
    key = Fernet.generate_key().decode()
    sealed = live.settings.model_copy(update={"payload_keys": SecretStr(key)})
    assert make_payloads(sealed).seals
    async with RedisStateStore(sealed) as store:
        task = await ended(store)
        await ArchiveList(store).enlist(SESSION, task)
        await archive_all(store, archive)
        assert await archived(archive) == await expected(store, task)
        before = await store.tasks.load(SESSION, task)
        updates = await store.list_updates(SESSION)
        await store.clear_session(SESSION)
        async with ArchiveReader(store, archive) as reader:
            assert await reader.task(SESSION, task) == before
            assert (await reader.updates(SESSION)).values == updates
    (found,) = await archive.tasks(_all())
    assert task.encode() not in found.record[b"result"]
    rows = await archive.rows(SESSION, after=None, count=100)
    assert rows
    assert not any(b'{"n":' in row.data for row in rows)


def _all() -> ArchiveQuery:

    return ArchiveQuery()


async def test_a_session_is_described_found_and_erased(
    live: RedisStateStore, archive: Archive, reader: ArchiveReader
) -> None:
    assert await reader.session(SESSION) is None
    assert await archive.forget(SESSION) is None
    good = await archive_task(live, archive)
    bad = await ended(live, TaskStatus.FAILED)
    await ArchiveList(live).enlist(SESSION, bad)
    await archive_all(live, archive)
    described = await reader.session(SESSION)
    assert described is not None
    assert (described.tasks, described.updates) == (2, len(await live.list_updates(SESSION)))
    assert [t.task_id for t in await reader.find(status=[TaskStatus.FAILED])] == [bad]
    assert [t.task_id for t in await reader.find(handler="answer")] == [bad, good]
    assert await reader.find(handler="other") == []
    counted = await archive.status()
    assert (counted.sessions, counted.tasks, counted.updates) == (1, 2, described.updates)
    assert await archive.forget(SESSION) == described
    assert await reader.session(SESSION) is None
    assert (await archive.status()).tasks == 0
