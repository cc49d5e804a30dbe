"""Tasks are found in Redis and in the archive, in one order, each once."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from pydantic import SecretStr

from redis_state import RedisStateStore
from redis_state.archive import ArchiveListing
from redis_state.archive.protocol import Archive, patience
from redis_state.archive.waiting import ArchiveList
from redis_state.errors import ArchiveUnavailable, ConfigError, InvalidField
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskSummary
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION
from tests.support.servers.faults import begin_processes
from tests.support.servers.postgres import OwnPostgres
from tests.support.tasks.archived.archives import (
    archive_all,
    archive_and_expire,
    ended,
)
from tests.support.tasks.crash_states import started, submitted

pytestmark = pytest.mark.worker
_ALL: dict[str, Any] = {}
_SINCE: dict[str, Any] = {"ended_after": datetime(2001, 1, 1, tzinfo=UTC)}


async def find_all(client: TaskClient, *, limit: int = 2, **wanted: Any) -> list[TaskSummary]:
    """Find all pages."""
    found: list[TaskSummary] = []
    after: str | None = None
    for _ in range(500):
        page = await client.find(limit=limit, after=after, **wanted)
        assert not page.incomplete
        found += page.tasks
        after = page.cursor
        if after is None:
            return found
    raise AssertionError("the listing does not end")


def names(found: list[TaskSummary]) -> list[str]:
    return [task.task_id for task in found]


@pytest.mark.parametrize("newest_first", [True, False])
async def test_pages_go_on_from_redis_to_the_archive_in_one_order(
    live: RedisStateStore, archive: Archive, *, newest_first: bool
) -> None:
    tasks = [await ended(live, updates=0) for _ in range(8)]
    before = {task.task_id: task for task in await find_all(TaskClient(live))}
    # Every other one has left; one of the others is archived, and still there.
    await archive_and_expire(live, archive, *tasks[::2])
    await ArchiveList(live).enlist(SESSION, tasks[1])
    await archive_all(live, archive)
    waits = await submitted(live)
    async with TaskClient(live) as client:
        order = [*tasks, waits] if newest_first is False else [*tasks, waits][::-1]
        for limit in (1, 3, 100):
            found = await find_all(client, limit=limit, archived="also", newest_first=newest_first)
            assert names(found) == order
        assert [task.task_id for task in found if task.archived] == [
            task for task in order if task in tasks[::2]
        ]
        for task in found:
            if task.archived:
                # All else is as it was found in Redis.
                assert before[task.task_id] == type(task)(
                    **{name: getattr(task, name) for name in task.__slots__ if name != "archived"}
                )
        only = await find_all(client, archived="only", newest_first=newest_first)
        assert names(only) == [task for task in order if task in tasks[::2]]
        plain = await find_all(client, newest_first=newest_first)
        assert names(plain) == [task for task in order if task not in tasks[::2]]
        failed = await find_all(client, archived="also", status="FAILED", session_id=SESSION)
        assert failed == []


@pytest.mark.parametrize("newest_first", [True, False])
async def test_by_their_ends_pages_go_on_from_redis_to_the_archive(
    live: RedisStateStore, archive: Archive, *, newest_first: bool
) -> None:
    made = [await submitted(live) for _ in range(8)]
    order = random.Random(2).sample(made, len(made))
    for task in order:
        run = await started(live, task)
        await TaskTransitions(live).finish_run(run, TaskStatus.FAILED, error="no")
    moments = [task.updated_at for task in await find_all(TaskClient(live), **_SINCE)][::-1]
    await archive_and_expire(live, archive, *made[::2])
    both = next(task for task in order if task not in made[::2])
    await ArchiveList(live).enlist(SESSION, both)
    await archive_all(live, archive)
    wanted = order if newest_first is False else order[::-1]
    async with TaskClient(live) as client:
        for limit in (1, 3, 100):
            asked: dict[str, Any] = {"limit": limit, "newest_first": newest_first}
            assert names(await find_all(client, archived="also", **asked, **_SINCE)) == wanted
        only = await find_all(client, archived="only", newest_first=newest_first, **_SINCE)
        assert names(only) == [task for task in wanted if task in made[::2]]
        between: dict[str, Any] = {"ended_after": moments[2], "ended_before": moments[6]}
        found = await find_all(client, archived="also", newest_first=newest_first, **between)
        assert names(found) == [task for task in wanted if task in order[2:6]]
        # One that the archive has, and Redis too, ends again: it has the place of that end alone.
        await client.retry(SESSION, both)
        rest = [task for task in wanted if task != both]
        found = await find_all(client, archived="also", newest_first=newest_first, **_SINCE)
        assert names(found) == rest
        run = await started(live, both)
        await TaskTransitions(live).finish_run(run, TaskStatus.COMPLETE, result=1)
        again = await find_all(client, archived="also", newest_first=newest_first, **_SINCE)
        assert names(again) == ([both, *rest] if newest_first else [*rest, both])


@pytest.mark.parametrize("by_end", [False, True])
async def test_a_task_that_leaves_between_two_pages_is_found_once(
    live: RedisStateStore, archive: Archive, *, by_end: bool
) -> None:
    wanted: dict[str, Any] = _SINCE if by_end else {}
    tasks = [await ended(live, updates=0) for _ in range(9)]
    async with TaskClient(live) as client:
        found: list[str] = []
        after: str | None = None
        left = list(tasks)
        for number in range(50):
            page = await client.find(limit=2, after=after, archived="also", **wanted)
            found += [task.task_id for task in page.tasks]
            after = page.cursor
            if after is None:
                break
            # Those that were found, those to come, and those at the edge: all leave at times.
            gone, left = left[-1 - number % 2 :], left[: -1 - number % 2]
            await archive_and_expire(live, archive, *gone)
        assert found == tasks[::-1]


async def test_what_redis_has_of_a_task_is_the_truth(
    live: RedisStateStore, archive: Archive
) -> None:
    task = await ended(live, TaskStatus.FAILED)
    await ArchiveList(live).enlist(SESSION, task)
    await archive_all(live, archive)
    async with TaskClient(live) as client:
        await client.retry(SESSION, task)
        # The archive has its first end.
        assert [t.task_id for t in (await archive.find(ArchiveListing())).tasks] == [task]
        assert await find_all(client, archived="also", status="FAILED") == []
        (found,) = await find_all(client, archived="also")
        assert (found.status, found.archived) == (TaskStatus.PENDING, False)
        assert await find_all(client, archived="only") == []
        run = await started(live, task)
        await TaskTransitions(live).finish_run(run, TaskStatus.COMPLETE, result=1)
        await archive_and_expire(live, archive, task)
        (found,) = await find_all(client, archived="also", status="COMPLETE")
        assert (found.retries, found.archived) == (1, True)


async def test_a_cursor_is_one_of_its_listing(live: RedisStateStore, archive: Archive) -> None:
    for _ in range(3):
        await ended(live, updates=0)
    async with TaskClient(live) as client:
        page = await client.find(limit=1, archived="also")
        assert page.cursor is not None
        with pytest.raises(InvalidField, match="after"):
            await client.find(limit=1, after=page.cursor)
        with pytest.raises(InvalidField, match="archived"):
            await client.find(archived="perhaps")  # type: ignore[arg-type]


async def test_without_an_archive_asking_for_one_is_a_mistake(store: RedisStateStore) -> None:
    async with TaskClient(store) as client:
        with pytest.raises(ConfigError, match="archive_url"):
            await client.find(archived="also")
    with pytest.raises(ConfigError, match="archive_url"):
        store.archive  # noqa: B018 - it raises
    assert await client.inspect(SESSION, "none") is None


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_an_archive_that_is_away_leaves_what_redis_has(
    live: RedisStateStore, archive: Archive
) -> None:
    task = await ended(live)
    url = SecretStr("postgresql://ann:secret@127.0.0.1:1/d")
    away = live.settings.model_copy(update={"archive_url": url})
    async with RedisStateStore(away) as store, TaskClient(store) as client:
        page = await client.find(archived="also")
        assert ([t.task_id for t in page.tasks], page.incomplete) == ([task], True)
        with pytest.raises(ArchiveUnavailable):
            await client.find(archived="only")
        view = await client.inspect(SESSION, task)
        assert view is not None
        with pytest.raises(ArchiveUnavailable) as refused:
            await client.inspect(SESSION, "none")
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_an_archive_that_says_nothing_holds_nobody_up_twice(
    live: RedisStateStore,
    archive: Archive,
    monkeypatch: pytest.MonkeyPatch,
    unused_tcp_port: int,
) -> None:
    monkeypatch.setattr("redis_state.archive.reading.breaker._PATIENCE_S", 0.2)
    task = await ended(live)
    kept: list[asyncio.StreamWriter] = []

    def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept.append(writer)

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", unused_tcp_port)
    url = SecretStr(f"postgresql://ann@127.0.0.1:{unused_tcp_port}/d")
    muted = live.settings.model_copy(update={"archive_url": url})
    async with silent, RedisStateStore(muted) as store, TaskClient(store) as client:
        # Those of a round fail for one reason, and two reasons close the archive.
        for _ in range(2):
            pages = await asyncio.gather(*(client.find(archived="also") for _ in range(40)))
            assert all(page.incomplete and page.tasks[0].task_id == task for page in pages)
        # The next ones do not even try.
        monkeypatch.setattr("redis_state.archive.reading.breaker._PATIENCE_S", 3600.0)
        monkeypatch.setattr("redis_state.archive.reading.breaker._LEFT_ALONE_S", 3600.0)
        async with asyncio.timeout(20):
            assert (await client.find(archived="also")).incomplete
        assert kept
        for writer in kept:
            writer.close()


async def test_a_caller_who_must_not_be_held_up_gets_the_pages_that_were_read(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.archive.reading.reader._PAGE", 1)
    tasks = [await ended(live) for _ in range(3)]
    await archive_and_expire(live, archive, *tasks)
    assert (await live.archive.tasks_or_more(SESSION))[1] is False
    token = patience.set(asyncio.get_running_loop().time() + 2.0)
    try:
        found, more = await live.archive.tasks_or_more(SESSION)
    finally:
        patience.reset(token)
    assert ([each.task_id for each in found], more) == (tasks[-1:], True)


async def test_a_store_in_several_loops_has_a_reader_in_each(
    live: RedisStateStore, archive: Archive
) -> None:
    task = await ended(live)
    await archive_and_expire(live, archive, task)
    store = RedisStateStore(live.settings)

    async def look() -> str | None:
        async with store:
            found = await store.archive.task(SESSION, task)
            return None if found is None else found.task_id

    assert await asyncio.to_thread(asyncio.run, look()) == task
    assert await look() == task
    assert store.archive is store.archive
    await store.aclose()


@pytest.mark.parametrize(
    ("archive_url", "count"),
    [
        *(("postgres", 16), pytest.param("postgres", 200, marks=pytest.mark.full)),
        pytest.param("parquet", 100, marks=pytest.mark.full),
    ],
    indirect=["archive_url"],
)
async def test_each_task_is_found_once_while_processes_archive_them(
    live: RedisStateStore, archive: Archive, archive_url: str, count: int
) -> None:
    tasks = [await ended(live, updates=0) for _ in range(count)]
    shuffled = random.Random(5).sample(tasks, len(tasks))
    argument = {
        "url": live.settings.url.get_secret_value(),
        "namespace": live.settings.namespace,
        "archive": archive_url,
    }
    moving = await begin_processes(
        "archive_away",
        [argument | {"tasks": shuffled[::2]}, argument | {"tasks": shuffled[1::2]}],
        timeout_s=600,
    )
    mixed = 0
    async with TaskClient(live) as client:
        while not moving.done():
            for newest_first in (True, False):
                # They have ended in the order in which they were made.
                for wanted in (_ALL, _SINCE):
                    found = await find_all(
                        client, limit=7, archived="also", newest_first=newest_first, **wanted
                    )
                    assert names(found) == (tasks[::-1] if newest_first else tasks)
                mixed += 0 < sum(task.archived for task in found) < len(tasks)
        assert await moving == [count // 2] * 2
        assert mixed > 0
        found = await find_all(client, limit=7, archived="only")
        assert names(found) == tasks[::-1]


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_an_archive_that_is_killed_between_pages_leaves_a_page_incomplete_and_comes_back(
    live: RedisStateStore,
    archive: Archive,
    postgres: OwnPostgres,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("redis_state.archive.reading.breaker._LEFT_ALONE_S", 0.05)
    tasks = [await ended(live, updates=0) for _ in range(6)]
    await archive_and_expire(live, archive, *tasks[:3])
    async with TaskClient(live) as client:
        first = await client.find(limit=2, archived="also")
        assert (names(list(first.tasks)), first.incomplete) == (tasks[:3:-1], False)
        await asyncio.to_thread(postgres.kill)
        try:
            page = await client.find(limit=2, archived="also", after=first.cursor)
            assert (names(list(page.tasks)), page.incomplete) == ([tasks[3]], True)
            with pytest.raises(ArchiveUnavailable):
                await client.rerun(SESSION, tasks[0])
            assert await client.rerun(SESSION, tasks[3]) != tasks[3]
        finally:
            await asyncio.to_thread(postgres.start)

        async def whole() -> bool:
            page = await client.find(limit=9, archived="also", after=first.cursor)
            return not page.incomplete and names(list(page.tasks)) == tasks[3::-1]

        await eventually(whole, "the archive is read again")
