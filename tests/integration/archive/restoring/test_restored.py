"""An archive that is not as it was: dropped, restored, of another encoding, of fewer rights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, LiteralString

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

import psycopg

from redis_state import RedisStateStore, Settings
from redis_state.archive import ArchiveQuery
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.identity import KnownArchive
from redis_state.archive.model import ArchiveBatch, ArchivedRow, SessionRows
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.protocol import Archive
from redis_state.archive.waiting import ArchiveList
from redis_state.errors import ArchiveUnavailable
from redis_state.postgres.connection import PostgresConnection
from redis_state.postgres.text import id_text
from tests.support.processes.pools import SESSION
from tests.support.servers.postgres import OwnPostgres
from tests.support.tasks.archived.archives import all_due, archive_all, archived, ended, expected

pytestmark = pytest.mark.worker
T = 1_700_000_000_000


def run(url: str, *statements: LiteralString) -> None:
    with psycopg.connect(url, autocommit=True) as beside:
        for statement in statements:
            beside.execute(statement)


@pytest.fixture
def database(postgres: OwnPostgres) -> Iterator[str]:
    """Give a database of the test's own."""
    drop: LiteralString = "DROP DATABASE IF EXISTS own WITH (FORCE)"
    run(postgres.url, drop, "CREATE DATABASE own")
    yield postgres.url.replace("/postgres?", "/own?")
    run(postgres.url, drop)


async def test_a_database_that_went_back_to_before_its_tables_gets_them_once_it_is_accepted(
    live: RedisStateStore, database: str
) -> None:
    archive = PostgresArchive(database, namespace=live.settings.namespace)
    archiver, waiting = Archiver(live, archive), ArchiveList(live)
    await waiting.enlist(SESSION, await ended(live))
    await archive_all(live, archive, archiver)
    run(database, "DROP SCHEMA redis_state CASCADE")
    later = await ended(live)
    await waiting.enlist(SESSION, later)
    for round_no in range(3):
        await all_due(live)
        assert (await archiver.run_once()).tasks == 0, round_no
    assert await archive.identify() is None
    await KnownArchive(live, archive).accept()
    await archive_all(live, archive, archiver)
    assert await archived(archive) == await expected(live, later)
    await archive.aclose()


async def test_a_month_that_was_dropped_is_made_again_at_once(
    live: RedisStateStore, database: str
) -> None:
    archive = PostgresArchive(database, namespace=live.settings.namespace)
    archiver, waiting = Archiver(live, archive), ArchiveList(live)
    await waiting.enlist(SESSION, await ended(live, updates=0))
    await archive_all(live, archive, archiver)
    with psycopg.connect(database, autocommit=True) as beside:
        found = beside.execute(
            "SELECT relid::text FROM pg_partition_tree('redis_state.tasks') WHERE level = 1"
        ).fetchall()
        for (name,) in found:
            beside.execute(f"DROP TABLE {name}".encode())
    assert found
    later = await ended(live, updates=0)
    await waiting.enlist(SESSION, later)
    total = await archive_all(live, archive, archiver)
    assert (total.refused, total.tasks) == (0, 1)
    assert await archived(archive) == await expected(live, later)
    await archive.aclose()


async def test_one_who_may_only_read_finds_the_tables(database: str) -> None:
    owner = PostgresArchive(database)
    await owner.prepare()
    await owner.aclose()
    run(
        database,
        "DROP ROLE IF EXISTS auditor",
        "CREATE ROLE auditor LOGIN",
        "GRANT USAGE ON SCHEMA redis_state TO auditor",
        "GRANT SELECT ON ALL TABLES IN SCHEMA redis_state TO auditor",
    )
    reader = PostgresArchive(database.replace("//postgres@", "//auditor@"))
    try:
        await reader.prepare()
        assert await reader.tasks(ArchiveQuery()) == []
        with pytest.raises(ArchiveUnavailable, match="42501"):
            await reader.write(ArchiveBatch(sessions=[_rows(None, [_row(1, 0)])]))
    finally:
        await reader.aclose()
        run(database, "DROP OWNED BY auditor", "DROP ROLE auditor")


async def test_rows_that_the_server_lost_and_has_again_are_there_again(
    archive: Archive,
) -> None:
    rows = [_row(n, n) for n in range(1, 5)]
    await archive.write(ArchiveBatch(sessions=[_rows(None, rows[:3])]))
    # A restored backup has only the first; that restoration is undone.
    other = _row(2, 9)
    lost = replace(_rows(rows[2], [other]), lost_behind=(rows[0].n, rows[0].ms))
    await archive.write(ArchiveBatch(sessions=[lost]))
    assert await archive.rows(SESSION, after=None, count=9) == [rows[0], other]
    undone = replace(_rows(other, rows[1:]), lost_behind=(rows[0].n, rows[0].ms))
    batch = ArchiveBatch(sessions=[undone])
    await archive.write(batch)
    assert (await archive.verify(batch)).is_whole
    assert await archive.rows(SESSION, after=None, count=9) == rows


