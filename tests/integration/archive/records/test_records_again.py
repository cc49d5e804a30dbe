"""Records that the archive lacks since it went back to an earlier state are copied again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.agents import SessionStore
from redis_state.archive import Archive, open_archive
from redis_state.archive.copying.records import RecordArchiver
from redis_state.archive.model import ArchivedRecord, RecordKind
from redis_state.models import Trajectory
from redis_state.worker.archiving.again import enlist_records
from tests.integration.archive.copying.test_any_ids import IDS
from tests.support.agents.sessions import fresh
from tests.support.commands import cli
from tests.support.processes.pools import SESSION
from tests.support.tasks.archived.archived_records import (
    archive_records,
    archived_events,
    event_of,
    records_due,
    save_records,
)
from tests.support.tasks.crash_states import send

pytestmark = [
    pytest.mark.worker,
    pytest.mark.role("any", why="it reads the names of all keys"),
]

AGENTS = ("a", "b_c-d")


@pytest.fixture
def archiving(archiving: Settings) -> Settings:
    """Give settings that also archive trajectories and agents' sessions."""
    chosen = frozenset({"trajectories", "agent_sessions"})
    return archiving.model_copy(update={"archive_classes": chosen})


async def kept(archive: Archive) -> dict[tuple[str, str, str], str]:
    """Return the stamps of all records; none is there twice."""
    found: list[ArchivedRecord] = []
    for owner in {*IDS, *AGENTS}:
        for kind in (RecordKind.TRAJECTORY, RecordKind.AGENT_SESSION):
            found += await archive.records(kind, owner)
    stamps = {(each.kind.value, each.owner, each.key): each.stamp for each in found}
    assert len(stamps) == len(found)
    return stamps


async def test_what_a_restored_archive_lacks_is_copied_again_whatever_its_id(
    live: RedisStateStore, archive: Archive
) -> None:
    for own in IDS:
        for trace in ("t", own):
            await live.save_trajectory(trace, own, Trajectory(query="q"))
    for own in AGENTS:
        await SessionStore(live).create(fresh(own))
    await archive_records(live, archive)
    was = await kept(archive)
    traces = len({(own, trace) for own in IDS for trace in ("t", own)})
    assert len(was) == traces + len(AGENTS)
    for own in {*IDS, *AGENTS}:
        await archive.forget(own)
    assert await kept(archive) == {}
    counts = {"trajectories": traces, "agent_sessions": len(AGENTS)}
    # They are marked as archived: a look at them does not read the archive.
    assert (await enlist_records(live)).counts == counts
    assert (await archive_records(live, archive)).copied == {}
    assert await kept(archive) == {}
    done = await enlist_records(live, again=True)
    assert (done.counts, done.left) == (counts, [])
    # Who dies before they are copied repeats it.
    await enlist_records(live, again=True)
    assert (await archive_records(live, archive)).copied == counts
    assert await kept(archive) == was
    # Nothing that is there is written again.
    await enlist_records(live, again=True)
    await archive_records(live, archive)
    assert await kept(archive) == was


async def test_what_was_saved_before_its_class_was_chosen_is_found(
    live: RedisStateStore, archive: Archive, settings: Settings
) -> None:
    async with RedisStateStore(settings) as before:
        await before.save_trajectory("t", IDS[0], Trajectory(query="q"))
        await SessionStore(before).create(fresh("a"))
        # Without a class nothing is looked for.
        assert (await enlist_records(before)).counts == {}
    await archive_records(live, archive)
    assert await kept(archive) == {}
    assert (await enlist_records(live)).counts == {"trajectories": 1, "agent_sessions": 1}
    assert (await archive_records(live, archive)).copied.total() == 2
    assert len(await kept(archive)) == 2


@pytest.mark.parametrize("archive_url", ["parquet"], indirect=True)
async def test_a_folder_from_a_backup_gets_the_later_states(
    live: RedisStateStore, archive: Archive, archiving: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    own = archiving.model_copy(update={"archive_url": SecretStr(folder.as_uri())})
    running = open_archive(own)
    await running.prepare()
    await save_records(live)
    await archive_records(live, running)
    shutil.copytree(folder, tmp_path / "backup")
    await save_records(live)
    await archive_records(live, running)
    kinds = (RecordKind.TRAJECTORY, RecordKind.AGENT_SESSION)
    was = {kind: await running.records(kind, SESSION) for kind in kinds}
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    restored = {kind: await running.records(kind, SESSION) for kind in kinds}
    assert [each.version for found in restored.values() for each in found] == [1, 1, 1]
    await enlist_records(live, again=True)
    await archive_records(live, running)
    again = open_archive(own)
    for opened in (running, again):
        for kind in kinds:
            found = await opened.records(kind, SESSION)
            assert [each.stamp for each in found] == [each.stamp for each in was[kind]]
        await opened.aclose()


async def test_the_command_copies_them_and_returns_once_they_are_there(
    live: RedisStateStore, archive: Archive, settings: Settings, archive_url: str
) -> None:
    await live.save_trajectory("t", "a", Trajectory(query="q"))
    await SessionStore(live).create(fresh("a"))
    await archive_records(live, archive)
    await archive.forget("a")
    ran = await cli(
        settings,
        *("archive", "run", "--again", "--json"),
        REDIS_STATE_ARCHIVE_URL=archive_url,
        REDIS_STATE_ARCHIVE_CLASSES='["trajectories", "agent_sessions", "events"]',
        REDIS_STATE_CALL_TIMEOUT_S="1",
    )
    assert ran.status == 0, ran.err
    assert ran.document["left"] == []
    counted = {name: ran.document[name] for name in ("enlisted_records", "trajectories")}
    assert counted == {"enlisted_records": 2, "trajectories": 1}
    assert len(await kept(archive)) == 2


async def test_events_of_before_are_found_whatever_their_trace_is(
    live: RedisStateStore, archive: Archive, settings: Settings
) -> None:
    own = {"archive_url": live.settings.archive_url, "archive_classes": frozenset({"events"})}
    async with (
        RedisStateStore(settings) as before,
        RedisStateStore(settings.model_copy(update=own)) as later,
    ):
        for trace in (*IDS, None):
            event = event_of("", f"{trace!r}")
            await before.save_event(replace(event, trace_id=trace))
        traces = [*IDS, "__global__"]
        await archive_records(later, archive)
        for trace in traces:
            assert await archived_events(archive, trace) == []
        # A log that nobody can read is named, and the others are copied.
        broken = later.events.log("broken").keys
        await before.save_event(event_of("broken", "b"))
        await send(later, "DEL", broken.rows)
        await send(later, "SET", broken.rows, "no log", "EX", 60)
        done = await enlist_records(later)
        assert (done.counts, done.left) == ({"events": len(traces) + 1}, [])
        await records_due(later)
        report = await RecordArchiver(later, archive).run_once()
        assert (report.copied, report.refused) == ({"events": len(traces)}, 1)
        for trace in traces:
            (found,) = await archived_events(archive, trace)
            await archive.forget_records(RecordKind.EVENT, [trace], before_us=found.born_us)
        # As if it had come from a backup.
        await enlist_records(later, again=True)
        await records_due(later)
        assert (await RecordArchiver(later, archive).run_once()).copied == {"events": len(traces)}
