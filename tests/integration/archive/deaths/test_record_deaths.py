"""Writers, archivers and servers die at each round trip: no record is lost or doubled."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any, get_args

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

import psycopg
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive import open_archive
from redis_state.archive.copying.records import RecordArchiver
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.protocol import Archive
from redis_state.errors import ArchiveUnavailable
from redis_state.settings import ArchiveClass
from redis_state.transport.sending.calls import CallSender
from tests.integration.archive.deaths.test_deaths import ServerDeath
from tests.support.deaths import DEATHS, Recorder, sweep
from tests.support.servers.changes.rollback import OwnServer
from tests.support.servers.faults import short_directory
from tests.support.servers.postgres import OwnPostgres
from tests.support.sizes import sizes
from tests.support.tasks.archived.archived_records import archive_records, problems_of, save_records

pytestmark = [pytest.mark.worker, pytest.mark.slow]

CLASSES = frozenset(get_args(ArchiveClass))
# The fault points: what a save sends, and what an archiver does.
POINTS = {
    *("watch_since", "put_record", "save_session", "claim_due", "hold_record", "mark_record"),
    *("settle_claim", "postgres", "files", "append_log", "find_row", "keep_rows", "commit_blob"),
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stride", sizes(149, 1))
async def test_a_process_dies_at_each_round_trip(
    archiving: Settings,
    archive: Archive,
    archive_url: str,
    stride: int,
    record_property: Recorder,
) -> None:
    argument = {
        "url": archiving.url.get_secret_value(),
        "archive": archive_url,
        "classes": sorted(CLASSES),
        "namespace": archiving.namespace,
    }
    deaths = await sweep("die_archiving_records", argument, stride=stride, record=record_property)
    if stride == 1:
        away = "files" if isinstance(archive, PostgresArchive) else "postgres"
        assert {death["trip"] for death in deaths} >= POINTS - {away}


@pytest.mark.parametrize("stride", sizes(29, 1))
async def test_redis_dies_at_each_round_trip(
    archiving: Settings,
    monkeypatch: pytest.MonkeyPatch,
    stride: int,
    record_property: Recorder,
) -> None:
    run = CallSender.run
    at, fired = 1 + stride // 2, Counter[str]()
    with short_directory() as directory:
        server = OwnServer(directory, "--appendonly", "yes", "--appendfsync", "always")
        await server.start()
        while True:
            death = ServerDeath(at)
            # Another namespace for each death, in the archive too.
            chosen = archiving.model_copy(
                update={
                    "url": SecretStr(server.url),
                    "namespace": f"{archiving.namespace}-r{at}",
                    "archive_classes": CLASSES,
                    "call_timeout_s": 30.0,
                }
            )
            archive = open_archive(chosen)
            async with RedisStateStore(chosen) as store:
                again: list[asyncio.Task[None]] = []

                def watched(
                    sender: CallSender, what: Any, *more: Any, **options: Any
                ) -> asyncio.Future[Any]:
                    future = run(sender, what, *more, **options)
                    if death.reached(what.script.name):  # noqa: B023 - of this turn
                        again.append(asyncio.create_task(_restart(server)))  # noqa: B023
                    return future

                monkeypatch.setattr(CallSender, "run", watched)
                for _ in range(2):
                    await save_records(store)
                    await archive_records(store, archive)
                monkeypatch.setattr(CallSender, "run", run)
                await asyncio.gather(*again)
                assert await problems_of(store, archive, complete=True) == []
            await archive.aclose()
            if death.fired is None:
                break
            fired[death.fired] += 1
            at += stride
        await server.stop()
    record_property(DEATHS, fired.total())
    assert fired.total() >= 2
    if stride == 1:
        assert fired.keys() >= POINTS - {"postgres", "files"}


async def _restart(server: OwnServer) -> None:
    await server.stop()
    await server.start()


@pytest.mark.parametrize("stride", sizes(29, 1))
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
            chosen = settings.model_copy(
                update={
                    "namespace": f"{settings.namespace}-p{at}",
                    "archive_url": SecretStr(own.url),
                    "archive_classes": CLASSES,
                }
            )
            archive = PostgresArchive(own.url, namespace=chosen.namespace)
            async with RedisStateStore(chosen) as store:

                async def watched(connection: Any, *arguments: Any, **options: Any) -> Any:
                    if not death.reached("postgres"):  # noqa: B023 - of this turn
                        return await wait(connection, *arguments, **options)
                    after = death.at % 2  # noqa: B023
                    found = await wait(connection, *arguments, **options) if after else None
                    await asyncio.to_thread(own.kill)
                    await asyncio.to_thread(own.start)
                    return found if after else await wait(connection, *arguments, **options)

                monkeypatch.setattr(psycopg.AsyncConnection, "wait", watched)
                archiver = RecordArchiver(store, archive)
                for _ in range(2):
                    await save_records(store)
                    await archive_records(store, archive, archiver)
                monkeypatch.setattr(psycopg.AsyncConnection, "wait", wait)
                with suppress(ArchiveUnavailable):
                    # It may have died behind the last answer: one call finds the dead link.
                    await archive.status()
                assert await problems_of(store, archive, complete=True) == []
            await archive.aclose()
            if death.fired is None:
                break
            deaths += 1
            at += stride
    finally:
        own.close()
    record_property(DEATHS, deaths)
    assert deaths >= 2
