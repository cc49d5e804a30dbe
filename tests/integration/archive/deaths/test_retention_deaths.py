"""Retention in PostgreSQL: who keeps it dies at each round trip, and so do PostgreSQL and Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("pyarrow", reason="needs the parquet extra")
pytest.importorskip("arq", reason="needs the worker extra")

import psycopg
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive.postgres import retention
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.retaining import Retainer
from redis_state.errors import ArchiveUnavailable
from redis_state.transport.sending.calls import CallSender
from tests.processes.deaths.dying import name_of
from tests.support.deaths import DEATHS, Recorder, sweep
from tests.support.servers.changes.rollback import OwnServer
from tests.support.servers.faults import short_directory
from tests.support.servers.postgres import OwnPostgres
from tests.support.sizes import sizes
from tests.support.tasks.archived.retained import RETENTION, Retained, next_round

pytestmark = [pytest.mark.worker, pytest.mark.slow, pytest.mark.timeout(600)]
POINTS = {"acquire_lease", "renew_lease", "TIME", "postgres"}
_ROUNDS = 9


@pytest.fixture
def retaining(settings: Settings) -> Settings:
    """Give settings with a retention."""
    return settings.model_copy(update={"archive_retention": RETENTION})


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a round make several calls, between which it renews its lease."""
    monkeypatch.setattr(retention, "_PIECE", 1)
    monkeypatch.setattr(retention, "_MOST", 4)


@pytest.fixture
async def database(postgres: OwnPostgres) -> AsyncIterator[Callable[[str], str]]:
    """Give the URLs of databases of the test's own: other tests have months too."""
    made: list[str] = []

    async def ask(statement: str) -> None:
        async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as beside:
            await beside.execute(statement.encode())

    for name in ("retained_before", "retained_after"):
        await ask(f"CREATE DATABASE {name}")
        made.append(name)
    yield lambda name: postgres.url.replace("/postgres?", f"/retained_{name}?")
    for name in made:
        await ask(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("stride", sizes(61, 1))
async def test_who_keeps_the_retention_dies_at_each_round_trip(
    settings: Settings, database: Callable[[str], str], stride: int, record_property: Recorder
) -> None:
    argument = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    deaths = await sweep(
        "die_retaining",
        argument,
        stride=stride,
        record=record_property,
        of_edge=lambda edge: {"archive": database(edge)},
    )
    if stride == 1:
        assert {death["trip"] for death in deaths} >= POINTS


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("stride", sizes(41, 1))
async def test_postgresql_dies_at_each_round_trip_of_a_retention(
    retaining: Settings, monkeypatch: pytest.MonkeyPatch, stride: int, record_property: Recorder
) -> None:
    own = OwnPostgres()
    own.start()
    wait = psycopg.AsyncConnection.wait
    at, deaths = 1 + stride // 2, 0
    seen = [0]
    try:
        while True:
            seen[0] = 0
            retained = Retained(own.url, retaining.namespace)
            await retained.fill()

            async def watched(connection: Any, *arguments: Any, **options: Any) -> Any:
                seen[0] += 1
                if seen[0] != at:  # noqa: B023 - of this turn
                    return await wait(connection, *arguments, **options)
                after = at % 2  # noqa: B023
                found = await wait(connection, *arguments, **options) if after else None
                await asyncio.to_thread(own.kill)
                await asyncio.to_thread(own.start)
                return found if after else await wait(connection, *arguments, **options)

            archive = PostgresArchive(own.url, namespace=retaining.namespace)
            async with RedisStateStore(retaining) as store:
                monkeypatch.setattr(psycopg.AsyncConnection, "wait", watched)
                done = await _rounds(store, archive)
                monkeypatch.setattr(psycopg.AsyncConnection, "wait", wait)
            await archive.aclose()
            assert done
            assert await retained.problems(done=True) == []
            if seen[0] < at:
                break
            deaths += 1
            at += stride
    finally:
        own.close()
    record_property(DEATHS, deaths)
    assert deaths >= 2


async def _rounds(store: RedisStateStore, archive: PostgresArchive) -> bool:
    """Have rounds come until one reaches its end, as archivers do: one fails with its archive."""
    for _ in range(_ROUNDS):
        try:
            return await next_round(store, archive) is not None
        except ArchiveUnavailable:
            continue
    return False


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("stride", sizes(2, 1))
async def test_redis_dies_with_the_lease_of_a_retention(
    retaining: Settings,
    database: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    stride: int,
    record_property: Recorder,
) -> None:
    at, trips = 1, list[str]()
    with short_directory() as directory:
        own = OwnServer(directory, "--appendonly", "yes", "--appendfsync", "always")
        await own.start()
        while True:
            settings = retaining.model_copy(
                update={
                    "url": SecretStr(own.url),
                    "namespace": f"{retaining.namespace}-{at}",
                    "call_timeout_s": 30.0,
                }
            )
            retained = Retained(database("before"), settings.namespace)
            await retained.fill()
            archive = PostgresArchive(database("before"), namespace=settings.namespace)
            async with RedisStateStore(settings) as store:
                died = await _retained_while_redis_dies(store, archive, own, at, monkeypatch)
                # Whatever died, nobody begins another round within the hour.
                assert await Retainer(store, archive).run_once() is None
            await archive.aclose()
            assert await retained.problems(done=True) == []
            if died is None:
                break
            trips.append(died)
            at += stride
        await own.stop()
    record_property(DEATHS, len(trips))
    assert len(trips) >= 2
    if stride == 1:
        assert {*trips} >= POINTS - {"postgres"}


async def _retained_while_redis_dies(
    store: RedisStateStore,
    archive: PostgresArchive,
    server: OwnServer,
    at: int,
    monkeypatch: pytest.MonkeyPatch,
) -> str | None:
    """Keep the retention, and have the server start again at a round trip; return at which."""
    names, again = list[str](), list[asyncio.Task[None]]()

    async def restart() -> None:
        await server.stop()
        await server.start()

    def watching(name: str) -> None:
        call: Callable[..., Any] = getattr(CallSender, name)

        def watched(sender: CallSender, what: Any, *more: Any, **options: Any) -> Any:
            future = call(sender, what, *more, **options)
            names.append(name_of(what))
            if len(names) == at:
                again.append(asyncio.create_task(restart()))
            return future

        monkeypatch.setattr(CallSender, name, watched)

    with monkeypatch.context() as patch:
        monkeypatch = patch
        for name in ("run", "send", "ask"):
            watching(name)
        assert await Retainer(store, archive).run_once() is not None
    await asyncio.gather(*again)
    return names[at - 1] if again else None
