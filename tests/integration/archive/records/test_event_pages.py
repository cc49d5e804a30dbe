"""A trace's audit events are read in pages of bounded size: each once, whatever moves meanwhile."""

from __future__ import annotations

from typing import Any, cast

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive import Archive, ArchiveReader, EventCursor
from redis_state.archive.copying.records import RecordArchiver
from redis_state.archive.model import ArchiveBatch, ArchivedRecord, RecordKind
from redis_state.errors import CommandRefused
from redis_state.models import StoredEvent
from redis_state.stores.archive_list import RecordList
from redis_state.stores.traces.audit_events import write_event
from redis_state.transport.clock import us_of
from tests.support.samples import admin, own_server
from tests.support.tasks.archived.archived_records import (
    archive_records,
    archived_events,
    event_of,
    records_due,
)
from tests.support.tasks.crash_states import send

TRACE = "trace"


@pytest.fixture
def archiving(archiving: Settings) -> Settings:
    """Give settings that also archive events."""
    return archiving.model_copy(update={"archive_classes": frozenset({"events"})})


def made(*contents: str) -> list[StoredEvent]:
    return [event_of(TRACE, content) for content in contents]


def record(content: str, n: int, ms: int) -> ArchivedRecord:
    """Make an archived event of a place."""
    key, data = write_event(event_of(TRACE, content))
    us = ms * 1000
    return ArchivedRecord(
        RecordKind.EVENT, TRACE, key.decode(), born_us=us, at_us=us, data=data, n=n
    )


async def rest(
    reader: ArchiveReader, after: EventCursor | None = None, *, limit: int = 7
) -> tuple[list[str], int]:
    """Read on to the end: what the events have, and how many rows are missing."""
    found: list[str] = []
    missed = 0
    while True:
        page = await reader.events(TRACE, after=after, limit=limit)
        missed += page.missed
        if not page.events:
            return found, missed
        assert len(page.events) <= limit
        found += [each.payload["content"] for each in page.events]
        after = page.cursor


async def test_events_move_to_the_archive_and_expire_between_two_pages(
    live: RedisStateStore, archive: Archive
) -> None:
    contents = [f"{n:03d}" for n in range(40)]
    await live.save_events(made(*contents[:20]))
    await archive_records(live, archive)
    await live.save_events(made(*contents[20:]))
    assert await rest(live.archive) == (contents, 0)
    page = await live.archive.events(TRACE, limit=25)
    assert [each.payload["content"] for each in page.events] == contents[:25]
    await archive_records(live, archive)
    assert await rest(live.archive, page.cursor) == (contents[25:], 0)
    keys = live.events.log(TRACE).keys
    assert await send(live, "DEL", keys.rows, keys.ids) == 2
    await live.save_events(made("new"))
    assert await rest(live.archive, page.cursor) == ([*contents[25:], "new"], 0)
    assert await rest(live.archive) == ([*contents, "new"], 0)


async def test_a_page_has_some_4_mib_or_one_event(live: RedisStateStore, archive: Archive) -> None:
    large = [f"{n}" + "x" * (3 << 19) for n in range(8)]
    for each in large[:4]:
        await live.save_events(made(each))
    await archive_records(live, archive)
    for each in large[4:]:
        await live.save_events(made(each))
    after, sizes = None, list[int]()
    while True:
        page = await live.archive.events(TRACE, after=after, limit=100)
        if not page.events:
            break
        sizes.append(sum(len(each.payload["content"]) for each in page.events))
        after = page.cursor
    assert sum(sizes) == sum(map(len, large))
    # What the last read of a page brings is not thrown away.
    assert max(sizes) <= 12 << 20
    assert len(sizes) > 1


async def test_rows_of_two_histories_among_one_another_are_not_missing(
    live: RedisStateStore, archive: Archive
) -> None:
    # The log began again after its server's clock had gone back.
    old = [record(f"old {n}", n, 1_000 + 10 * n) for n in range(1, 11)]
    new = [record(f"new {n}", n, 1_041 + n) for n in range(1, 6)]
    await archive.write(ArchiveBatch(records=[*old, *new]))
    for limit in (1, 3, 100):
        found, missed = await rest(live.archive, limit=limit)
        assert len(found) == len(set(found)) == 15
        assert missed == 0


async def test_what_is_missing_between_rows_is_counted_once_over_all_pages(
    live: RedisStateStore, archive: Archive
) -> None:
    kept = [record(f"{n}", n, 1_000 + n) for n in (3, 4, 8, 9)]
    await archive.write(ArchiveBatch(records=kept))
    for limit in (1, 2, 100):
        assert await rest(live.archive, limit=limit) == (["3", "4", "8", "9"], 5)


