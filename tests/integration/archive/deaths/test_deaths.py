"""The archiver, Redis and PostgreSQL are killed at each round trip: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

import psycopg
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive import Archive, open_archive
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.waiting import ArchiveList
from redis_state.errors import ArchiveUnavailable
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.transport.sending.calls import CallSender
from tests.support.deaths import DEATHS, Recorder, sweep
from tests.support.processes.pools import SESSION
from tests.support.servers.changes.rollback import OwnServer
from tests.support.servers.faults import short_directory
from tests.support.servers.postgres import OwnPostgres
from tests.support.sizes import sizes
from tests.support.tasks.archived.archives import (
    archive_all,
    archived,
    archived_rows,
    ended,
    expected,
    live_rows,
)
from tests.support.timing import spending

pytestmark = [pytest.mark.worker, pytest.mark.slow]

# The fault points: what an archiver sends, and what is sent before.
POINTS = {
    *("add_member", "watch_entry", "settle_claim", "claim_due", "read_ended", "postgres"),
    *("mark_archived", "keep_rows"),
}


@pytest.mark.parametrize(
    ("archive_url", "stride"),
    [
        *(("postgres", 45), pytest.param("postgres", 1, marks=pytest.mark.full)),
        *(("parquet", 61), pytest.param("parquet", 1, marks=pytest.mark.full)),
    ],
    indirect=["archive_url"],
)
@pytest.mark.timeout(3600)
async def test_an_archiver_dies_at_each_round_trip(
    archiving: Settings, archive_url: str, stride: int, record_property: Recorder
) -> None:
    argument = {
        "url": archiving.url.get_secret_value(),
        "archive": archive_url,
        "namespace": archiving.namespace,
    }
    deaths = await sweep("die_archiving", argument, stride=stride, record=record_property)
    places = {death["trip"] for death in deaths}
    of_archive = "postgres" if archive_url.startswith("postgres") else "files"
    assert of_archive in places
    if stride == 1:
        assert places >= POINTS - {"postgres"}


class ServerDeath:
    """Kill a server at the n-th round trip of an archiver, and start it again."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen = 0
        self.fired: str | None = None
        self.names: Counter[str] = Counter()

    def reached(self, name: str) -> bool:
        """Count a round trip; return whether the server dies at it."""
        self.names[name] += 1
        if name == "claim_due" and self.names[name] % 16 != 1:
            return False
        self.seen += 1
        if self.seen == self.at:
            self.fired = name
        return self.seen == self.at


@pytest.fixture
async def own(archive: Archive) -> AsyncIterator[OwnServer]:
    """Start a Redis of the test's own that writes each change to its file before it answers."""
    with short_directory() as directory:
        server = OwnServer(directory, "--appendonly", "yes", "--appendfsync", "always")
        await server.start()
        yield server
        await server.stop()


async def archived_whole(store: RedisStateStore, archive: Archive, *tasks: str) -> None:
    assert await archived(archive) == await expected(store, *tasks)
    assert await archived_rows(archive) == await live_rows(store)
    for task in tasks:
        key = store.tasks.keys(SESSION, task).task
        assert await store.transport.commands.hexists(key, "archived")
    assert (await ArchiveList(store).backlog()).tasks == 0


