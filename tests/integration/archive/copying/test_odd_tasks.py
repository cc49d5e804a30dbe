"""What nobody would choose: it is archived or set aside, and stops nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.archive import ArchiveListing, ArchiveQuery, ArchiveReader
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.model import TaskEnd
from redis_state.archive.protocol import Archive
from redis_state.archive.waiting import ArchiveList
from redis_state.models import TaskStatus
from redis_state.stores.sessions.task_status import watch_entry
from redis_state.worker import TaskClient
from tests.support.processes.pools import SESSION
from tests.support.samples import task as make_task
from tests.support.tasks.archived.archives import (
    all_due,
    archive_all,
    archived,
    ended,
    expected,
    let_expire,
)
from tests.support.tasks.crash_states import send

pytestmark = pytest.mark.worker

_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
# In UTC of the years 10000 and 0; of before 1970; without a zone.
TIMES = {
    "never": datetime(9999, 12, 31, 23, 30, tzinfo=timezone(timedelta(hours=-5))),
    "usual": _NOON,
    "naive": _NOON.replace(tzinfo=None) - timedelta(hours=1),
    "old": datetime(1969, 7, 20, tzinfo=UTC),
    "least": datetime.min,  # noqa: DTZ901 - naive on purpose
    "first": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))),
}


async def saved(live: RedisStateStore, task: str, session: str = SESSION, **about: Any) -> None:
    """Have a host save a task that has ended."""
    state = replace(make_task(task), session_id=session, status=TaskStatus.COMPLETE, **about)
    assert await live.tasks.save(state)


@pytest.fixture
def far_west(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the process in a zone where noon without one is in the evening of UTC."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "EST5")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_west")
async def test_times_of_any_year_are_listed(live: RedisStateStore, archive: Archive) -> None:
    for task, at in TIMES.items():
        await saved(live, task, created_at=at, updated_at=at)
    assert (await archive_all(live, archive)).tasks == len(TIMES)
    assert await archived(archive) == await expected(live, *TIMES)
    whole = {task: await live.tasks.load(SESSION, task) for task in TIMES}
    await let_expire(live, *TIMES)

    assert (await archive.status()).tasks == len(TIMES)
    for newest_first in (True, False):
        found, after = list[str](), None
        while len(found) <= len(TIMES):
            page = await archive.find(
                ArchiveListing(limit=1, after=after, newest_first=newest_first)
            )
            found += [task.task_id for task in page.tasks]
            if (after := page.end) is None:
                break
        in_order = found if newest_first else found[::-1]
        assert in_order[:3] == ["never", "usual", "naive"]
        assert sorted(found) == sorted(TIMES)
    by_end, last = list[str](), cast("TaskEnd | None", None)
    while page_of := await archive.tasks(ArchiveQuery(after=last, limit=1)):
        by_end, last = [*by_end, page_of[0].task_id], page_of[0].end
        assert len(by_end) <= len(TIMES)
    assert sorted(by_end) == sorted(TIMES)
    async with TaskClient(live) as client:
        listed = await client.find(archived="only")
        assert {each.task_id: each.created_at for each in listed.tasks} == TIMES
    async with ArchiveReader(live, archive) as reader:
        tasks = await reader.tasks(SESSION)
    assert {each.task_id: each for each in tasks} == whole
    assert [each.task_id for each in tasks[-3:]] == ["naive", "usual", "never"]


async def test_a_trace_that_is_no_text_stops_no_archiver(
    live: RedisStateStore, archive: Archive
) -> None:
    for task, trace in (("number", 7), ("usual", "trace")):
        await saved(live, task, trace_id=cast("Any", trace))
    assert (await archive_all(live, archive)).tasks == 2
    assert await archived(archive) == await expected(live, "number", "usual")
    found = await archive.tasks(ArchiveQuery())
    assert {each.task_id: each.trace_id for each in found} == {"number": None, "usual": "trace"}
    state = await live.tasks.load(SESSION, "number")
    await let_expire(live, "number", "usual")
    async with ArchiveReader(live, archive) as reader:
        assert await reader.task(SESSION, "number") == state


async def spoiled(live: RedisStateStore) -> tuple[str, list[str]]:
    """Have a task end whose session's updates cannot be read, and others that can."""
    bad = await ended(live)
    await ArchiveList(live).enlist(SESSION, bad)
    keys = live.updates.keys(SESSION)
    for key in (keys.rows, keys.ids):
        await send(live, "DEL", key)
        await send(live, "SET", key, "neither a stream nor a hash", "PX", 60_000)
    others = [f"other-{n}" for n in range(4)]
    for session in others:
        await saved(live, "t", session)
    await all_due(live)
    return bad, others


async def test_updates_that_cannot_be_read_are_set_aside_and_others_are_archived(
    live: RedisStateStore, archive: Archive, caplog: pytest.LogCaptureFixture
) -> None:
    bad, others = await spoiled(live)
    archiver = Archiver(live, archive)
    report = await archiver.run_once()
    # Its session is listed too.
    assert (report.tasks, report.refused) == (len(others), 2)
    assert "found a key of another type" in caplog.text
    # It is not looked at again at once.
    assert (await archiver.run_once()).refused == 0
    assert (await ArchiveList(live).backlog()).oldest_s > 0
    keys = live.updates.keys(SESSION)
    await send(live, "DEL", keys.rows)
    await send(live, "DEL", keys.ids)
    assert (await archive_all(live, archive)).tasks == 1
    assert await archived(archive) == await expected(live, bad)


async def test_updates_that_cannot_be_read_keep_no_other_from_being_held(
    live: RedisStateStore, away: Archive
) -> None:
    _, others = await spoiled(live)
    report = await Archiver(live, away).run_once()
    assert report.postponed == 2 + len(others)


async def test_a_row_of_no_time_that_a_calendar_has_is_set_aside_alone(
    live: RedisStateStore, archive: Archive
) -> None:
    keys, never = live.updates.keys("other"), 10**17
    await send(live, "XADD", keys.rows, f"7-{never}", "id", "i", "topic", "t", "row", "[]")
    await send(live, "HSET", keys.ids, "", f"7-{never} 7 {never} 0 0")
    for key in (keys.rows, keys.ids):
        await send(live, "PEXPIRE", key, 100_000)
    await ArchiveList(live).watch_session("other", within_ms=0)
    await saved(live, "usual")
    await all_due(live)
    report = await Archiver(live, archive).run_once()
    assert (report.tasks, report.refused) == (1, 1)


async def test_a_task_that_has_ended_is_saved_and_archived_whatever_its_sessions_updates_are(
    live: RedisStateStore, archive: Archive
) -> None:
    await send(live, "SET", live.updates.keys(SESSION).ids, "no log", "PX", 100_000)
    await saved(live, "a")
    assert await live.tasks.load(SESSION, "a") is not None
    assert await ArchiveList(live).tasks.has(watch_entry(SESSION, "a"))
