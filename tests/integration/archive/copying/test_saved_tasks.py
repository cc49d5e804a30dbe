"""Tasks that a host saves, with no worker: archived, read there, and left to expire like others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.archive import ArchiveReader
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.protocol import Archive
from redis_state.archive.waiting import ArchiveList
from redis_state.models import TaskStatus
from redis_state.stores.archive_list import session_entry
from redis_state.testing import leaked_keys
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker import TaskClient
from redis_state.worker.archiving.again import enlist_saved_tasks
from redis_state.worker.tasks.histories import read_history
from tests.support.deaths import Recorder, sweep
from tests.support.processes.pools import SESSION
from tests.support.sizes import sizes
from tests.support.tasks.archived.archives import (
    all_due,
    archive_all,
    archived,
    archived_rows,
    ended,
    expected,
    let_expire,
    live_rows,
    tell,
)
from tests.support.tasks.archived.saved_tasks import save_begun, save_to_end
from tests.support.tasks.crash_states import send

pytestmark = pytest.mark.worker

DAY_MS = 86_400_000
# The fault points: what a save sends, and what an archiver does.
POINTS = {
    *("add_member", "watch_entry", "save_task", "put_record", "read_ended", "keep_rows"),
    *("claim_due", "mark_archived", "settle_claim"),
}


@pytest.mark.role("any", why="it takes keys back with RESTORE")
async def test_a_saved_task_is_held_archived_let_go_of_and_read(
    live: RedisStateStore, archive: Archive
) -> None:
    tasks = [await save_to_end(live, "a"), await save_to_end(live, "b", TaskStatus.FAILED)]
    keys = live.tasks.keys(SESSION, "a")
    assert await send(live, "PTTL", keys.task) > 300 * DAY_MS
    assert await send(live, "PTTL", live.updates.keys(SESSION).rows) > 300 * DAY_MS
    assert (await ArchiveList(live).backlog()).tasks == len(tasks)
    whole = await live.tasks.load(SESSION, "a")

    report = await archive_all(live, archive)
    assert (report.tasks, report.refused) == (len(tasks), 0)
    assert await archived(archive) == await expected(live, *tasks)
    assert await archived_rows(archive) == await live_rows(live)
    assert await send(live, "PTTL", keys.task) < 300 * DAY_MS
    for shard in range(WATCH_SHARDS):
        # The index of tasks lists those of workers alone.
        assert await send(live, "EXISTS", live.base.keys.task_index(shard).about) == 0

    await let_expire(live, *tasks)
    async with TaskClient(live) as client:
        view = await client.inspect(SESSION, "a")
        assert view is not None
        assert (view.archived, view.handler) == (True, None)
        assert view.state == whole
        found = await client.find(archived="also")
        assert {(each.task_id, each.handler) for each in found.tasks} == {("a", None), ("b", None)}
        assert (await client.find(archived="only", handler="h")).tasks == []
    assert await read_history(live, SESSION, "a") is None
    async with ArchiveReader(live) as reader:
        listed = await reader.tasks(session_id=SESSION)
        assert {each.task_id for each in listed} == set(tasks)
    assert await leaked_keys(live.settings) == []


async def test_a_task_that_is_saved_again_is_archived_again(
    live: RedisStateStore, archive: Archive
) -> None:
    await save_to_end(live, "a")
    await archive_all(live, archive)
    state = await live.tasks.load(SESSION, "a")
    assert state is not None
    await live.save_task(replace(state, description="later"))
    assert await archived(archive) != await expected(live, "a")
    await archive_all(live, archive)
    assert await archived(archive) == await expected(live, "a")


@pytest.mark.parametrize("by", ["its host", "a client"])
async def test_a_saved_task_that_is_moved_to_its_end_is_archived(
    live: RedisStateStore, archive: Archive, by: str
) -> None:
    await save_begun(live, "a")
    if by == "its host":
        await live.transitions.move(SESSION, "a", TaskStatus.COMPLETE, result="x")
    else:
        await live.transitions.move(SESSION, "a", TaskStatus.PAUSED)
        async with TaskClient(live) as client:
            await client.cancel(SESSION, "a")
    assert await send(live, "PTTL", live.tasks.keys(SESSION, "a").task) > 300 * DAY_MS
    assert (await archive_all(live, archive)).tasks == 1
    assert await archived(archive) == await expected(live, "a")
    assert await archived_rows(archive) == await live_rows(live)


async def test_two_archivers_copy_a_saved_task_once(
    live: RedisStateStore, archive: Archive
) -> None:
    tasks = [await save_to_end(live, f"t{n}", updates=0) for n in range(24)]
    await all_due(live)
    archivers = Archiver(live, archive, limit=2), Archiver(live, archive, limit=2)
    for _ in range(20):
        await asyncio.gather(*(each.run_once() for each in archivers))
        await all_due(live)
    assert await archived(archive) == await expected(live, *tasks)


async def test_an_unfinished_task_lists_its_session_once_in_a_while(
    live: RedisStateStore, archive: Archive
) -> None:
    await tell(live, 3)
    await save_begun(live, "a")
    watch = ArchiveList(live).sessions
    assert await watch.has(session_entry(SESSION))
    await all_due(live)
    await Archiver(live, archive).run_once()
    assert await archived_rows(archive) == await live_rows(live)
    for claim in await watch.claim_due():
        await watch.settle([(claim, None)])
    async with RedisStateStore(live.settings) as other:
        for shard in range(WATCH_SHARDS):
            await send(live, "DEL", live.base.keys.archive_sessions(shard))
        await save_begun(live, "a")
        assert not await watch.has(session_entry(SESSION))
        await save_begun(other, "a")
        assert await watch.has(session_entry(SESSION))


@pytest.mark.role("any", why="it reads the names of all keys")
async def test_those_of_before_and_those_that_the_archive_lost_are_found(
    settings: Settings, archiving: Settings, archive: Archive
) -> None:
    ids = ["a", "€ 0:/{" * 50]
    async with RedisStateStore(settings) as store:
        for each in ids:
            await save_to_end(store, each)
        await save_begun(store, "runs")
    async with RedisStateStore(archiving) as live:
        worked = await ended(live)
        assert await enlist_saved_tasks(live) == len(ids)
        assert (await archive_all(live, archive)).tasks == len(ids)
        assert await archived(archive) == await expected(live, *ids)
        await archive.forget(SESSION)
        assert await enlist_saved_tasks(live) == len(ids)
        assert (await archive_all(live, archive)).tasks == 0
        assert await enlist_saved_tasks(live, again=True) == len(ids)
        assert (await archive_all(live, archive)).tasks == len(ids)
        assert await archived(archive) == await expected(live, *ids)
        assert worked not in await archived(archive)


async def test_without_an_archive_nothing_is_listed(settings: Settings) -> None:
    async with RedisStateStore(settings) as store:
        await save_to_end(store, "a")
        assert (await ArchiveList(store).backlog()).tasks == 0
        assert await send(store, "PTTL", store.tasks.keys(SESSION, "a").task) < 300 * DAY_MS


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stride", sizes(61, 1))
@pytest.mark.role("any", why="it has namespaces of its own")
async def test_a_process_dies_at_each_round_trip(
    archiving: Settings, archive_url: str, stride: int, record_property: Recorder
) -> None:
    argument = {
        "url": archiving.url.get_secret_value(),
        "archive": archive_url,
        "namespace": archiving.namespace,
    }
    deaths = await sweep("die_archiving_saved", argument, stride=stride, record=record_property)
    if stride == 1:
        assert {death["trip"] for death in deaths} >= POINTS
