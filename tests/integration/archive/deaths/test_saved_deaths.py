"""Redis and PostgreSQL are killed while a host saves a task, or while that is archived."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

import psycopg
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive import Archive
from redis_state.errors import OutcomeUnknown
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.transport.sending.calls import CallSender
from tests.support.deaths import DEATHS, Recorder
from tests.support.processes.pools import SESSION
from tests.support.samples import task as make_task
from tests.support.servers.changes.rollback import OwnServer
from tests.support.servers.faults import short_directory
from tests.support.servers.postgres import OwnPostgres
from tests.support.sizes import sizes
from tests.support.tasks.archived.archives import archive_all
from tests.support.tasks.archived.saved_tasks import archive_saved, problems_of_saved, save_begun

pytestmark = [pytest.mark.worker, pytest.mark.slow]

_TASK = "plain"


@pytest.fixture
async def own() -> AsyncIterator[OwnServer]:
    """Start a Redis of the test's own that writes each change to its file before it answers."""
    with short_directory() as directory:
        server = OwnServer(directory, "--appendonly", "yes", "--appendfsync", "always")
        await server.start()
        yield server
        await server.stop()


async def save_all(store: RedisStateStore) -> None:
    """Have a host save a task to its end, with an update. It repeats what it does not know."""
    update = StateUpdate(
        session_id=SESSION, task_id=_TASK, update_type=UpdateType.PROGRESS, content={}
    )
    state = replace(make_task(_TASK), session_id=SESSION, status=TaskStatus.COMPLETE)
    while True:
        try:
            await save_begun(store, _TASK)
            await store.save_update(update)
            return await store.save_task(state)
        except OutcomeUnknown:
            continue


async def is_archived(store: RedisStateStore) -> None:
    """Archive the rest; check that nothing is lost, held or there twice."""
    await archive_saved(store)
    state = await store.tasks.load(SESSION, _TASK)
    assert state is not None
    assert state.status is TaskStatus.COMPLETE
    assert len(await store.list_updates(SESSION)) == 1
    assert await problems_of_saved(store) == []


@pytest.mark.parametrize("stride", sizes(3, 1))
async def test_redis_dies_at_each_round_trip_of_a_hosts_save(
    own: OwnServer,
    archiving: Settings,
    monkeypatch: pytest.MonkeyPatch,
    stride: int,
    record_property: Recorder,
) -> None:
    run, at, fired = CallSender.run, 1, Counter[str]()
    while True:
        chosen = archiving.model_copy(
            update={
                "url": SecretStr(own.url),
                "namespace": f"{archiving.namespace}-s{at}",
                "call_timeout_s": 30.0,
            }
        )
        seen, dying = 0, list[asyncio.Task[None]]()
        async with RedisStateStore(chosen) as store:

            def watched(
                sender: CallSender, what: Any, *more: Any, **options: Any
            ) -> asyncio.Future[Any]:
                nonlocal seen
                future = run(sender, what, *more, **options)
                seen += 1
                if seen == at:  # noqa: B023 - of this turn
                    fired[what.script.name] += 1
                    dying.append(asyncio.create_task(_restart(own)))  # noqa: B023
                return future

            monkeypatch.setattr(CallSender, "run", watched)
            await save_all(store)
            monkeypatch.setattr(CallSender, "run", run)
            await asyncio.gather(*dying)
            await is_archived(store)
        if not dying:
            break
        at += stride
    record_property(DEATHS, fired.total())
    assert fired.total() >= 2
    if stride == 1:
        assert fired.keys() >= {"watch_entry", "add_member", "save_task", "read_ended", "keep_rows"}


async def _restart(server: OwnServer) -> None:
    await server.stop()
    await server.start()


@pytest.mark.parametrize("stride", sizes(19, 1))
async def test_postgresql_dies_while_a_hosts_task_is_archived(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    stride: int,
    record_property: Recorder,
) -> None:
    server = OwnPostgres()
    server.start()
    wait, at, deaths = psycopg.AsyncConnection.wait, 1 + stride // 2, 0
    try:
        while True:
            chosen = settings.model_copy(
                update={
                    "archive_url": SecretStr(server.url),
                    "namespace": f"{settings.namespace}-h{at}",
                }
            )
            seen = 0
            async with RedisStateStore(chosen) as store:
                await save_all(store)

                async def watched(connection: Any, *arguments: Any, **options: Any) -> Any:
                    nonlocal seen
                    seen += 1
                    if seen != at:  # noqa: B023 - of this turn
                        return await wait(connection, *arguments, **options)
                    after = at % 2  # noqa: B023
                    found = await wait(connection, *arguments, **options) if after else None
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                    return found if after else await wait(connection, *arguments, **options)

                monkeypatch.setattr(psycopg.AsyncConnection, "wait", watched)
                await _archived_although(store)
                monkeypatch.setattr(psycopg.AsyncConnection, "wait", wait)
                await is_archived(store)
            if seen < at:
                break
            deaths += 1
            at += stride
    finally:
        server.close()
    record_property(DEATHS, deaths)
    assert deaths >= 2


async def _archived_although(store: RedisStateStore) -> None:
    archive: Archive = store.archive.archive
    await archive_all(store, archive)