async def test_an_event_with_two_places_comes_at_the_first_in_pages_of_one(
    live: RedisStateStore, archive: Archive
) -> None:
    again = [record("a", 1, 1_001), record("b", 2, 1_002), record("a", 2, 1_003)]
    await archive.write(ArchiveBatch(records=again))
    # Redis has it too, at a third place.
    await live.save_events(made("b", "c"))
    for limit in (1, 2, 100):
        assert (await rest(live.archive, limit=limit))[0] == ["a", "b", "c"]


async def test_a_large_log_is_copied_in_shares_and_holds_no_other_up(
    live: RedisStateStore, archive: Archive
) -> None:
    contents = [f"{n:03d}" for n in range(200)]
    await live.save_events(made(*contents))
    others = [f"other {n}" for n in range(9)]
    await live.save_events(event_of(each, each) for each in others)
    archiver, rounds = RecordArchiver(live, archive, share_s=0), 0
    while (await RecordList(live.base).backlog()).records:
        rounds += 1
        assert rounds < 200
        await records_due(live)
        report = await archiver.run_once()
        assert report.refused == report.postponed == 0
        # One page of each of eight logs.
        assert report.copied["events"] <= 500 + 9
    # The first page is short, and each round begins with one.
    assert rounds > 200 // 16
    assert [(each.n, each.key) for each in await archived_events(archive, TRACE)] == [
        (n, write_event(event)[0].decode()) for n, event in enumerate(made(*contents), 1)
    ]
    for each in others:
        assert len(await archived_events(archive, each)) == 1


@pytest.mark.role("any", why="it writes a log by hand")
async def test_a_log_that_began_again_in_the_past_is_continued_and_what_it_lost_is_counted(
    live: RedisStateStore, archive: Archive
) -> None:
    now_ms = us_of(await live.transport.commands.time()) // 1000
    old = [record(f"old {n}", n, now_ms + 3_600_000 + n) for n in range(1, 10)]
    await archive.write(ArchiveBatch(records=old))
    # Its server's clock is an hour behind since.
    await live.save_events(made(*"abc"))
    report = await archive_records(live, archive)
    assert (report.copied, report.missed) == ({"events": 3}, 0)
    short = live.settings.model_copy(update={"max_events_per_trace": 2})
    async with RedisStateStore(short) as store:
        for content in "defg":
            await store.save_events(made(content))
        report = await archive_records(store, archive)
    # What it has is not copied again.
    assert (report.copied, report.missed) == ({"events": 2}, 2)


async def test_a_missing_right_is_no_bad_record(archiving: Settings, archive: Archive) -> None:
    with own_server() as own:
        chosen = archiving.model_copy(update={"url": SecretStr(own.url)})
        async with RedisStateStore(chosen) as store:
            await store.save_events(made("a"))
            await records_due(store)
            await admin(store, "ACL", "SETUSER", "default", "-xrange")
            with pytest.raises(CommandRefused):
                await RecordArchiver(store, archive).run_once()
            await admin(store, "ACL", "SETUSER", "default", "+xrange")
            assert (await archive_records(store, archive)).copied == {"events": 1}


class _MovingArchive:
    """Archives all that waits just before it says where events are."""

    def __init__(self, store: RedisStateStore, archive: Archive) -> None:
        self._store, self._archive = store, archive
        self.moved: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    async def first_places(self, *args: Any) -> Any:
        self.moved += (await archive_records(self._store, self._archive)).copied["events"]
        return await self._archive.first_places(*args)


async def test_an_event_that_is_archived_while_its_page_is_read_is_not_left_out(
    live: RedisStateStore, archive: Archive
) -> None:
    contents = [f"{n:03d}" for n in range(20)]
    await live.save_events(made(*contents))
    moving = _MovingArchive(live, archive)
    reader = ArchiveReader(live, cast("Archive", moving))
    assert await rest(reader) == (contents, 0)
    assert moving.moved == len(contents)


async def test_rows_that_were_trimmed_behind_a_page_from_redis_are_counted_once(
    live: RedisStateStore, archive: Archive
) -> None:
    await live.save_events(made(*"abcde"))
    page = await live.archive.events(TRACE, limit=5)
    assert (len(page.events), page.missed) == (5, 0)
    await archive_records(live, archive)
    short = live.settings.model_copy(update={"max_events_per_trace": 2})
    async with RedisStateStore(short) as store:
        for content in "fghi":
            await store.save_events(made(content))
        assert (await archive_records(store, archive)).missed == 2
    for limit in (1, 100):
        assert await rest(live.archive, page.cursor, limit=limit) == (["h", "i"], 2)
