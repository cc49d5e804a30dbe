"""Tasks that have ended, and an archiver that is run until nothing waits."""

from __future__ import annotations

from collections.abc import Callable

from redis_state import RedisStateStore
from redis_state.archive.copying.archiver import Archiver, ArchiveReport
from redis_state.archive.model import ArchivedRow, ArchivedTask, rows_digest
from redis_state.archive.protocol import Archive
from redis_state.archive.queries import ArchiveQuery
from redis_state.archive.waiting import ArchiveList
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.primitives.log.log import Log
from redis_state.scripts import raw
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION
from tests.support.tasks.crash_states import due_at_once, send, started, submitted

_ROUNDS = 50


async def ended(
    store: RedisStateStore, status: TaskStatus = TaskStatus.COMPLETE, *, updates: int = 3
) -> str:
    """Have a task end, with a step's worth of updates of its own."""
    task = await submitted(store)
    run = await started(store, task)
    await tell(store, updates, task=task)
    await TaskTransitions(store).finish_run(run, status, result={"of": task})
    return task


async def tell(store: RedisStateStore, count: int, *, task: str = "t") -> None:
    """Append updates."""
    for n in range(count):
        update = StateUpdate(
            session_id=SESSION, task_id=task, update_type=UpdateType.PROGRESS, content={"n": n}
        )
        assert await store.updates.save(update)


async def all_due(store: RedisStateStore) -> None:
    """Make all entries of the archive's lists due."""
    keys = store.base.keys
    await due(store, keys.archive_watch, keys.archive_sessions)


async def due(store: RedisStateStore, *lists: Callable[[int], str]) -> None:
    """Make all entries of lists due."""
    for shard in range(WATCH_SHARDS):
        for key in (key_of(shard) for key_of in lists):
            listed = await send(store, "ZRANGE", key, 0, -1, "WITHSCORES")
            for entry, score in zip(listed[::2], listed[1::2], strict=True):
                await send(store, "ZADD", key, "XX", due_at_once(score), entry)


async def archive_all(
    store: RedisStateStore, archive: Archive, archiver: Archiver | None = None
) -> ArchiveReport:
    """Run an archiver until no task waits; return what it did."""
    archiver, total = archiver or Archiver(store, archive), ArchiveReport()
    for _ in range(_ROUNDS):
        await all_due(store)
        total += await archiver.run_once()
        if not (await ArchiveList(store).backlog()).tasks:
            return total
    raise AssertionError(f"tasks still wait after {_ROUNDS} rounds: {total}")


async def expected(store: RedisStateStore, *tasks: str, session: str = SESSION) -> dict[str, str]:
    """Return the digests of tasks as Redis has them."""
    found: dict[str, str] = {}
    for task in tasks:
        keys = store.tasks.keys(session, task)
        record = await send(store, "HGETALL", keys.task)
        journal = await send(store, "HGETALL", keys.journal)
        found[task] = ArchivedTask.of(session, task, record, journal).digest()
    return found


async def archived(archive: Archive, session: str = SESSION) -> dict[str, str]:
    """Return the digests of a session's tasks as the archive has them; none is there twice."""
    found = await archive.tasks(ArchiveQuery(session_id=session, limit=1000))
    digests = {task.task_id: task.digest() for task in found}
    assert len(digests) == len(found)
    return digests


def log_of(store: RedisStateStore, session: str = SESSION) -> Log:
    """Return the log of a session's updates."""
    updates = store.updates
    return Log(store.base.scripts, updates.keys(session), updates.bounds, named=True)


async def live_rows(store: RedisStateStore, session: str = SESSION) -> str:
    """Return the digest of a session's updates as Redis has them."""
    rows = await log_of(store, session).read_all()
    return rows_digest(ArchivedRow(*row) for row in rows)


async def archived_rows(archive: Archive, session: str = SESSION) -> str:
    """Return the digest of a session's updates as the archive has them."""
    rows = await archive.rows(session, after=None, count=10_000)
    assert rows is not None
    return rows_digest(rows)


async def let_expire(store: RedisStateStore, *tasks: str, session: str = SESSION) -> None:
    """Have archived tasks expire, as they do once their lifetime is over."""
    for task in tasks:
        keys = store.tasks.keys(session, task)
        assert await send(store, "HEXISTS", keys.task, "archived") == 1
        await send(store, "DEL", keys.task, keys.journal)
        await send(store, "ZREM", keys.tasks, raw(task))


async def archive_and_expire(store: RedisStateStore, archive: Archive, *tasks: str) -> None:
    """Archive tasks of the session, and have them expire."""
    for task in tasks:
        await ArchiveList(store).enlist(SESSION, task)
    await archive_all(store, archive)
    await let_expire(store, *tasks)
