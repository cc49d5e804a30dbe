"""Audit events in the archive: each once, in the order of their log; what is missing is said."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("typer", reason="needs the cli extra")

import psycopg
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive import Archive, open_archive
from redis_state.archive.copying.records import RecordArchiver
from redis_state.archive.model import ArchiveBatch, RecordKind
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.erasure import Eraser
from redis_state.errors import ConfigError
from redis_state.models import StoredEvent, Trajectory
from redis_state.stores.archive_list import RecordList
from redis_state.stores.traces.audit_events import GLOBAL_TRACE, write_event
from tests.integration.archive.copying.test_any_ids import IDS
from tests.support.commands import Ran, cli
from tests.support.scripts.replies import clock_ms, clock_passes
from tests.support.servers.postgres import OwnPostgres
from tests.support.tasks.archived.archived_records import (
    archive_records,
    archived_events,
    event_of,
    records_due,
)
from tests.support.tasks.crash_states import send

TRACE = "trace"
DAY_MS = 86_400_000
POSTGRES = pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)


@pytest.fixture
def archiving(archiving: Settings) -> Settings:
    """Give settings that also archive events."""
    return archiving.model_copy(update={"archive_classes": frozenset({"events"})})


def made(*contents: str, trace: str = TRACE) -> list[StoredEvent]:
    return [event_of(trace, content) for content in contents]


async def kept(archive: Archive, trace: str = TRACE) -> list[tuple[int, str]]:
    """Return number and content of what is archived."""
    found = await archived_events(archive, trace)
    return [
        (each.n, each.data.decode().rpartition('"content":"')[2].rstrip('"}]')) for each in found
    ]


async def expire(store: RedisStateStore, trace: str = TRACE) -> None:
    """Have a trace's log expire."""
    keys = store.events.log(trace).keys
    assert await send(store, "DEL", keys.rows, keys.ids) == 2


async def snapshot(store: RedisStateStore) -> list[tuple[str, bytes]]:
    """Read a trace's log as a backup has it."""
    keys = store.events.log(TRACE).keys
    return [(key, await send(store, "DUMP", key)) for key in (keys.rows, keys.ids)]


async def go_back(store: RedisStateStore, was: list[tuple[str, bytes]]) -> None:
    for key, value in was:
        await send(store, "RESTORE", key, 3_600_000, value, "REPLACE")


async def test_events_are_copied_in_order_and_read_once_they_have_expired(
    live: RedisStateStore, archive: Archive
) -> None:
    await live.save_event(made("a")[0])
    await live.save_events(made(*"bc"))
    assert (await RecordList(live.base).backlog()).records == 1
    report = await archive_records(live, archive)
    assert (report.copied, report.missed) == ({"events": 3}, 0)
    # Saved again it is no other event; what is new follows.
    await live.save_events(made(*"abcde"))
    assert (await archive_records(live, archive)).copied == {"events": 2}
    assert await kept(archive) == [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]
    history = await live.archive.events(TRACE)
    assert (history.events, history.missed) == (made(*"abcde"), 0)
    await expire(live)
    await live.save_events(made("f"))
    history = await live.archive.events(TRACE)
    assert (history.events, history.missed) == (made(*"abcdef"), 0)
    await archive_records(live, archive)
    assert [content for _, content in await kept(archive)] == [*"abcdef"]
    page = await live.archive.records(RecordKind.EVENT, TRACE, limit=2)
    rest = await live.archive.records(RecordKind.EVENT, TRACE, after=page[-1].place)
    assert [each.value for each in (*page, *rest)] == made(*"abcdef")
    assert (await live.archive.events("none")).events == []


async def test_many_rows_are_copied_in_pages_while_more_are_saved(
    live: RedisStateStore, archive: Archive, archiving: Settings
) -> None:
    other = open_archive(archiving)
    contents = [f"{n:04d}" for n in range(600)]

    async def beside() -> None:
        # Not until nothing waits: each takes the claims of the other.
        archiver = RecordArchiver(live, other)
        for _ in range(5):
            await records_due(live)
            await archiver.run_once()

    await live.save_events(made(*contents[:500]))
    await asyncio.gather(
        *(live.save_event(made(each)[0]) for each in contents[500:]),
        archive_records(live, archive),
        beside(),
    )
    await archive_records(live, archive)
    assert await kept(archive) == list(enumerate(contents, 1))
    await other.aclose()


