"""Redis comes back from a backup of before some tasks ended, and the archive does not."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive import Archive
from redis_state.archive.copying.backfill import backfill
from redis_state.errors import CursorGap
from redis_state.models import TaskStatus
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION, client_of
from tests.support.servers.changes.rollback import rolling_back
from tests.support.servers.faults import reached
from tests.support.tasks.archived.archives import (
    archive_all,
    archived,
    archived_rows,
    ended,
    expected,
    live_rows,
    tell,
)
from tests.support.tasks.crash_states import (
    close_queues,
    make_due,
    send,
    started,
    submitted,
    sweeper_of,
)

pytestmark = pytest.mark.worker


async def ends(store: RedisStateStore, task: str, status: TaskStatus, result: object) -> None:
    """Have a task that waits run, and end."""
    run = await started(store, task)
    await TaskTransitions(store).finish_run(run, status, result=result)


async def archive_swept(store: RedisStateStore, archive: Archive, *tasks: str) -> None:
    """Archive tasks that a sweeper finds ended."""
    sweeper = sweeper_of(store, archiving=True)
    for task in tasks:
        for _ in range(2):
            await make_due(store, watch_entry(SESSION, task))
            await sweeper.run_once()
    await archive_all(store, archive)


async def contents(store: RedisStateStore, after: str | None = None) -> tuple[list[object], str]:
    """Read a session's updates behind a cursor, of Redis and the archive; return the last one."""
    found: list[object] = []
    while True:
        page = await store.archive.updates(SESSION, after=after, limit=5)
        found += [each.value for each in page.entries]
        after = page.cursor
        if page.at_end:
            return found, after


async def test_a_retry_after_the_backup_leaves_the_archive_once_all_is_archived_again(
    archiving: Settings, archive: Archive
) -> None:
    async with rolling_back() as server:
        own = {"url": SecretStr(server.url), "call_timeout_s": 30.0}
        async with (
            RedisStateStore(archiving.model_copy(update=own)) as store,
            client_of(store) as client,
        ):
            task = await ended(store, TaskStatus.FAILED)
            await archive_swept(store, archive, task)
            was = await archived(archive)
            await server.mark()
            await client.retry(SESSION, task)
            await ends(store, task, TaskStatus.COMPLETE, {"of": "a history that is lost"})
            await archive_swept(store, archive, task)
            assert await archived(archive) != was

            await server.go_back()
            await reached(store)
            # Redis has it as archived already, so no look compares them.
            await archive_swept(store, archive, task)
            assert await archived(archive) != was
            assert await backfill(store, again=True) == 1
            await archive_all(store, archive)
            assert await archived(archive) == was == await expected(store, task)
            await close_queues()


async def test_what_ended_after_the_backup_ends_again_and_is_archived_once(
    archiving: Settings, archive: Archive
) -> None:
    async with rolling_back() as server:
        own = {"url": SecretStr(server.url), "call_timeout_s": 30.0}
        async with (
            RedisStateStore(archiving.model_copy(update=own)) as store,
            client_of(store) as client,
        ):
            early, again = await ended(store), await submitted(store)
            await archive_swept(store, archive, early)
            await tell(store, 2, task=again)
            _, cursor = await contents(store)
            await server.mark()
            await tell(store, 3, task=again)
            await ends(store, again, TaskStatus.COMPLETE, {"of": "the first end"})
            lost = await ended(store)
            await archive_swept(store, archive, again, lost)
            was = await archived(archive)
            assert was == await expected(store, early, again, lost)
            _, ahead = await contents(store)
            first = await client.find(archived="also", limit=1)
            assert [each.task_id for each in first.tasks] == [lost]

            await server.go_back()
            await reached(store)
            assert await store.tasks.load(SESSION, lost) is None
            await tell(store, 4, task=again)
            await ends(store, again, TaskStatus.FAILED, None)
            later = await ended(store)
            await archive_swept(store, archive, again, later)
            # What Redis has counts, and what it has lost is in the archive, as it was.
            now = await archived(archive)
            assert now == await expected(store, early, again, later) | {lost: was[lost]}
            assert now[again] != was[again]
            assert await archived_rows(archive) == await live_rows(store)

            # A page of before continues: each task comes once.
            rest = await client.find(archived="also", after=first.cursor, limit=100)
            assert [each.task_id for each in rest.tasks] == [again, early]
            found = await client.find(archived="also", limit=100)
            assert [each.task_id for each in found.tasks] == [later, lost, again, early]
            for _ in range(2):
                # So does a cursor of before the backup; one of what was lost is a gap.
                following, _ = await contents(store, cursor)
                assert following
                with pytest.raises(CursorGap) as gap:
                    await contents(store, ahead)
                assert (await contents(store, gap.value.resume_after))[0] == following
                # The second time from the archive alone.
                keys = store.updates.keys(SESSION)
                await send(store, "DEL", keys.rows, keys.ids)
            assert (await store.archive.task(SESSION, lost)) is not None
            await close_queues()