@pytest.mark.parametrize("stride", sizes(9, 1))
async def test_redis_dies_at_each_round_trip(
    own: OwnServer,
    archiving: Settings,
    monkeypatch: pytest.MonkeyPatch,
    stride: int,
    record_property: Recorder,
) -> None:
    run = CallSender.run
    at = 1 + stride // 2
    fired: Counter[str] = Counter()
    while True:
        death = ServerDeath(at)
        # Another namespace for each death, in the archive too.
        named = {"url": SecretStr(own.url), "namespace": f"{archiving.namespace}-r{at}"}
        chosen = archiving.model_copy(update={**named, "call_timeout_s": 30.0})
        archive = open_archive(chosen)
        await archive.prepare()
        async with RedisStateStore(chosen) as store:
            tasks = [await ended(store), await ended(store, TaskStatus.FAILED)]
            for task in tasks:
                await ArchiveList(store).enlist(SESSION, task)
            again: list[asyncio.Task[None]] = []

            def watched(
                sender: CallSender, what: Any, *more: Any, **options: Any
            ) -> asyncio.Future[Any]:
                future = run(sender, what, *more, **options)
                if death.reached(what.script.name):  # noqa: B023 - of this turn
                    again.append(asyncio.create_task(_restart(own)))  # noqa: B023
                return future

            monkeypatch.setattr(CallSender, "run", watched)
            await archive_all(store, archive)
            monkeypatch.setattr(CallSender, "run", run)
            await asyncio.gather(*again)
            await archived_whole(store, archive, *tasks)
        await archive.aclose()
        if death.fired is None:
            break
        fired[death.fired] += 1
        at += stride
    record_property(DEATHS, fired.total())
    assert fired.total() >= 2
    if stride == 1:
        assert fired.keys() >= POINTS - {"postgres", "add_member", "watch_entry"}


async def _restart(server: OwnServer) -> None:
    await server.stop()
    await server.start()


async def test_an_archive_that_says_nothing_delays_and_is_used_again(settings: Settings) -> None:
    own = OwnPostgres()
    own.start()
    archive = PostgresArchive(own.url, namespace=settings.namespace, timeout_s=0.5)
    # A busy machine may need longer than that.
    patient = PostgresArchive(own.url, namespace=settings.namespace)
    try:
        await patient.prepare()
        async with RedisStateStore(settings) as store:
            task = await ended(store)
            await ArchiveList(store).enlist(SESSION, task)
            archiver = Archiver(store, archive)
            own.signal(signal.SIGSTOP)
            async with spending() as spent:
                report = await archiver.run_once()
            assert (report.postponed, report.tasks) == (1, 0)
            assert spent.s < 20
            own.signal(signal.SIGCONT)
            await archive_all(store, patient)
            await archived_whole(store, patient, task)
    finally:
        await asyncio.gather(archive.aclose(), patient.aclose())
        own.close()


@pytest.mark.parametrize("stride", sizes(15, 1))
async def test_postgresql_dies_at_each_round_trip(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    stride: int,
    record_property: Recorder,
) -> None:
    own = OwnPostgres()
    own.start()
    wait = psycopg.AsyncConnection.wait
    at, deaths = 1 + stride // 2, 0
    try:
        while True:
            death = ServerDeath(at)
            chosen = settings.model_copy(update={"namespace": f"{settings.namespace}-p{at}"})
            archive = PostgresArchive(own.url, namespace=chosen.namespace)
            async with RedisStateStore(chosen) as store:
                tasks = [await ended(store), await ended(store, TaskStatus.FAILED)]
                for task in tasks:
                    await ArchiveList(store).enlist(SESSION, task)

                async def watched(connection: Any, *arguments: Any, **options: Any) -> Any:
                    if not death.reached("postgres"):  # noqa: B023 - of this turn
                        return await wait(connection, *arguments, **options)
                    after = death.at % 2  # noqa: B023
                    found = await wait(connection, *arguments, **options) if after else None
                    await asyncio.to_thread(own.kill)
                    await asyncio.to_thread(own.start)
                    return found if after else await wait(connection, *arguments, **options)

                monkeypatch.setattr(psycopg.AsyncConnection, "wait", watched)
                await archive_all(store, archive, Archiver(store, archive))
                monkeypatch.setattr(psycopg.AsyncConnection, "wait", wait)

                async def answers() -> bool:
                    # A connection that died behind the last call fails the next one, once.
                    with suppress(ArchiveUnavailable):
                        await archive.status()  # noqa: B023
                        return True
                    return False

                await eventually(answers, "the archive answers again")
                await archived_whole(store, archive, *tasks)
            await archive.aclose()
            if death.fired is None:
                break
            deaths += 1
            at += stride
    finally:
        own.close()
    record_property(DEATHS, deaths)
    assert deaths >= 2
