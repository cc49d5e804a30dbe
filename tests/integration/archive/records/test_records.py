"""Records of all other classes: written once, replaced by what is later, verified, read by page."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

import psycopg

from redis_state import Settings
from redis_state.archive.erased import scope_of
from redis_state.archive.model import ArchiveBatch, ArchivedRecord, RecordKey, RecordKind
from redis_state.archive.opening import open_archive
from redis_state.archive.postgres import calls
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.postgres.schema import MIGRATIONS
from redis_state.archive.protocol import Archive
from tests.integration.archive.copying.test_any_ids import IDS
from tests.support.servers.postgres import OwnPostgres

T = 1_700_000_000_000_000
MONTH_US = 31 * 86_400_000_000


def record(key: str = "k", *, n: int = 0, version: int = 1, write: str = "w") -> ArchivedRecord:
    return ArchivedRecord(
        RecordKind.TRAJECTORY,
        "session",
        key,
        born_us=T + n,
        at_us=T + 5,
        data=f'{{"of":"{key} {version} {write}"}}'.encode("utf-8", "replace"),
        n=n,
        version=version,
        write=write,
    )


async def put(archive: Archive, *records: ArchivedRecord) -> dict[RecordKey, str | None]:
    """Write records; return what is not there as it was sent."""
    batch = ArchiveBatch(records=records)
    await archive.write(batch)
    verdict = await archive.verify(batch)
    assert verdict.is_whole == (not verdict.records)
    return dict(verdict.records)


async def test_a_record_is_there_once_as_it_was_last(archive: Archive) -> None:
    first, second = record(), record(version=2, write="x")
    for _ in range(2):
        assert await put(archive, first) == {}
    assert await archive.records(RecordKind.TRAJECTORY, "session") == [first]
    assert await put(archive, second) == {}
    # A late archiver does not bring the first one back.
    assert await put(archive, first) == {first.known_by: "2 x"}
    assert await archive.records(RecordKind.TRAJECTORY, "session") == [second]
    # After a rollback Redis decides: it names what it replaces.
    again = record(version=1, write="other")
    assert await put(archive, replace(again, replaces="9 x")) == {again.known_by: "2 x"}
    assert await put(archive, replace(again, replaces="2 x")) == {}
    assert await archive.records(RecordKind.TRAJECTORY, "session") == [again]


async def test_records_are_read_by_page_by_key_and_by_month(archive: Archive) -> None:
    rows = [
        replace(record(f"k{n % 3}", n=n, version=0, write=""), born_us=T + n * MONTH_US // 10)
        for n in range(1, 26)
    ]
    assert await put(archive, *reversed(rows)) == {}
    pages, after = list[ArchivedRecord](), None
    while True:
        page = await archive.records(RecordKind.TRAJECTORY, "session", after=after, limit=10)
        pages += page
        if len(page) < 10:
            break
        after = page[-1].place
    assert pages == rows
    named = await archive.records(RecordKind.TRAJECTORY, "session", key="k1")
    assert named == [row for row in rows if row.key == "k1"]
    for kind, owner in ((RecordKind.EVENT, "session"), (RecordKind.TRAJECTORY, "other")):
        assert await archive.records(kind, owner) == []
    assert (await archive.status()).records == {RecordKind.TRAJECTORY: 25}
    await archive.forget("session")
    assert (await archive.status()).records == {}


async def test_the_last_of_each_owner_is_found_and_rows_of_an_owner_are_erased(
    archive: Archive,
) -> None:
    rows = [
        replace(record(f"k{n}", n=n % 7, version=0, write=""), kind=RecordKind.EVENT, owner=owner)
        for owner in ("session", "other", *IDS)
        for n in range(1, 9)
    ]
    of_session = record()
    assert await put(archive, *rows, of_session) == {}
    last = await archive.last_records(RecordKind.EVENT, ["session", "none", *IDS])
    assert last == dict.fromkeys(("session", *IDS), (T + 6, 6, "k6"))
    assert await archive.last_records(RecordKind.ARTIFACT, ["session"]) == {}
    erased_us = T + 4
    assert await archive.forget_records(RecordKind.EVENT, ["session"], before_us=erased_us) == 8
    assert await archive.forget_records(RecordKind.EVENT, ["session"], before_us=T) == 0
    assert await archive.records(RecordKind.EVENT, "session") == []
    # Nothing else: not the session of this name, and not another trace.
    assert await archive.records(RecordKind.TRAJECTORY, "session") == [of_session]
    assert len(await archive.records(RecordKind.EVENT, "other")) == 8
    scope = scope_of(RecordKind.EVENT, "session")
    assert await archive.erased([scope, "session", "other"]) == {scope: erased_us}
    # What came before is not written again. What came later is.
    await archive.write(ArchiveBatch(records=rows[:8]))
    kept = await archive.records(RecordKind.EVENT, "session")
    assert [each.n for each in kept] == [4, 5, 6]
    await archive.forget("session")
    assert len(await archive.records(RecordKind.EVENT, "session")) == 3
    # Of many owners, and of none, in one step.
    assert await archive.count_records(RecordKind.EVENT, []) == 0
    assert await archive.count_records(RecordKind.EVENT, ["session", *IDS]) == 3 + 8 * len(IDS)
    erased = await archive.forget_records(
        RecordKind.EVENT, ["session", *IDS, "none"], before_us=erased_us
    )
    assert erased == 3 + 8 * len(IDS)
    assert (await archive.status()).records == {RecordKind.EVENT: 8}
    scopes = [scope_of(RecordKind.EVENT, each) for each in ("session", *IDS, "none", "other")]
    assert await archive.erased(scopes) == dict.fromkeys(scopes[:-1], erased_us)


async def test_a_session_with_the_name_of_a_traces_scope_keeps_no_events_out(
    archive: Archive,
) -> None:
    event = replace(record(version=0, write=""), kind=RecordKind.EVENT, owner="trace")
    # Users choose the ids of sessions, and have them erased.
    named = scope_of(RecordKind.EVENT, "trace")
    for session in (named, f"~{named}"):
        of_session = replace(record(), owner=session)
        await archive.forget(session, before_us=T + 10)
        assert await put(archive, of_session) == {of_session.known_by: None}
    assert await put(archive, event) == {}
    later = replace(record("l"), owner=f"~~{named}")
    assert await put(archive, later) == {}


async def test_writers_and_erasers_of_the_same_owners_do_not_wait_for_each_other(
    archiving: Settings, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_TRIES", 1)
    owners = [f"trace {n}" for n in range(60)]
    rows = [replace(record(write=""), kind=RecordKind.EVENT, owner=each) for each in owners]
    others = [open_archive(archiving) for _ in range(4)]

    async def work(number: int, through: Archive) -> None:
        for turn in range(3):
            some = random.Random(f"{number} {turn}").sample(rows, 40)
            if number % 2:
                await through.write(ArchiveBatch(records=some))
            else:
                names = [each.owner for each in some]
                await through.forget_records(RecordKind.EVENT, names, before_us=T)

    await asyncio.gather(*(work(n, each) for n, each in enumerate([archive, *others])))
    scopes = [scope_of(RecordKind.EVENT, each) for each in owners]
    assert await archive.erased(scopes) == dict.fromkeys(scopes, T)
    assert await archive.forget_records(RecordKind.EVENT, owners, before_us=T) <= len(owners)
    for each in others:
        await each.aclose()


async def test_owners_and_keys_are_any_text_and_data_any_bytes(archive: Archive) -> None:
    records = [
        replace(record(own, write=f"w{n}\\"), owner=own, kind=kind, data=bytes(range(256)))
        for n, own in enumerate(IDS)
        for kind in RecordKind
    ]
    assert await put(archive, *records) == {}
    for each in records:
        assert await archive.records(each.kind, each.owner, key=each.key) == [each]
        assert await archive.records(each.kind, each.owner, after=each.place) == []
    assert set((await archive.status()).records.values()) == {len(IDS)}


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_what_is_damaged_or_missing_is_found(
    archive: Archive, archiving: Settings, postgres: OwnPostgres
) -> None:
    good, bad = record("good"), record("bad")
    await archive.write(ArchiveBatch(records=[good, bad]))
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as beside:
        await beside.execute(
            "UPDATE redis_state.records SET data = '' WHERE namespace = %s AND key = 'bad'",
            [archiving.namespace],
        )
    verdict = await archive.verify(ArchiveBatch(records=[good, bad, record("none")]))
    assert verdict.records == {bad.known_by: "1 w", record("none").known_by: None}
    assert await put(archive, replace(bad, replaces="1 w")) == {}
    assert "of" not in repr(bad)


async def test_a_database_of_the_version_before_gets_the_table(postgres: OwnPostgres) -> None:
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as beside:
        await beside.execute("DROP DATABASE IF EXISTS before")
        await beside.execute("CREATE DATABASE before")
    url = postgres.url.replace("/postgres?", "/before?")
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as beside:
        await beside.execute("CREATE SCHEMA redis_state")
        await beside.execute(
            "CREATE TABLE redis_state.migrations "
            "(version int PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        await beside.execute(MIGRATIONS[0].encode())
        await beside.execute("INSERT INTO redis_state.migrations VALUES (1)")
    archive = PostgresArchive(url)
    try:
        for _ in range(2):
            await archive.prepare()
            assert await put(archive, record()) == {}
        assert (await archive.status()).records == {RecordKind.TRAJECTORY: 1}
    finally:
        await archive.aclose()


async def test_an_erasure_takes_what_a_session_owns_and_nothing_else(
    archive: Archive,
) -> None:
    records = [
        replace(record(owner), kind=kind, owner=owner)
        for kind in RecordKind
        for owner in ("session", "session2", "sess")
    ]
    # The owner of an event is a trace.
    kept = [each for each in records if each.owner != "session" or each.kind is RecordKind.EVENT]
    assert await put(archive, *records) == {}
    await archive.forget("session", before_us=T + 10)
    for each in records:
        found = await archive.records(each.kind, each.owner)
        assert found == ([each] if each in kept else [])
    # One batch has what is erased, what is not, and what came after.
    others = [replace(each, key="another") for each in kept]
    later = replace(records[-1], owner="session", born_us=T + 10)
    missing = await put(archive, *records, *others, later)
    assert missing == {each.known_by: None for each in records if each not in kept}
