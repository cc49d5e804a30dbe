"""A server that is out of memory: what makes room continues, and nothing new comes of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("psycopg", reason="needs the postgres extra")

from redis_state import RedisStateStore
from redis_state.archive import open_archive
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.copying.records import RecordArchiver
from redis_state.archive.identity import KnownArchive
from redis_state.archive.waiting import ArchiveList
from redis_state.errors import StoreFull
from redis_state.models import Trajectory
from redis_state.settings import make_settings
from redis_state.stores.archive_list import session_entry
from redis_state.stores.base import ms
from redis_state.stores.durable_events.store import DurableEventStore
from redis_state.worker import TaskClient
from redis_state.worker.tasks.move_parts import watch_entry
from tests.support.processes.pools import SESSION, client_of, queue_of, queued
from tests.support.samples import event, steering
from tests.support.scripts.replies import clock_ms, clock_passes
from tests.support.servers.faults import run_server, short_directory
from tests.support.servers.postgres import OwnPostgres
from tests.support.tasks.archived.archived_records import records_due
from tests.support.tasks.archived.archives import all_due, archived, due, ended, expected
from tests.support.tasks.crash_states import (
    close_queues,
    entry_in_ms,
    make_due,
    send,
    submitted,
    sweeper_of,
)
from tests.support.tasks.schedules import hourly, running, settled_before

DAY_MS = 86_400_000


@asynccontextmanager
async def own(**options: Any) -> AsyncGenerator[RedisStateStore]:
    """Give a store on a server of its own, which a test may fill."""
    with short_directory() as directory, run_server(directory) as url:
        async with RedisStateStore(make_settings(url, **options)) as store:
            yield store
            await close_queues()


async def fill(store: RedisStateStore) -> None:
    """Have no memory left."""
    await send(store, "CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(StoreFull):
        await store.save_memory_state("k", {})


async def make_room(store: RedisStateStore) -> None:
    """Have memory again."""
    await send(store, "CONFIG", "SET", "maxmemory", 0)


async def placed(store: RedisStateStore) -> list[float]:
    """Return the places of the jobs that wait."""
    key = store.base.keys.queue(queue_of(store.settings)).queue
    flat = await send(store, "ZRANGE", key, 0, -1, "WITHSCORES")
    return [float(place) for place in flat[1::2]]


async def test_a_sweeper_takes_out_what_has_ended() -> None:
    async with own() as store:
        entry, sweeper = watch_entry(SESSION, await ended(store)), sweeper_of(store)
        await make_due(store, entry)
        await fill(store)
        assert (await sweeper.run_once()).dropped == 1
        assert await entry_in_ms(store, entry) is None


async def test_what_a_full_server_does_not_let_be_repaired_waits_for_the_claim() -> None:
    async with own() as store:
        task, sweeper = await submitted(store), sweeper_of(store)
        await make_due(store, watch_entry(SESSION, task))
        await fill(store)
        with pytest.raises(StoreFull):
            await sweeper.run_once()
        in_ms = await entry_in_ms(store, watch_entry(SESSION, task))
        assert in_ms is not None
        assert in_ms > 0
        # Nothing is due in between, and no task is new.
        assert (await sweeper.run_once()).looked == 0
        async with client_of(store) as client:
            with pytest.raises(StoreFull):
                await client.submit("answer", session_id=SESSION)
        await make_room(store)
        await make_due(store, watch_entry(SESSION, task))
        assert (await sweeper.run_once()).requeued == 1
        assert len(await queued(store)) == 1


async def test_what_a_full_server_refuses_keeps_nothing_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with own() as store:
        refused, over, sweeper = await submitted(store), await ended(store), sweeper_of(store)
        for task in (refused, over):
            await make_due(store, watch_entry(SESSION, task))
        drop_claims, ended_there = sweeper._queue.drop_claims, list[str]()

        async def drop(queue: Any, tasks: Any, **options: Any) -> None:
            ended_there.extend(name for (_, name), _ in tasks)
            await drop_claims(queue, tasks, **options)

        monkeypatch.setattr(sweeper._queue, "drop_claims", drop)
        await fill(store)
        with pytest.raises(StoreFull):
            await sweeper.run_once()
        assert await entry_in_ms(store, watch_entry(SESSION, over)) is None
        assert ended_there == [over]
        await make_room(store)


async def test_a_job_that_is_due_is_moved_to_the_place_of_its_priority() -> None:
    async with own() as store, client_of(store) as client:
        sweeper = sweeper_of(store)
        due_at = datetime.now(UTC) + timedelta(seconds=1)
        task = await client.submit("answer", session_id=SESSION, priority=4, at=due_at)
        entry = watch_entry(SESSION, task)
        await make_due(store, entry)
        await sweeper.run_once()
        await clock_passes(store.base.scripts, round(due_at.timestamp() * 1000))
        (before,) = await placed(store)
        await make_due(store, entry)
        await fill(store)
        await sweeper.run_once()
        (after,) = await placed(store)
        assert round((before - after) / 60_000) == 4
        assert (await sweeper.run_once()).looked == 0
        in_ms = await entry_in_ms(store, entry)
        assert in_ms is not None
        assert in_ms > 0
        await make_room(store)


async def test_a_session_that_could_not_be_archived_is_recorded_as_behind() -> None:
    async with own() as store:
        listed = ArchiveList(store)
        await listed.watch_session(SESSION, within_ms=DAY_MS)
        await fill(store)
        await listed.note_looks([session_entry(SESSION)], [])
        assert (await listed.backlog()).sessions == 1
        await make_room(store)


async def test_a_schedule_makes_no_task_until_there_is_room() -> None:
    async with own() as store, running(store) as runner:
        async with TaskClient(store) as client:
            await client.schedules.save(hourly(grace=timedelta(hours=2)))
        assert await runner.run_once() == 1
        await settled_before(store)
        await fill(store)
        with pytest.raises(StoreFull):
            await runner.run_once()
        assert await runner.run_once() == 0
        assert await store.list_tasks(SESSION) == []
        await make_room(store)
        await due(store, lambda _: store.base.keys.schedules_due())
        assert await runner.run_once() == 1
        assert len(await store.list_tasks(SESSION)) == 1


@pytest.mark.parametrize("lives_on", [False, True])
async def test_steering_that_was_held_for_a_task_is_let_go_of(*, lives_on: bool) -> None:
    async with own() as store:
        task = await submitted(store)
        await store.save_steering(steering("e", task_id=task, session_id=SESSION))
        rows, tasks = store.steering.keys(SESSION).rows, store.tasks.keys(SESSION, task).tasks
        # A lifetime, and some room for the next appends.
        unheld_ms = 2 * ms(store.settings.steering_ttl)
        held_ms = await send(store, "PTTL", rows)
        assert held_ms > unheld_ms + 2 * DAY_MS
        await send(store, "DEL", tasks)
        ends_ms = await clock_ms(store.base.scripts) + unheld_ms + DAY_MS
        if lives_on:
            await send(store, "ZADD", tasks, ends_ms * 1000, "another")
        await fill(store)
        await store.steering.settle(SESSION)
        left_ms = await send(store, "PTTL", rows)
        assert unheld_ms < left_ms <= unheld_ms + DAY_MS if lives_on else left_ms < unheld_ms


async def test_events_that_postgresql_has_are_let_go_of(postgres: OwnPostgres) -> None:
    modes: dict[str, Any] = {"durable_events": postgres.url, "durable_events_mode": "delayed"}
    # Nothing is moved by itself before.
    async with own(**modes, durable_events_delay=timedelta(hours=1)) as store:
        events, rows = store.events, store.base.keys.events("trace").rows
        assert isinstance(events, DurableEventStore)
        await events.prepare()
        await store.save_event(event(node_id="first"))
        assert await send(store, "PTTL", rows) > 365 * DAY_MS
        await due(store, store.base.keys.events_watch)
        await fill(store)
        with pytest.raises(StoreFull):
            await store.save_event(event(node_id="second"))
        assert (await events.forward()).events == 1
        assert await send(store, "PTTL", rows) <= ms(store.settings.events_ttl)
        assert [each.node_id for each in await store.load_history("trace")] == ["first"]
        await make_room(store)


async def test_what_is_archived_is_let_go_of(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the parquet extra")
    chosen = {"archive_url": tmp_path.as_uri(), "archive_classes": frozenset({"trajectories"})}
    async with own(**chosen) as store:
        archive = open_archive(store.settings)
        await archive.prepare()
        task, sweeper = await ended(store), sweeper_of(store, archiving=True)
        await store.save_trajectory("trace", SESSION, Trajectory("q"))
        for _ in range(2):
            await make_due(store, watch_entry(SESSION, task))
            await sweeper.run_once()
        # The archive is known before. A task is held as it ends, a trajectory as it is read.
        archiver, records = Archiver(store, archive), RecordArchiver(store, archive)
        await archiver.run_once()
        another = await ended(store)
        for _ in range(2):
            await make_due(store, watch_entry(SESSION, another))
            await sweeper.run_once()
        keys = store.tasks.keys(SESSION, another)
        held = (keys.task, store.updates.keys(SESSION).rows)
        assert [await send(store, "PTTL", key) > 300 * DAY_MS for key in held] == [True, True]
        trajectory = store.base.keys.trajectory(SESSION, "trace")
        await send(store, "PEXPIRE", trajectory, 60_000)
        await all_due(store)
        await records_due(store)
        await fill(store)
        assert (await archiver.run_once()).tasks == 1
        assert (await records.run_once()).copied == {"trajectories": 1}
        assert await archived(archive) == await expected(store, task, another)
        for key in (*held, trajectory):
            assert await send(store, "PTTL", key) < 300 * DAY_MS
        assert await send(store, "HEXISTS", trajectory, "archived") == 1
        await archive.aclose()


async def test_what_has_ended_is_listed_and_archived_though_its_session_is_not_due(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyarrow", reason="needs the parquet extra")
    async with own(archive_url=tmp_path.as_uri()) as store:
        archive = open_archive(store.settings)
        await archive.prepare()
        archiver, sweeper = Archiver(store, archive), sweeper_of(store, archiving=True)
        await KnownArchive(store, archive).ready()
        task = await ended(store)
        # Its session has been looked at just now.
        await ArchiveList(store).watch_session(SESSION, within_ms=DAY_MS)
        await make_due(store, watch_entry(SESSION, task))
        await fill(store)
        assert (await sweeper.run_once()).dropped == 1
        assert (await archiver.run_once()).tasks == 1
        assert await archived(archive) == await expected(store, task)
        assert await send(store, "PTTL", store.tasks.keys(SESSION, task).task) < 300 * DAY_MS
        await make_room(store)
        await archive.aclose()
