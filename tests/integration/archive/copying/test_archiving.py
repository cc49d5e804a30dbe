"""A pool whose ended tasks leave for the archive, and are read there."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.archive import ArchiveReader
from redis_state.archive.protocol import Archive
from redis_state.archive.waiting import ArchiveList
from redis_state.models import TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from tests.support.processes.pools import SESSION, pool

pytestmark = pytest.mark.worker


def add(n: int) -> int:
    return n + 1


async def count(ctx: TaskContext) -> int:
    for n in range(3):
        await ctx.step("add", add, n)
        await ctx.emit(UpdateType.PROGRESS, {"n": n})
    if ctx.input == "fail":
        raise ValueError("no")
    return 42


async def test_what_has_ended_is_archived_by_a_pool_and_read_as_it_was(
    live: RedisStateStore, archive: Archive
) -> None:
    async with pool(live, {"count": count}) as client:
        task = await client.submit("count", session_id=SESSION)
        await client.wait(SESSION, task, timeout_s=60)
        before = await live.tasks.load(SESSION, task)
        updates = await live.list_updates(SESSION)

        async def archived() -> bool:
            key = live.base.keys.task(SESSION, task)
            return bool(await live.transport.commands.hexists(key, "archived"))

        await eventually(archived, "it is archived")
        await eventually(lambda: _nothing_waits(live), "nothing waits")
    await live.clear_session(SESSION)
    async with ArchiveReader(live) as reader:
        assert await reader.task(SESSION, task) == before
        assert await reader.tasks(SESSION) == [before]
        page = await reader.updates(SESSION)
        assert page.values == updates
        (found,) = await reader.find(handler="count", status=[TaskStatus.COMPLETE])
        assert b'"secret":""' in found.record[b"job"]


async def _nothing_waits(store: RedisStateStore) -> bool:
    return (await ArchiveList(store).backlog()).tasks == 0