@pytest.mark.parametrize(
    "namespace",
    ["DOMAIN\\ann", "nul\0", "\ud800", "".join(map(chr, range(0x4E00, 0x5300))), "'\"%s"],
)
async def test_a_namespace_is_any_text(
    postgres: OwnPostgres, settings: Settings, namespace: str
) -> None:
    archive = PostgresArchive(postgres.url, namespace=settings.namespace + namespace)
    other = PostgresArchive(postgres.url, namespace=settings.namespace)
    try:
        await archive.prepare()
        row = _row(1, 0)
        batch = ArchiveBatch(sessions=[_rows(None, [row])])
        await archive.write(batch)
        assert (await archive.verify(batch)).is_whole
        assert await archive.rows(SESSION, after=None, count=9) == [row]
        assert (await archive.status()).updates == 1
        assert await other.rows(SESSION, after=None, count=9) == []
        assert await archive.forget(SESSION) is not None
        assert (await archive.status()).updates == 0
    finally:
        await archive.aclose()
        await other.aclose()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_has_not_all_signs_is_refused_by_name(
    postgres: OwnPostgres, settings: Settings, encoding: str
) -> None:
    drop: LiteralString = "DROP DATABASE IF EXISTS signs"
    make = f"CREATE DATABASE signs TEMPLATE template0 LOCALE 'C' ENCODING '{encoding}'"
    with psycopg.connect(postgres.url, autocommit=True) as beside:
        beside.execute(drop)
        beside.execute(make.encode())
    archive = PostgresArchive(postgres.url.replace("/postgres?", "/signs?"))
    try:
        with pytest.raises(ArchiveUnavailable, match="UTF8"):
            await archive.prepare()
    finally:
        await archive.aclose()
        run(postgres.url, drop)


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "\ud800"])
async def test_a_host_that_is_none_has_its_error(host: str) -> None:
    archive = PostgresArchive(f"postgresql://ann:secret@{host}/d", timeout_s=5)
    with pytest.raises(ArchiveUnavailable) as refused:
        await archive.prepare()
    assert "secret" not in f"{refused.value!r} {refused.value}"


async def test_what_is_not_to_be_archived_harms_no_other_task(
    live: RedisStateStore, archive: Archive
) -> None:
    bad, good = await ended(live), await ended(live)
    waiting, key = ArchiveList(live), live.tasks.keys(SESSION, bad).task
    await live.transport.sender.send("HSET", key, "order", "9" * 30, repeatable=True)
    for task in (bad, good):
        await waiting.enlist(SESSION, task)
    await all_due(live)
    report = await Archiver(live, archive).run_once()
    assert (report.tasks, report.refused) == (1, 1)
    assert await archived(archive) == await expected(live, good)


@pytest.mark.parametrize("before", [49, 59])
def test_a_long_id_has_no_name_that_another_can_have(before: int) -> None:
    long = "x" * before + "\\" + "y" * 500
    column = id_text(long)
    twin = column.replace("\\\\~", "\\~")
    assert id_text(twin) != column


def _row(n: int, ms: int) -> ArchivedRow:
    return ArchivedRow(n, T + ms, f"id-{n}-{ms}".encode(), "t", b"[1]")


def _rows(after: ArchivedRow | None, rows: list[ArchivedRow]) -> SessionRows:
    return SessionRows(SESSION, None if after is None else (after.n, after.ms), rows)


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_a_server_that_only_reads_by_now_is_left_for_the_one_that_its_url_finds(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = PostgresConnection.connect
    opened: list[PostgresConnection] = []

    async def kept(*arguments: Any, **options: Any) -> PostgresConnection:
        opened.append(await connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(PostgresConnection, "connect", kept)
    await archive.aclose()
    await archive.prepare()
    await opened[0].execute("SET default_transaction_read_only = on")
    batch = ArchiveBatch(sessions=[_rows(None, [_row(1, 0)])])
    with pytest.raises(ArchiveUnavailable, match="25006") as away:
        await archive.write(batch)
    assert not away.value.refused
    await archive.write(batch)
    assert (await archive.verify(batch)).is_whole
    assert len(opened) == 2