async def test_what_was_trimmed_before_is_said(
    archiving: Settings, archive: Archive, caplog: pytest.LogCaptureFixture
) -> None:
    short = archiving.model_copy(update={"max_events_per_trace": 4})
    async with RedisStateStore(short) as store:
        await store.save_events(made(*"abcdef"))
        report = await archive_records(store, archive)
        assert (report.copied, report.missed) == ({"events": 4}, 2)
        for content in "ghijkl":
            await store.save_events(made(content))
        report = await archive_records(store, archive)
        assert (report.copied, report.missed) == ({"events": 4}, 2)
        assert [content for _, content in await kept(archive)] == [*"cdefijkl"]
        history = await store.archive.events(TRACE)
        assert (history.events, history.missed) == (made(*"cdefijkl"), 4)
    assert "2 events were trimmed before they were archived" in caplog.text


@pytest.mark.role("any", why="it takes keys back with RESTORE")
async def test_rows_of_another_history_follow_and_what_was_lost_stays(
    live: RedisStateStore, archive: Archive
) -> None:
    await live.save_events(made(*"ab"))
    was = await snapshot(live)
    await live.save_events(made(*"cde"))
    await archive_records(live, archive)
    await go_back(live, was)
    # One of them comes again, at another place. Its number was another one's.
    await live.save_events(made(*"xe"))
    assert (await archive_records(live, archive)).copied["events"] >= 2
    assert [content for _, content in await kept(archive)] == [*"abcde", *"xe"]
    history = await live.archive.events(TRACE)
    assert (history.events, history.missed) == (made(*"abcdex"), 0)
    await live.save_events(made("y"))
    assert (await archive_records(live, archive)).copied == {"events": 1}


@pytest.mark.role("any", why="it takes keys back with RESTORE")
async def test_another_row_at_the_very_same_place_is_archived_too(
    live: RedisStateStore, archive: Archive
) -> None:
    await live.save_events(made(*"ab"))
    await archive_records(live, archive)
    last = (await archived_events(archive, TRACE))[-1]
    keys = live.events.log(TRACE).keys
    # As if the clock had been set back: the last place has another event.
    place = f"{last.n}-{last.born_us // 1000}"
    (found,) = made("z")
    written, data = write_event(found)
    (first, fields), _ = await send(live, "XRANGE", keys.rows, "-", "+")
    await send(live, "DEL", keys.rows)
    await send(live, "XADD", keys.rows, first, *fields)
    await send(live, "XADD", keys.rows, place, "id", written, "topic", "", "row", data)
    await send(live, "PEXPIRE", keys.rows, DAY_MS)
    await send(live, "HDEL", keys.ids, last.key)
    await send(live, "HSET", keys.ids, written, last.n)
    await live.save_events(made("c"))
    await archive_records(live, archive)
    assert {content for _, content in await kept(archive)} == {*"abzc"}
    assert {each.payload["content"] for each in (await live.archive.events(TRACE)).events} == {
        *"abzc"
    }


@POSTGRES
async def test_a_postgresql_from_a_backup_gets_what_redis_still_has(
    live: RedisStateStore, archive: Archive, archiving: Settings, postgres: OwnPostgres
) -> None:
    await live.save_events(made(*"abcd"))
    await archive_records(live, archive)
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as beside:
        await beside.execute(
            "DELETE FROM redis_state.records WHERE namespace = %s AND n > 1", [archiving.namespace]
        )
    await live.save_events(made("e"))
    assert (await archive_records(live, archive)).copied == {"events": 4}
    assert await kept(archive) == list(enumerate("abcde", 1))


