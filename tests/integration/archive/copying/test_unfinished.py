"""Updates of tasks that have not ended are archived; what has ended waits for an archiver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.copying.backfill import backfill
from redis_state.archive.copying.updates import UpdateCopies
from redis_state.archive.protocol import Archive
from redis_state.archive.waiting import ArchiveList
from redis_state.errors import ArchiveUnavailable
from redis_state.models import TaskContextSnapshot, TaskState, TaskStatus, TaskType
from redis_state.stores.archive_list import session_entry
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker.archiving import listing
from redis_state.worker.recovery.sweeper import Sweeper
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION
from tests.support.scripts.replies import clock_ms
from tests.support.tasks.archived.archives import (
    all_due,
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
    decide,
    make_due,
    paused,
    send,
    started,
    submitted,
    sweeper_of,
)

pytestmark = pytest.mark.worker
DAY_MS = 86_400_000
SOON_MS = 1_000
MOST = 64


@pytest.fixture(autouse=True)
async def closing() -> AsyncIterator[None]:
    yield
    await close_queues()


async def inspect(store: RedisStateStore, task: str, sweeper: Sweeper) -> None:
    await make_due(store, watch_entry(SESSION, task))
    assert (await sweeper.run_once()).looked == 1


async def due_soon(store: RedisStateStore) -> bool | None:
    """Return whether the archiver looks at the session soon; None if it does not."""
    now = await clock_ms(store.base.scripts)
    for shard in range(WATCH_SHARDS):
        key = store.base.keys.archive_sessions(shard)
        due = await send(store, "ZSCORE", key, session_entry(SESSION))
        if due is not None:
            return float(due) - now <= SOON_MS
    return None


async def test_updates_of_a_task_that_waits_for_longer_than_they_live_are_archived(
    live: RedisStateStore, archive: Archive
) -> None:
    task, token = await paused(live)
    await tell(live, 3, task=task)
    sweeper, archiver = sweeper_of(live, archiving=True), Archiver(live, archive)
    await inspect(live, task, sweeper)
    await all_due(live)
    before = await live_rows(live)
    count = len(await live.list_updates(SESSION))
    assert (await archiver.run_once()).updates == count
    assert await archived_rows(archive) == before
    # They expire, and the session leaves the list.
    keys = live.updates.keys(SESSION)
    await send(live, "DEL", keys.rows, keys.ids)
    for _ in range(2):
        await all_due(live)
        await archiver.run_once()
    await inspect(live, task, sweeper)
    assert await due_soon(live) is None
    # It is resumed: a log begins again.
    await decide(live, token)
    run = await started(live, task)
    await inspect(live, task, sweeper)
    assert await due_soon(live)
    await TaskTransitions(live).finish_run(run, TaskStatus.COMPLETE)
    await inspect(live, task, sweeper)
    later = len(await live.list_updates(SESSION))
    report = await archive_all(live, archive, archiver)
    assert (report.updates, report.missed) == (later, 0)
    rows = await archive.rows(SESSION, after=None, count=1000)
    assert rows is not None
    assert len(rows) == count + later


async def test_a_task_that_runs_and_emits_more_than_redis_keeps_loses_nothing(
    archiving: Settings, archive: Archive
) -> None:
    small = archiving.model_copy(update={"max_updates_per_session": MOST})
    async with RedisStateStore(small) as store:
        task = await submitted(store)
        run = await started(store, task)
        archiver, updates = Archiver(store, archive), 0
        sweeper, other = (sweeper_of(store, archiving=True) for _ in range(2))
        # The first that each of them sees of the session.
        for each in (sweeper, other):
            await inspect(store, task, each)
            assert await due_soon(store)
        for _ in range(3 * MOST // (MOST // 4)):
            await all_due(store)
            report = await archiver.run_once()
            updates += report.updates
            assert report.missed == 0
            await tell(store, MOST // 4 - 1, task=task)
            await inspect(store, task, sweeper)
            # As many as it found may come again. Who saves them may have listed it, too.
            assert await due_soon(store) or report.updates < MOST // 4
            await tell(store, 1, task=task)
            await inspect(store, task, sweeper)
            assert await due_soon(store)
        await TaskTransitions(store).finish_run(run, TaskStatus.COMPLETE)
        await inspect(store, task, other)
        updates += (await archive_all(store, archive, archiver)).updates
        assert updates > 3 * MOST
        rows = await archive.rows(SESSION, after=None, count=1000)
        assert rows is not None
        assert [row.n for row in rows] == list(range(1, updates + 1))


async def test_a_session_that_may_be_a_forgotten_one_is_looked_at_soon_only_for_many_updates(
    archiving: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_MOST", 0)
    small = archiving.model_copy(update={"max_updates_per_session": MOST})
    async with RedisStateStore(small) as store:
        task = await submitted(store)
        await started(store, task)
        sweeper = sweeper_of(store, archiving=True)
        for soon in (False, True):
            await inspect(store, task, sweeper)
            assert await due_soon(store) is soon
            await tell(store, MOST // 4, task=task)


async def test_updates_that_were_trimmed_before_are_counted_and_logged(
    archiving: Settings, archive: Archive, caplog: pytest.LogCaptureFixture
) -> None:
    small = archiving.model_copy(update={"max_updates_per_session": 4})
    async with RedisStateStore(small) as store:
        task = await ended(store, updates=20)
        sweeper = sweeper_of(store, archiving=True)
        await inspect(store, task, sweeper)
        report = await archive_all(store, archive)
        assert report.updates == 4
        assert report.missed >= 16
    said = [each.getMessage() for each in caplog.records]
    assert f"{report.missed} updates of session {SESSION!r} were trimmed" in said[0]


@pytest.mark.parametrize("how", ["a run", "a cancel"])
async def test_what_ends_waits_for_the_archive_without_an_archiver(
    archiving: Settings, archive: Archive, how: str
) -> None:
    short = archiving.model_copy(update={"finished_task_ttl": timedelta(hours=2)})
    async with RedisStateStore(short) as store:
        if how == "a run":
            task = await ended(store)
        else:
            task, _ = await paused(store)
            state = await store.tasks.load(SESSION, task)
            assert state is not None
            assert await TaskTransitions(store).cancel(state, "why")
        keys, log = store.tasks.keys(SESSION, task), store.updates.keys(SESSION)
        for key in (keys.task, keys.journal, keys.tasks, log.rows, log.ids):
            if await store.transport.commands.exists(key):
                assert await send(store, "PTTL", key) > 399 * DAY_MS
        assert await backfill(store) == 1
        await archive_all(store, archive)
        assert await archived(archive) == await expected(store, task)
        for key in (keys.task, keys.journal, log.rows, log.ids):
            assert await send(store, "PTTL", key) <= 11 * DAY_MS


@pytest.mark.parametrize("how", ["it dies", "the archive goes", "the task is removed"])
async def test_updates_that_an_end_holds_are_let_go_of_wherever_an_archiver_stops(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    task, archiver = await ended(live), Archiver(live, archive)
    await ArchiveList(live).enlist(SESSION, task)
    if how == "the task is removed":
        await live.tasks.clear(SESSION, task)
        await archiver.run_once()
    else:

        async def stopped(*_: object) -> None:
            # The task is marked: only its session leads to the updates.
            assert await archived(archive) == await expected(live, task)
            raise ArchiveUnavailable("mark", "gone") if how == "the archive goes" else RuntimeError

        with monkeypatch.context() as patch, suppress(RuntimeError):
            patch.setattr(UpdateCopies, "let_expire", stopped)
            await archiver.run_once()
    log = live.updates.keys(SESSION)
    assert await send(live, "PTTL", log.rows) > 399 * DAY_MS
    await all_due(live)
    await Archiver(live, archive).run_once()
    for key in (log.rows, log.ids):
        assert await send(live, "PTTL", key) <= 11 * DAY_MS
    assert await archived_rows(archive) == await live_rows(live)


async def test_what_ends_while_an_archiver_works_stays_held_and_is_looked_at_soon(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ArchiveList(live).enlist(SESSION, await ended(live))
    let_expire, log = UpdateCopies.let_expire, live.updates.keys(SESSION)

    async def late(copies: UpdateCopies, whole: Mapping[str, int]) -> None:
        await ended(live)
        # As a sweeper does that finds many new updates.
        await ArchiveList(live).watch_session(SESSION, within_ms=SOON_MS)
        await let_expire(copies, whole)

    with monkeypatch.context() as patch:
        patch.setattr(UpdateCopies, "let_expire", late)
        await Archiver(live, archive).run_once()
    assert await due_soon(live)
    assert await send(live, "PTTL", log.rows) > 399 * DAY_MS
    await all_due(live)
    await Archiver(live, archive).run_once()
    assert await send(live, "PTTL", log.rows) <= 11 * DAY_MS


@pytest.mark.parametrize("whose", ["a worker's", "a host's"])
async def test_what_ends_expires_in_time_where_nothing_is_archived(
    settings: Settings, tmp_path: Path, whose: str
) -> None:
    # Who ends a host's task lists it for the archive, and then holds it: see `SavedTasks`.
    if whose == "a host's":
        settings = settings.model_copy(update={"archive_url": SecretStr(tmp_path.as_uri())})
    async with RedisStateStore(settings) as store:
        if whose == "a worker's":
            task = await ended(store)
        else:
            task = "host"
            context = TaskContextSnapshot(session_id=SESSION, task_id=task)
            state = TaskState(task, SESSION, TaskStatus.PENDING, TaskType.FOREGROUND, 0, context)
            await store.tasks.save(state)
            assert await TaskTransitions(store).cancel(state, "why")
        keys, log = store.tasks.keys(SESSION, task), store.updates.keys(SESSION)
        assert await send(store, "HEXISTS", keys.task, "archive_hold") == 0
        for key in (keys.task, log.rows, log.ids):
            assert 0 < await send(store, "PTTL", key) <= 11 * DAY_MS
