"""The timeline of a task that Redis has, once its log has lost rows that the archive has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("jinja2", reason="needs the gateway extra")

from pydantic import SecretStr

from redis_state import RedisStateStore
from redis_state.archive import Archive, ArchiveReader
from redis_state.archive.waiting import ArchiveList
from redis_state.gateway import archived_updates, create_gateway
from redis_state.http_client import HttpTaskClient, Timeline
from redis_state.models import StateUpdate, UpdateType
from tests.support.browser.console import Browser, keys_for
from tests.support.http.http_gateway import over_http
from tests.support.processes.pools import SESSION
from tests.support.tasks.archived.archives import archive_all, ended, log_of, tell
from tests.support.tasks.crash_states import send, started, submitted

pytestmark = pytest.mark.worker

AWAY = "postgresql://ann:secret@127.0.0.1:1/d"


async def paused(live: RedisStateStore, archive: Archive) -> tuple[str, list[str]]:
    """Have a task that does not end, and other tasks before; return it and its updates' ids.

    All of it is archived, and nothing has expired.
    """
    await ended(live)
    task = await submitted(live)
    await started(live, task)
    await tell(live, 3, task=task)
    await ArchiveList(live).enlist(SESSION, await ended(live))
    await archive_all(live, archive)
    return task, [each.update_id for each in await live.list_updates(SESSION, task_id=task)]


async def trim(live: RedisStateStore, keep: int, *, task: str) -> str:
    """Append an update of which the log keeps only so many rows; return its id."""
    log = log_of(live)
    small = type(log)(live.base.scripts, log.keys, replace(log.bounds, max_rows=keep), named=True)
    update = StateUpdate(
        session_id=SESSION, task_id=task, update_type=UpdateType.RESULT, content="late"
    )
    await small.append([live.updates.write(update)], topic=task)
    return update.update_id


async def expire(live: RedisStateStore) -> None:
    keys = live.updates.keys(SESSION)
    await send(live, "DEL", keys.rows, keys.ids)


async def pages(http: HttpTaskClient, task: str, **options: Any) -> list[Timeline]:
    """Read a timeline to its end."""
    found: list[Timeline] = []
    while not found or not found[-1].at_end:
        after = found[-1].cursor if found else None
        page = await http.timeline(SESSION, task, after=after, **options)
        assert page is not None
        found.append(page)
    return found


def ids(found: list[Timeline]) -> list[str]:
    return [each.value.update_id for page in found for each in page.updates]


async def test_rows_of_a_log_that_has_expired_are_those_of_the_archive(
    live: RedisStateStore, archive: Archive
) -> None:
    task, known = await paused(live, archive)
    await expire(live)
    async with over_http(live) as over:
        for limit in (1, 100):
            found = await pages(over.http, task, limit=limit)
            assert ids(found) == known
            assert not any(page.missed or page.incomplete or page.task.archived for page in found)
        # It begins again with other rows.
        await ended(live)
        await tell(live, 1, task=task)
        (new,) = [each.update_id for each in await live.list_updates(SESSION, task_id=task)]
        # Sooner than after this gateway's `updates_ttl`: a writer may have a shorter one.
        for limit in (1, 100):
            assert ids(await pages(over.http, task, limit=limit)) == [*known, new]
        # A page that was read before is continued in the log of now.
        rest = await over.http.timeline(SESSION, task, after=found[-1].cursor)
        assert rest is not None
        assert ids([rest]) == [new]


async def test_rows_that_were_trimmed_are_those_of_the_archive_and_no_row_comes_twice(
    live: RedisStateStore, archive: Archive
) -> None:
    task, known = await paused(live, archive)
    first_page = (await live.read_updates(SESSION, task_id=task, limit=1)).cursor
    known.append(await trim(live, 2, task=task))
    assert len(await live.list_updates(SESSION, task_id=task)) < len(known)
    async with over_http(live) as over:
        for limit in (1, 100):
            found = await pages(over.http, task, limit=limit)
            assert (ids(found), [page.missed for page in found if page.missed]) == (known, [])
        rest = await over.http.timeline(SESSION, task, after=first_page)
        assert rest is not None
        # The archive ends before the last row, and the page with it.
        assert (ids([rest]), rest.missed) in ((known[1:], None), (known[1:-1], None))


async def test_what_neither_has_is_counted(live: RedisStateStore, archive: Archive) -> None:
    task, known = await paused(live, archive)
    await tell(live, 4, task=task)
    kept = await trim(live, 1, task=task)
    rows = await live.list_updates(SESSION)
    assert [each.update_id for each in rows] == [kept]
    async with over_http(live) as over:
        found = await pages(over.http, task)
    assert (ids(found), sum(page.missed or 0 for page in found)) == ([*known, kept], 4)


async def test_the_archive_is_not_asked_for_a_task_of_which_redis_has_all(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    soon: Callable[..., Any] = ArchiveReader.soon

    async def counted(reader: ArchiveReader, call: Any) -> Any:
        calls.append(call)
        return await soon(reader, call)

    monkeypatch.setattr(ArchiveReader, "soon", counted)
    # So a row of the same millisecond is before the task.
    monkeypatch.setattr(archived_updates, "_BEFORE_BIRTH_MS", -1)
    task, known = await paused(live, archive)
    async with over_http(live) as over:
        assert ids(await pages(over.http, task, limit=1)) == known
        assert calls == []
        # All rows of before the task but one are gone, and none of its own.
        rows = [each.update_id for each in await live.list_updates(SESSION)]
        before = rows.index(known[0]) - 1
        known.append(await trim(live, len(rows) - before + 1, task=task))
        assert (await live.list_updates(SESSION))[0].update_id == rows[before]
        found = ids(await pages(over.http, task, limit=1))
        assert (found, calls) == (known, [])


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_without_the_archive_a_timeline_has_what_redis_has_and_says_so(
    live: RedisStateStore, archive: Archive
) -> None:
    task, _ = await paused(live, archive)
    kept = await trim(live, 1, task=task)
    away = live.settings.model_copy(update={"archive_url": SecretStr(AWAY)})
    auth, keys = keys_for(ann="read:*")
    async with RedisStateStore(away) as store:
        async with over_http(store) as over:
            (found,) = await pages(over.http, task)
            assert (ids([found]), found.incomplete) == ([kept], True)
        app = create_gateway(store, auth=auth, console=True)
        browser = Browser(app)
        await browser.log_in(keys["ann"])
        page = await browser.get("/task", session=SESSION, task=task)
        assert (page.status, "Updates may be missing" in page.text) == (200, True)
        await app.aclose()
    app = create_gateway(live, auth=auth, console=True)
    browser = Browser(app)
    await browser.log_in(keys["ann"])
    page = await browser.get("/task", session=SESSION, task=task)
    assert (page.status, "Updates may be missing" in page.text) == (200, False)
    assert page.source.count("<span>PROGRESS</span>") == 3
    await app.aclose()
