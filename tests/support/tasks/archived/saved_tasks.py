"""Tasks that a host saves, with no worker, and what of them is lost, or archived twice."""

from __future__ import annotations

from dataclasses import replace

from redis_state import RedisStateStore
from redis_state.archive import open_archive
from redis_state.archive.model import rows_digest
from redis_state.archive.waiting import ArchiveList
from redis_state.models import TaskStatus
from redis_state.primitives.lease import Leases
from redis_state.scripts import Fence
from redis_state.stores.base import ARCHIVE_HOLD_MS
from tests.support.processes.pools import SESSION
from tests.support.samples import task as make_task
from tests.support.tasks.archived.archives import (
    archive_all,
    archived,
    expected,
    live_rows,
    tell,
)
from tests.support.tasks.crash_states import send

# One is saved under its owner's lease.
_PLAIN, _FENCED = "plain", "fenced"


async def save_begun(store: RedisStateStore, task: str) -> None:
    """Have a host save a task that runs."""
    await store.save_task(replace(make_task(task), session_id=SESSION, status=TaskStatus.RUNNING))


async def save_to_end(
    store: RedisStateStore,
    task: str,
    status: TaskStatus = TaskStatus.COMPLETE,
    *,
    updates: int = 2,
    fence: Fence | None = None,
) -> str:
    """Have a host save a task that runs, its updates, and its end."""
    await save_begun(store, task)
    await tell(store, updates, task=task)
    state = replace(make_task(task), session_id=SESSION, status=status, result={"of": task})
    assert await store.tasks.save(state, fence=fence)
    return task


async def save_and_end(store: RedisStateStore) -> None:
    """Have a host save two tasks to their ends, one of them under a lease."""
    await save_to_end(store, _PLAIN)
    key = store.tasks.keys(SESSION, _FENCED).lease
    leases = Leases(store.base.scripts, keep_ms=60_000)
    lease = await leases.acquire(key, duration_ms=60_000)
    # Who died may have it still.
    fence = None if lease is None else lease.fence
    await save_to_end(store, _FENCED, TaskStatus.FAILED, fence=fence)
    if lease is not None:
        await leases.release(lease)


async def archive_saved(store: RedisStateStore) -> None:
    """Archive what is due, until nothing waits."""
    archive = open_archive(store.settings)
    await archive.prepare()
    await archive_all(store, archive)
    await archive.aclose()


async def problems_of_saved(store: RedisStateStore, *, complete: bool = False) -> list[str]:
    """Tell what Redis has and the archive has not, as it is; and what is there twice.

    ``complete``: all tasks have ended.
    """
    archive, problems = open_archive(store.settings), list[str]()
    ended: list[str] = []
    for task in (_PLAIN, _FENCED):
        state = await store.tasks.load(SESSION, task)
        if state is not None and state.status.is_terminal:
            ended.append(task)
            key = store.tasks.keys(SESSION, task).task
            if not await send(store, "HEXISTS", key, "archived"):
                problems.append(f"{task} is not marked")
            if await send(store, "PTTL", key) > ARCHIVE_HOLD_MS // 2:
                problems.append(f"{task} is still held")
        elif complete:
            problems.append(f"{task} is not there")
    kept, live = await archived(archive), await expected(store, *ended)
    if {task: kept.get(task) for task in ended} != live:
        problems.append("the tasks differ")
    rows = await archive.rows(SESSION, after=None, count=10_000, over_gaps=True) or []
    if rows_digest(rows) != await live_rows(store):
        problems.append("the updates differ")
    if (await ArchiveList(store).backlog()).oldest_s:
        problems.append("something waits")
    await archive.aclose()
    return problems
