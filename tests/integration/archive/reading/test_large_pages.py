"""Large tasks and updates in the archive: a page has a bounded size, and all of them come once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.archive import Archive
from redis_state.archive.reading.updates import UpdateReader
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.worker import TaskClient
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION
from tests.support.tasks.archived.archives import archive_and_expire, ended
from tests.support.tasks.crash_states import send, started, submitted

pytestmark = pytest.mark.worker

LARGE, COUNT, PAGE = 700_000, 14, 4 << 20


async def test_a_page_of_large_updates_is_bounded_and_decoded_between_other_work(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(COUNT):
        content = {"n": n, "text": "x" * LARGE}
        kind = UpdateType.PROGRESS
        update = StateUpdate(session_id=SESSION, task_id="t", update_type=kind, content=content)
        assert await live.updates.save(update)
    await archive_and_expire(live, archive, await ended(live, updates=0))
    keys = live.updates.keys(SESSION)
    await send(live, "DEL", keys.rows, keys.ids)
    turns, decoded = 0, list[int]()

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    decode = UpdateReader._update_of

    def noting(self: UpdateReader, *args: Any) -> StateUpdate | None:
        decoded.append(turns)
        return decode(self, *args)

    monkeypatch.setattr(UpdateReader, "_update_of", noting)
    turning = asyncio.create_task(turn())
    cursor, found, sizes = None, list[int](), list[int]()
    try:
        while len(found) < COUNT:
            decoded.clear()
            page = await live.archive.updates(SESSION, after=cursor, task_id="t", limit=100)
            found += [entry.value.content["n"] for entry in page.entries]
            sizes.append(sum(len(entry.row) for entry in page.entries))
            assert len(set(decoded)) == len(decoded), "others have run between two large ones"
            cursor = page.cursor
    finally:
        turning.cancel()
    assert found == list(range(COUNT))
    assert len(sizes) >= 2
    assert max(sizes) < PAGE + 2 * LARGE


async def test_pages_of_large_tasks_are_bounded_and_have_each_task_once(
    live: RedisStateStore, archive: Archive
) -> None:
    tasks = list[str]()
    for _ in range(COUNT):
        tasks.append(await submitted(live))
        run = await started(live, tasks[-1])
        await TaskTransitions(live).finish_run(run, TaskStatus.COMPLETE, result="x" * LARGE)
    await archive_and_expire(live, archive, *tasks)
    found, pages, cursor = list[str](), list[int](), None
    async with TaskClient(live) as client:
        while not pages or cursor is not None:
            page = await client.find(archived="only", limit=100, after=cursor)
            found += [task.task_id for task in page.tasks]
            pages.append(len(page.tasks))
            cursor = page.cursor
    assert found == tasks[::-1]
    assert len(pages) >= 3
    assert max(pages) * LARGE < PAGE + 2 * LARGE
    whole = await live.archive.tasks(SESSION)
    assert [state.task_id for state in whole] == tasks
    assert {len(str(state.result)) for state in whole} == {LARGE}
    last = await live.archive.tasks(SESSION, limit=5)
    assert [state.task_id for state in last] == tasks[-5:]
