"""Audit events of a trace stay while any session has it, also one that only the archive has."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.archive import Archive
from redis_state.archive.model import ArchiveBatch
from redis_state.erasure import Eraser
from redis_state.models import Trajectory
from redis_state.worker import TaskClient
from tests.integration.archive.copying.test_any_ids import IDS
from tests.support.tasks.archived.archived_records import archive_records, archived_events, event_of
from tests.support.tasks.archived.archived_tasks import sample_task

pytestmark = pytest.mark.role("any", why="it reads the names of all keys")

TRACE = "trace"


@pytest.fixture
def archiving(archiving: Settings) -> Settings:
    """Give settings that also archive trajectories and events."""
    chosen = frozenset({"trajectories", "events"})
    return archiving.model_copy(update={"archive_classes": chosen})


async def saved(store: RedisStateStore, *sessions: str, trace: str = TRACE) -> None:
    """Save two events of a trace, and a trajectory of it for each session."""
    for session_id in sessions:
        await store.save_trajectory(trace, session_id, Trajectory("q"))
    await store.save_events([event_of(trace, content) for content in ("a", "b")])


@pytest.mark.parametrize("own", ["session", IDS[3] + IDS[7]])
async def test_a_trajectory_in_the_archive_keeps_the_events_of_its_trace(
    live: RedisStateStore, archive: Archive, own: str
) -> None:
    await saved(live, own, "gone", trace=own)
    await archive_records(live, archive)
    # Only the archive has the other session then.
    await live.clear_session("gone")
    # They wait for the archive.
    later = event_of(own, "c")
    await live.save_event(later)
    async with Eraser(live, archive) as eraser:
        counted = await eraser.forget(own, dry_run=True)
        report = await eraser.forget(own)
        assert counted.archive == report.archive
        assert report.archive["trajectories"] == 1
        assert "events" not in report.archive
        assert counted.kept == report.kept
        assert "1 traces" in report.kept["events of shared traces"]
        assert later in await live.load_history(own)
        await archive_records(live, archive)
        assert len(await archived_events(archive, own)) == 3
        # With the last session that has the trace they go, from Redis too.
        assert (await eraser.forget("gone")).archive["events"] == 3
    assert await live.load_history(own) == []


@pytest.mark.parametrize("others", [False, True], ids=["theirs", "and-another's"])
async def test_a_user_takes_the_events_that_only_its_own_sessions_share(
    live: RedisStateStore, archive: Archive, *, others: bool
) -> None:
    await saved(live, "one", "two", *(["other"] if others else []))
    await archive_records(live, archive)
    tasks = [sample_task(each, "t", 3, user="ann") for each in ("one", "two")]
    await archive.write(ArchiveBatch(tasks=tasks))
    if others:
        await live.clear_session("other")
    async with Eraser(live, archive) as eraser:
        counted = await eraser.forget_user("ann", dry_run=True)
        report = await eraser.forget_user("ann")
    assert counted.archive == report.archive
    assert report.archive.get("events", 0) == (0 if others else 2)
    assert counted.redis == report.redis
    assert report.redis["traces"] == 1
    assert ("events of shared traces" in report.kept) is others
    assert counted.kept == report.kept
    assert len(await archived_events(archive, TRACE)) == (2 if others else 0)


@pytest.mark.worker
async def test_a_live_task_has_its_trace_as_an_archived_one_has(
    live: RedisStateStore, archive: Archive
) -> None:
    await live.save_events([event_of(TRACE, content) for content in ("a", "b")])
    await archive_records(live, archive)
    async with TaskClient(live) as client, Eraser(live, archive) as eraser:
        for session in ("mine", "its"):
            await client.submit("work", session_id=session, trace_id=TRACE, delay=timedelta(days=9))
        assert "1 traces" in (await eraser.forget("mine")).kept["events of shared traces"]
        assert len(await archived_events(archive, TRACE)) == 2
        counted = await eraser.forget("its", dry_run=True)
        report = await eraser.forget("its")
    assert counted.archive == report.archive == {"events": 2}
    assert await archived_events(archive, TRACE) == []


async def test_a_session_takes_the_events_of_a_task_whose_id_was_used_again(
    live: RedisStateStore, archive: Archive
) -> None:
    await live.save_events([event_of(TRACE, content) for content in ("a", "b")])
    await archive_records(live, archive)
    first = sample_task("session", "t", 3)
    document = b'{"trace_id":"%s",' % TRACE.encode() + first.record[b"document"][1:]
    first = replace(first, record=dict(first.record) | {b"document": document})
    again = sample_task("session", "t", 3, at_ms=first.born_us // 1000 + 60_000)
    await archive.write(ArchiveBatch(tasks=[first, again]))
    async with Eraser(live, archive) as eraser:
        counted = await eraser.forget("session", dry_run=True)
        report = await eraser.forget("session")
    assert counted.archive == report.archive
    assert report.archive["events"] == 2
    assert await archived_events(archive, TRACE) == []