async def test_an_archive_that_is_away_delays_and_nothing_expires(
    live: RedisStateStore, archive: Archive, archiving: Settings
) -> None:
    await live.save_events(made(*"ab"))
    keys = live.events.log(TRACE).keys
    for key in (keys.rows, keys.ids):
        await send(live, "PEXPIRE", key, 3_600_000)
    away = PostgresArchive("postgresql://nobody@127.0.0.1:1/none", namespace=archiving.namespace)
    await records_due(live)
    report = await RecordArchiver(live, away).run_once()
    assert (report.looked, report.postponed, report.copied) == (1, 1, {})
    for key in (keys.rows, keys.ids):
        assert await send(live, "PTTL", key) > 399 * DAY_MS
    assert (await archive_records(live, archive)).copied == {"events": 2}
    # They expire when they would have.
    for key in (keys.rows, keys.ids):
        assert 0 < await send(live, "PTTL", key) < 399 * DAY_MS
    await away.aclose()


async def test_events_that_grow_old_while_the_archive_is_away_are_archived(
    live: RedisStateStore, archive: Archive, away: Archive
) -> None:
    await live.save_events(made(*"abc"))
    await records_due(live)
    assert (await RecordArchiver(live, away).run_once()).postponed == 1
    await clock_passes(live.base.scripts, await clock_ms(live.base.scripts) + 2)
    short = live.settings.model_copy(update={"events_ttl": timedelta(milliseconds=1)})
    async with RedisStateStore(short) as store:
        for content in "de":
            await store.save_events(made(content))
    report = await archive_records(live, archive)
    assert (report.copied, report.missed) == ({"events": 5}, 0)
    assert await kept(archive) == list(enumerate("abcde", 1))


@pytest.mark.role("any", why="it reads the names of all keys")
async def test_a_log_that_cannot_be_read_is_set_aside_and_others_go_on(
    live: RedisStateStore, archive: Archive, caplog: pytest.LogCaptureFixture
) -> None:
    for event in made("a", trace="other") + made("b"):
        await live.save_event(event)
    keys = live.events.log(TRACE).keys
    assert await send(live, "DEL", keys.rows) == 1
    await send(live, "SET", keys.rows, "no log", "EX", 60)
    await records_due(live)
    report = await RecordArchiver(live, archive).run_once()
    assert (report.refused, dict(report.copied)) == (1, {"events": 1})
    assert await kept(archive, "other") == [(1, "a")]
    assert [each.levelname for each in caplog.records] == ["ERROR"]


@pytest.mark.role("admin")
async def test_a_session_that_is_erased_takes_the_events_of_its_own_traces_with_it(
    live: RedisStateStore, archive: Archive, archiving: Settings
) -> None:
    for trace in (TRACE, "shared"):
        await live.save_events(made(*"ab", trace=trace))
        await live.save_trajectory(trace, "session", Trajectory(query="q"))
    await live.save_trajectory("shared", "other", Trajectory(query="q"))
    await archive_records(live, archive)
    # An archiver has read what is erased then.
    read = await archived_events(archive, TRACE)
    async with Eraser(live, archive) as eraser:
        counted = await eraser.forget("session", dry_run=True)
        report = await eraser.forget("session")
        again = await eraser.forget("session")
    assert counted.archive == report.archive == {"events": 2}
    assert again.archive == {}
    assert await kept(archive) == []
    assert await kept(archive, "shared") == [(1, "a"), (2, "b")]
    await archive.write(ArchiveBatch(records=read))
    assert await kept(archive) == []
    # A session of the trace's name is another thing.
    await archive.write(
        ArchiveBatch(records=[replace(read[0], kind=RecordKind.ARTIFACT, owner=TRACE)])
    )
    assert len(await archive.records(RecordKind.ARTIFACT, TRACE)) == 1
    # A log that Redis has again, as a backup had it, is not archived; what is new is.
    await live.save_events(made("c"))
    assert (await archive_records(live, archive)).copied == {"events": 1}
    assert [content for _, content in await kept(archive)] == ["c"]


