"""Trajectories in the archive: copied once they rest, read by the store's models, erased."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.archive import open_archive
from redis_state.archive.copying.records import RecordArchiver
from redis_state.archive.model import ArchiveBatch, RecordKind
from redis_state.archive.protocol import Archive
from redis_state.erasure import Eraser
from redis_state.errors import ConfigError
from redis_state.models import Trajectory
from redis_state.stores import archive_list
from redis_state.stores.archive_list import RecordList
from redis_state.stores.traces.trajectories import trajectory_entry
from redis_state.testing import eventually
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.transport.sending.calls import CallSender
from redis_state.worker.archiving.loop import archive_regularly
from redis_state.worker.observe.stats import WorkerStats
from tests.integration.archive.copying.test_any_ids import IDS
from tests.support.tasks.archived.archived_records import archive_records, records_due
from tests.support.tasks.crash_states import send

SESSION, TRACE = "session", "trace"
DAY_MS = 86_400_000


@pytest.fixture
def archiving(archiving: Settings) -> Settings:
    """Give settings that also archive trajectories."""
    return archiving.model_copy(update={"archive_classes": frozenset({"trajectories"})})


def made(query: str) -> Trajectory:
    return Trajectory(query=query)


async def kept(archive: Archive, session: str = SESSION) -> list[str]:
    found = await archive.records(RecordKind.TRAJECTORY, session)
    return [record.data.decode() for record in found]


async def expire(store: RedisStateStore, *, trace: str = TRACE) -> None:
    """Have an archived trajectory expire, as it does once its lifetime is over."""
    key = store.base.keys.trajectory(SESSION, trace)
    assert await send(store, "HEXISTS", key, "archived") == 1
    await send(store, "DEL", key)


async def test_a_trajectory_is_copied_and_read_once_it_has_expired(
    live: RedisStateStore, archive: Archive
) -> None:
    await live.save_trajectory(TRACE, SESSION, made("one"))
    backlog = await RecordList(live.base).backlog()
    assert backlog.records == 1
    assert 0 <= backlog.oldest_s < 60
    report = await archive_records(live, archive)
    assert report.copied == {"trajectories": 1}
    assert (await RecordList(live.base).backlog()).records == 0
    # It may be saved again: the archive has its last state, once.
    await live.save_trajectory(TRACE, SESSION, made("two"))
    await archive_records(live, archive)
    assert len(await kept(archive)) == 1
    assert await live.archive.trajectory(TRACE, SESSION) == made("two")
    await expire(live)
    assert await live.get_trajectory(TRACE, SESSION) is None
    assert await live.archive.trajectory(TRACE, SESSION) == made("two")
    assert await live.archive.trajectory("none", SESSION) is None
    # One that is made after that is another one.
    await live.save_trajectory(TRACE, SESSION, made("three"))
    await archive_records(live, archive)
    found = await live.archive.records(RecordKind.TRAJECTORY, SESSION)
    assert [each.value for each in found] == [made("two"), made("three")]
    rest = await live.archive.records(RecordKind.TRAJECTORY, SESSION, after=found[0].place)
    assert rest == found[1:]


async def test_nothing_is_sent_unless_the_class_is_chosen(
    live: RedisStateStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, sent = CallSender.run, list[str]()

    def watched(sender: CallSender, what: Any, *more: Any, **options: Any) -> asyncio.Future[Any]:
        sent.append(what.script.name)
        return run(sender, what, *more, **options)

    monkeypatch.setattr(CallSender, "run", watched)
    async with RedisStateStore(settings) as plain:
        await plain.save_trajectory(TRACE, SESSION, made("one"))
        assert sent == ["add_member", "put_record"]
    # Connected: behind a new connection the entry is put again.
    assert await live.get_trajectory(TRACE, SESSION) is not None
    sent.clear()
    await live.save_trajectory(TRACE, SESSION, made("one"))
    assert sorted(sent) == ["add_member", "put_record", "watch_since"]
    assert sent.index("watch_since") < sent.index("put_record")


async def test_many_writers_and_archivers_lose_no_last_state(
    live: RedisStateStore, archive: Archive, archiving: Settings
) -> None:
    other = open_archive(archiving)
    for turn in range(3):
        saves = (live.save_trajectory(f"{n % 4}", SESSION, made(f"{turn} {n}")) for n in range(40))
        await asyncio.gather(*saves, archive_records(live, archive), archive_records(live, other))
    await archive_records(live, archive)
    found = await live.archive.records(RecordKind.TRAJECTORY, SESSION)
    assert {each.record.key: each.value for each in found} == {
        f"{n}": await live.get_trajectory(f"{n}", SESSION) for n in range(4)
    }
    assert len(found) == 4
    await other.aclose()


async def test_an_archive_that_is_away_delays_and_nothing_expires(
    live: RedisStateStore, archive: Archive, away: Archive
) -> None:
    await live.save_trajectory(TRACE, SESSION, made("one"))
    keys = live.base.keys
    key, index = keys.trajectory(SESSION, TRACE), keys.traces(SESSION)
    for each in (key, index):
        await send(live, "PEXPIRE", each, 3_600_000)
    archiver = RecordArchiver(live, away)
    await records_due(live)
    report = await archiver.run_once()
    assert (report.looked, report.postponed, report.copied) == (1, 1, {})
    for each in (key, index):
        assert await send(live, "PTTL", each) > 399 * DAY_MS
    assert await send(live, "PTTL", keys.trace_sessions(TRACE)) > DAY_MS
    assert (await RecordList(live.base).backlog()).records == 1
    assert await live.list_traces(SESSION, limit=5) == [TRACE]
    await archive_records(live, archive)
    assert len(await kept(archive)) == 1
    assert 0 < await send(live, "PTTL", key) <= 3_600_000


async def test_a_save_under_way_is_not_lost(live: RedisStateStore, archive: Archive) -> None:
    await live.save_trajectory(TRACE, SESSION, made("one"))
    archiver = RecordArchiver(live, archive)
    await records_due(live)
    assert (await archiver.run_once()).copied == {"trajectories": 1}
    # A second look would remove the entry. It was put again, and is due once the save must be over.
    await live.save_trajectory(TRACE, SESSION, made("two"))
    assert (await archiver.run_once()).looked == 0
    await archive_records(live, archive)
    assert await live.archive.trajectory(TRACE, SESSION) == made("two")
    assert '"two"' in (await kept(archive))[0]


async def test_a_save_that_comes_after_the_look_is_not_lost(
    live: RedisStateStore,
    archive: Archive,
    archiving: Settings,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive_list, "_MARGIN_MS", 0)
    quick = archiving.model_copy(update={"call_timeout_s": 1.0})
    archiver, listed = RecordArchiver(live, archive), RecordList(live.base)

    async def nothing_waits() -> bool:
        await archiver.run_once()
        return not (await listed.backlog()).records

    async with RedisStateStore(quick) as slow, RedisStateStore(settings) as plain:

        async def save() -> None:
            # As if its process had been stopped behind the entry.
            await eventually(nothing_waits, "the entry is removed")
            await plain.save_trajectory(TRACE, SESSION, made("one"))

        # Connected: behind a new connection the entry is put again.
        assert await slow.get_trajectory(TRACE, SESSION) is None
        await RecordList(slow.base).covering(trajectory_entry(SESSION, TRACE), save)
    assert (await archive_records(live, archive)).copied == {"trajectories": 1}
    assert len(await kept(archive)) == 1


@pytest.mark.role("any", why="it takes keys back with RESTORE")
async def test_what_redis_has_after_a_rollback_replaces_what_is_archived(
    live: RedisStateStore, archive: Archive
) -> None:
    await live.save_trajectory(TRACE, SESSION, made("one"))
    key = live.base.keys.trajectory(SESSION, TRACE)
    before = await send(live, "DUMP", key)
    for query in ("two", "three"):
        await live.save_trajectory(TRACE, SESSION, made(query))
    await archive_records(live, archive)
    await send(live, "RESTORE", key, 3_600_000, before, "REPLACE")
    await live.save_trajectory(TRACE, SESSION, made("other"))
    await archive_records(live, archive)
    assert ['"other"' in each for each in await kept(archive)] == [True]


@pytest.mark.role("any", why="it reads the names of all keys")
async def test_a_session_that_is_erased_takes_its_trajectories_with_it(
    live: RedisStateStore, archive: Archive
) -> None:
    for session in (SESSION, "other"):
        await live.save_trajectory(TRACE, session, made("one"))
    await archive_records(live, archive)
    # It waits again when the session is erased.
    await live.save_trajectory(TRACE, SESSION, made("two"))
    await live.save_trajectory("second", SESSION, made("two"))
    read = await archive.records(RecordKind.TRAJECTORY, SESSION)
    async with Eraser(live, archive) as eraser:
        counted = await eraser.forget(SESSION, dry_run=True)
        report = await eraser.forget(SESSION)
    assert counted.archive == report.archive == {"tasks": 0, "updates": 0, "trajectories": 1}
    assert await kept(archive) == []
    for shard in range(WATCH_SHARDS):
        for key in (
            live.base.keys.archive_records(shard),
            live.base.keys.archive_records_since(shard),
        ):
            listed = await send(live, "ZRANGE", key, 0, -1)
            assert not [entry for entry in listed if b'"session"' in entry]
    # An archiver that read it before does not write it again.
    key = live.base.keys.trajectory(SESSION, TRACE)
    await send(live, "HSET", key, "version", 9, "order", read[0].born_us, "document", read[0].data)
    await send(live, "PEXPIRE", key, DAY_MS // 2)
    await RecordList(live.base).covering(
        b'["trajectory","session","trace"]', lambda: send(live, "PING")
    )
    assert (await archive_records(live, archive)).erased >= 1
    assert await kept(archive) == []
    # Nor does it live longer than it would have.
    assert 0 < await send(live, "PTTL", key) <= DAY_MS // 2
    assert len(await kept(archive, "other")) == 1
    await live.save_trajectory(TRACE, SESSION, made("new"))
    await send(live, "DEL", key)
    await live.save_trajectory(TRACE, SESSION, made("new"))
    await archive_records(live, archive)
    assert len(await kept(archive)) == 1


async def test_the_last_of_many_of_one_trace_is_read(
    live: RedisStateStore, archive: Archive
) -> None:
    await live.save_trajectory(TRACE, SESSION, made("first"))
    await archive_records(live, archive)
    (first,) = await archive.records(RecordKind.TRAJECTORY, SESSION)
    data = first.data.replace(b"first", b"last")
    await archive.write(
        ArchiveBatch(
            records=[
                replace(first, born_us=first.born_us + n, data=data if n == 100 else first.data)
                for n in range(101)
            ]
        )
    )
    await expire(live)
    assert await live.archive.trajectory(TRACE, SESSION) == made("last")


async def test_a_damaged_one_hinders_no_other(live: RedisStateStore, archive: Archive) -> None:
    for trace in (TRACE, "damaged"):
        await live.save_trajectory(trace, SESSION, made("one"))
    key = live.base.keys.trajectory(SESSION, "damaged")
    await send(live, "HSET", key, "order", str(10**30))
    await records_due(live)
    report = await RecordArchiver(live, archive).run_once()
    assert (report.copied, report.refused) == ({"trajectories": 1}, 1)


async def test_old_trajectories_are_removed_by_their_retention(
    live: RedisStateStore, archive: Archive
) -> None:
    for trace in ("old", "new"):
        await live.save_trajectory(trace, SESSION, made(trace))
    await archive_records(live, archive)
    (old,) = await archive.records(RecordKind.TRAJECTORY, SESSION, key="old")
    stays = replace(old, kind=RecordKind.ARTIFACT, at_us=old.at_us - 40 * DAY_MS * 1000)
    # As if it had been archived then.
    aged = replace(stays, kind=old.kind, version=old.version + 1)
    await archive.write(ArchiveBatch(records=[aged, stays]))
    before = {"trajectories": datetime.now(UTC) - timedelta(days=30)}
    for dry_run in (True, False):
        report = await archive.retain(before, dry_run=dry_run)
        assert report.rows == {"trajectories": 1}
    assert ['"new"' in each for each in await kept(archive)] == [True]
    assert len(await archive.records(RecordKind.ARTIFACT, SESSION)) == 1
    assert (await archive.retain(before)).rows == {"trajectories": 0}


async def test_ids_and_values_are_any_text(live: RedisStateStore, archive: Archive) -> None:
    for own in IDS:
        await live.save_trajectory(own, own, made(own))
    await archive_records(live, archive)
    for own in IDS:
        (found,) = await live.archive.records(RecordKind.TRAJECTORY, own)
        assert (found.record.key, found.value) == (own, made(own))


async def test_a_worker_archives_and_counts_them(
    live: RedisStateStore, archive: Archive, archiving: Settings
) -> None:
    await live.save_trajectory(TRACE, SESSION, made("one"))
    await records_due(live)
    stats = WorkerStats()
    running = asyncio.create_task(archive_regularly(live, open_archive(archiving), stats=stats))
    await eventually(lambda: stats.record_backlog.value is not None, "it is counted")
    running.cancel()
    await asyncio.wait({running})
    assert stats.archived["trajectories"] == 1
    assert stats.record_backlog.value is not None
    assert stats.record_backlog.value[0] == 1
    assert len(await kept(archive)) == 1


def test_classes_are_checked(archiving: Settings, settings: Settings) -> None:
    classes = {"archive_classes": frozenset({"trajectories"})}
    with pytest.raises(ConfigError, match="archive_classes: needs archive_url"):
        RedisStateStore(settings.model_copy(update=classes))
    short = archiving.model_copy(update={"trajectories_ttl": timedelta(hours=1)})
    with pytest.raises(ConfigError, match="trajectories_ttl: an archive needs 2 hours"):
        open_archive(short)