@pytest.mark.role("any", why="it reads the names of all keys, and takes keys back with RESTORE")
@pytest.mark.parametrize("archives", [False, True], ids=["not-yet-archived", "archived"])
async def test_events_of_no_trace_and_of_a_shared_one_outlive_a_session_that_names_them(
    live: RedisStateStore, archive: Archive, *, archives: bool
) -> None:
    shared = event_of(TRACE, "a")
    for event in (shared, replace(shared, trace_id=None)):
        await live.save_event(event)
    for session_id, trace in (("s", GLOBAL_TRACE), ("s", TRACE), ("other", TRACE)):
        await live.save_trajectory(trace, session_id, Trajectory("q"))
    if archives:
        await archive_records(live, archive)
    async with Eraser(live) as eraser:
        assert (await eraser.forget("s")).is_complete
    assert await live.load_history(TRACE) == [shared]
    assert len(await live.load_history(None)) == 1
    # What waited still waits: it is archived before it expires.
    await archive_records(live, archive)
    for trace in (TRACE, GLOBAL_TRACE):
        assert await kept(archive, trace) == [(1, "a")]


@pytest.mark.role("any", why="it takes keys back with RESTORE")
async def test_a_backup_of_before_an_erasure_is_not_archived_again(
    live: RedisStateStore, archive: Archive
) -> None:
    await live.save_events(made(*"ab"))
    await live.save_trajectory(TRACE, "session", Trajectory(query="q"))
    await archive_records(live, archive)
    was = await snapshot(live)
    async with Eraser(live, archive) as eraser:
        await eraser.forget("session")
    await go_back(live, was)
    await live.save_events(made("c"))
    report = await archive_records(live, archive)
    assert report.copied == {"events": 1}
    assert report.erased >= 2
    assert [content for _, content in await kept(archive)] == ["c"]


@POSTGRES
async def test_old_events_are_removed_by_their_retention(
    live: RedisStateStore, archive: Archive, archiving: Settings, postgres: OwnPostgres
) -> None:
    await live.save_events(made(*"abc"))
    await archive_records(live, archive)
    await expire(live)
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as beside:
        await beside.execute(
            "UPDATE redis_state.records SET at = at - interval '40 days' "
            "WHERE namespace = %s AND n < 3",
            [archiving.namespace],
        )
    report = await archive.retain({"events": datetime.now(UTC) - timedelta(days=30)})
    assert report.rows == {"events": 2}
    assert await kept(archive) == [(3, "c")]
    assert (await live.archive.events(TRACE)).missed == 2


async def test_ids_and_values_are_any_text(live: RedisStateStore, archive: Archive) -> None:
    events = [replace(event_of(own, own), node_id=own) for own in IDS]
    await live.save_events(events)
    await archive_records(live, archive)
    for own, event in zip(IDS, events, strict=True):
        (found,) = await live.archive.records(RecordKind.EVENT, own)
        assert (found.record.owner, found.value) == (own, event)


@POSTGRES
async def test_events_are_listed_by_hand(
    archiving: Settings, settings: Settings, postgres: OwnPostgres, archive: Archive
) -> None:
    async def run(*arguments: str) -> Ran:
        return await cli(
            settings,
            "archive",
            *arguments,
            REDIS_STATE_ARCHIVE_URL=postgres.url,
            REDIS_STATE_ARCHIVE_CLASSES='["events"]',
        )

    short = archiving.model_copy(update={"max_events_per_trace": 2})
    async with RedisStateStore(short) as store:
        await store.save_events(made(*"abc"))
        await records_due(store)
        assert (await run("run", "--json")).document["events"] == 2
        await expire(store)
    assert (await run("status", "--json")).document["events"] == 2
    found = (await run("events", TRACE, "--json")).document
    assert [each["payload"]["content"] for each in found["events"]] == ["b", "c"]
    assert found["missed"] == 1
    assert "1 rows are missing" in (await run("events", TRACE)).out
    assert (await run("events", "none")).out.strip() == "no events"


async def test_global_events_are_archived(live: RedisStateStore, archive: Archive) -> None:
    await live.save_event(replace(made("a")[0], trace_id=None))
    await archive_records(live, archive)
    assert len(await archived_events(archive, "__global__")) == 1


def test_events_are_kept_in_one_place(archiving: Settings) -> None:
    durable = archiving.model_copy(update={"durable_events": SecretStr("postgresql://x@h/d")})
    with pytest.raises(ConfigError, match="events are in `durable_events` already"):
        RedisStateStore(durable)
