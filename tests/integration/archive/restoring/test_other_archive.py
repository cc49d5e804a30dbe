"""An archive that is not the one that has what is marked: not mounted, misspelt, emptied."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("pyarrow", reason="needs the parquet extra")
pytest.importorskip("arq", reason="needs the worker extra")

import psycopg
from pydantic import SecretStr

from redis_state import OtherArchive, RedisStateStore, Settings, TaskClient
from redis_state.archive import identity, open_archive
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.identity import KnownArchive
from redis_state.archive.model import RecordKind
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.postgres.schema import MIGRATIONS
from redis_state.archive.protocol import Archive
from redis_state.archive.retaining import Retainer
from redis_state.archive.waiting import ArchiveList
from redis_state.archive.working import WorkingArchivers
from redis_state.doctor.finding import Verdict
from redis_state.doctor.questions.archive import archive_findings
from redis_state.erasure import Eraser, release_held
from redis_state.errors import ArchiveUnavailable
from redis_state.models import TaskStatus
from redis_state.stores.archive_list import session_entry
from redis_state.testing import eventually
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker.archiving.loop import archive_regularly
from redis_state.worker.observe.stats import WorkerStats
from tests.support.commands import Ran, begin, cli, end
from tests.support.processes.pools import SESSION
from tests.support.servers.postgres import OwnPostgres
from tests.support.tasks.archived.archives import all_due, archive_all, archived, ended, expected
from tests.support.tasks.crash_states import send

pytestmark = pytest.mark.worker
DAY_MS = 86_400_000
NOWHERE = "0123456789abcdef"


@pytest.fixture
def other_url(request: pytest.FixtureRequest, archive_url: str, tmp_path: Path) -> Iterator[str]:
    """Give the URL of an archive of the test's kind that is not there: empty, or not mounted."""
    if archive_url.startswith("file:"):
        yield (tmp_path / "mnt" / "archive").as_uri()
        return
    server: OwnPostgres = request.getfixturevalue("postgres")
    with psycopg.connect(server.url, autocommit=True) as beside:
        beside.execute("DROP DATABASE IF EXISTS other WITH (FORCE)")
        beside.execute("CREATE DATABASE other")
        yield server.url.replace("/postgres?", "/other?")
        beside.execute("DROP DATABASE IF EXISTS other WITH (FORCE)")


@pytest.fixture
async def other(archiving: Settings, other_url: str) -> AsyncIterator[Archive]:
    """Give that archive. It is not prepared."""
    opened = open_archive(archiving.model_copy(update={"archive_url": SecretStr(other_url)}))
    yield opened
    await opened.aclose()


@pytest.fixture
def untouched(other_url: str, tmp_path: Path) -> Callable[[], bool]:
    """Return whether nothing was made at the place of the other archive."""

    def look() -> bool:
        if other_url.startswith("file:"):
            return not any(tmp_path.iterdir())
        with psycopg.connect(other_url) as beside:
            found = beside.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'redis_state'")
            return found.fetchone() is None

    return look


async def waiting(store: RedisStateStore, count: int = 1) -> list[str]:
    """Have tasks end that wait for the archive."""
    tasks = [await ended(store) for _ in range(count)]
    for task in tasks:
        await ArchiveList(store).enlist(SESSION, task)
    return tasks


async def is_marked(store: RedisStateStore, task: str) -> bool:
    return bool(await send(store, "HEXISTS", store.tasks.keys(SESSION, task).task, "archived"))


async def known_id(store: RedisStateStore) -> str | None:
    held = await send(store, "HGET", store.base.keys.archive_known(), "id")
    return None if held is None else held.decode()


async def test_what_waits_is_kept_while_the_archive_is_not_the_one_that_redis_knows(
    live: RedisStateStore,
    archive: Archive,
    other: Archive,
    untouched: Callable[[], bool],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (first,) = await waiting(live)
    await archive_all(live, archive)
    known = await archive.identify()
    assert (await known_id(live), known is None) == (known, False)
    (task,) = await waiting(live)
    await all_due(live)
    archiver = Archiver(live, other)
    for round_no in range(2):
        await all_due(live)
        report = await archiver.run_once()
        assert (report.tasks, report.other) == (0, report.postponed), round_no
        assert report.other
    # Nothing is made at the wrong place: a folder would be hidden once the right one is mounted.
    assert untouched()
    assert not await is_marked(live, task)
    key = live.tasks.keys(SESSION, task).task
    assert int(await send(live, "PTTL", key)) > 100 * DAY_MS
    assert (await ArchiveList(live).backlog()).tasks == 1
    said = [each for each in caplog.records if "Redis knows" in each.message]
    assert [each.levelno for each in said] == [logging.ERROR]
    assert str(known) in said[0].message
    assert "archive run --accept" in said[0].message
    # Back at the right one it continues.
    await archive_all(live, archive)
    assert await archived(archive) == await expected(live, first, task)


async def test_another_archive_is_named_by_its_id(
    live: RedisStateStore, archive: Archive, other: Archive
) -> None:
    await KnownArchive(live, archive).ready()
    await other.prepare()
    with pytest.raises(OtherArchive) as refused:
        await KnownArchive(live, other).ready()
    ids = await archive.identify(), await other.identify()
    assert (refused.value.known, refused.value.found) == ids
    assert all(str(each) in str(refused.value) for each in ids)
    assert len(set(ids)) == 2
    assert isinstance(refused.value, ArchiveUnavailable)


async def test_an_archive_that_changes_behind_a_running_archiver_is_noticed(
    live: RedisStateStore,
    archive: Archive,
    other: Archive,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archiver = Archiver(live, archive)
    await waiting(live)
    await archive_all(live, archive, archiver)
    await KnownArchive(live, other).accept()
    # Within a minute.
    (task,) = await waiting(live)
    monkeypatch.setattr(identity, "_COMPARE_EVERY_S", 0.0)
    await all_due(live)
    assert (await archiver.run_once()).other
    assert not await is_marked(live, task)


async def test_an_archiver_compares_when_it_starts_and_not_when_something_ends(
    live: RedisStateStore,
    archive: Archive,
    other: Archive,
    untouched: Callable[[], bool],
    caplog: pytest.LogCaptureFixture,
) -> None:
    await KnownArchive(live, archive).ready()
    stats = WorkerStats()
    running = asyncio.create_task(archive_regularly(live, other, stats=stats))
    try:
        await eventually(lambda: _said(caplog, "Redis knows"), "it is logged")
        assert not stats.archived["other"]
        (task,) = await waiting(live)
        await all_due(live)
        await eventually(lambda: _counted(stats), "it is counted")
        assert not await is_marked(live, task)
    finally:
        running.cancel()
        await asyncio.wait({running})
    assert untouched()


async def _said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in each.message for each in caplog.records)


async def _counted(stats: WorkerStats) -> bool:
    return stats.archived["other"] > 0


@pytest.mark.role("admin")
async def test_another_archive_is_accepted_by_hand_and_gets_what_redis_still_has(
    live: RedisStateStore, archive: Archive, settings: Settings, other: Archive, other_url: str
) -> None:
    async def run(*arguments: str) -> Ran:
        return await cli(settings, "archive", "run", *arguments, REDIS_STATE_ARCHIVE_URL=other_url)

    (marked,) = await waiting(live)
    await archive_all(live, archive)
    (task,) = await waiting(live)
    for options in ((), ("--again",), ("--backfill",)):
        ran = await run(*options)
        assert (ran.status, str(await archive.identify()) in ran.err) == (5, True), ran
        assert await known_id(live) == await archive.identify()
    assert (await run("--again", "--follow")).status == 2
    ran = await run("--accept", "--json")
    assert (ran.status, ran.document["tasks"]) == (0, 2), ran
    assert await archived(other) == await expected(live, marked, task)
    assert await known_id(live) == await other.identify()
    assert (await run("--accept")).status == 0
    with pytest.raises(OtherArchive):
        await KnownArchive(live, archive).ready()


@pytest.mark.role("admin")
async def test_an_acceptance_beside_other_archivers_says_what_to_run(
    live: RedisStateStore, archive: Archive, settings: Settings, other_url: str
) -> None:
    environment: dict[str, Any] = {"REDIS_STATE_ARCHIVE_URL": other_url}
    accept = ("archive", "run", "--accept")
    await KnownArchive(live, archive).ready()
    ran = await cli(settings, *accept, **environment)
    assert ("no other archivers were seen" in ran.out, "run --again" in ran.out) == (True, False)
    async with WorkingArchivers(live) as signs:
        await signs.sign()
        ran = await cli(settings, *accept, **environment)
        assert "1 other archivers were seen meanwhile" in ran.out
        assert ran.out.endswith("in a minute and a half:\nredis-state archive run --again\n")
        ran = await cli(settings, *accept, "--json", **environment)
        assert ran.document["archivers"] == 1
    assert (await cli(settings, "archive", "run", "--again", **environment)).status == 0


@pytest.mark.role("admin")
async def test_an_archiver_that_accepts_and_stays_gets_what_earlier_ones_marked_meanwhile(
    live: RedisStateStore,
    archive: Archive,
    settings: Settings,
    other: Archive,
    other_url: str,
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, late = asyncio.get_running_loop(), list[str]()
    archiver = Archiver(live, archive)
    (first,) = await waiting(live)
    await archive_all(live, archive, archiver)

    async def ends_late() -> None:
        # Its archiver has compared less than a minute ago.
        late.extend(await waiting(live))
        await archive_all(live, archive, archiver)

    async def meanwhile() -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ends_late(), loop))

    stays: list[str] = []

    async def follow(url: str | None, **_: object) -> None:
        stays.append("until SIGTERM")

    commands = "redis_state.cli.archive"
    monkeypatch.setattr(f"{commands}.archiving.all_compared", meanwhile)
    monkeypatch.setattr(f"{commands}.running.follow_until_ended", follow)
    accept = ("archive", "run", "--accept", "--follow")
    async with WorkingArchivers(live) as signs:
        await signs.sign()
        ran = await cli(settings, *accept, REDIS_STATE_ARCHIVE_URL=other_url)
    assert (ran.status, ran.out.count("refused "), stays) == (0, 2, ["until SIGTERM"]), ran
    assert "all is copied again in 90 s" in ran.out
    assert await is_marked(live, late[0])
    assert await archived(other) == await expected(live, first, *late)
    # Nobody is seen: one may have begun and ended in between.
    ran = await cli(settings, *accept, REDIS_STATE_ARCHIVE_URL=other_url)
    assert "no other archivers were seen" in ran.out
    assert (ran.status, ran.out.count("refused "), len(late), len(stays)) == (0, 2, 2, 2), ran


async def test_archivers_have_compared_again_once_that_was_waited_for(
    live: RedisStateStore, archive: Archive, other: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    with monkeypatch.context() as patch:
        patch.setattr(identity, "asyncio", SimpleNamespace(sleep=sleep))
        await identity.all_compared()
    known, now_s = KnownArchive(live, archive), 1_000.0
    monkeypatch.setattr(identity, "monotonic", lambda: now_s)
    await known.ready()
    await KnownArchive(live, other).accept()
    await known.ready()
    now_s += sum(slept)
    with pytest.raises(OtherArchive):
        await known.ready()


@pytest.mark.role("admin")
async def test_who_dies_before_it_has_listed_all_again_has_accepted_nothing(
    live: RedisStateStore,
    archive: Archive,
    settings: Settings,
    other_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await waiting(live)
    await archive_all(live, archive)

    async def dies(*_: object, **__: object) -> None:
        raise ArchiveUnavailable("read", "as if it was killed")

    monkeypatch.setattr("redis_state.worker.archiving.again.enlist_records", dies)
    ran = await cli(settings, *("archive", "run", "--accept"), REDIS_STATE_ARCHIVE_URL=other_url)
    assert ran.status == 5
    assert await known_id(live) == await archive.identify()


async def test_processes_that_come_together_give_an_archive_one_id(
    settings: Settings, live: RedisStateStore, other: Archive, other_url: str
) -> None:
    environment = {"REDIS_STATE_ARCHIVE_URL": other_url}
    begun = [await begin(settings, "archive", "run", environment=environment) for _ in range(5)]
    ran = await asyncio.gather(*map(end, begun))
    assert [each.status for each in ran] == [0] * 5, ran
    found = await other.identify()
    assert found is not None
    assert await known_id(live) == found


async def test_of_processes_with_an_archive_each_one_archives(
    settings: Settings, tmp_path: Path
) -> None:
    folders = [tmp_path / f"machine-{n}" for n in range(4)]
    begun = [
        await begin(
            settings,
            *("archive", "run"),
            environment={"REDIS_STATE_ARCHIVE_URL": each.as_uri()},
        )
        for each in folders
    ]
    ran = await asyncio.gather(*map(end, begun))
    assert sorted(each.status for each in ran) == [0, 5, 5, 5], ran
    ids = [
        await open_archive(
            settings.model_copy(update={"archive_url": SecretStr(each.as_uri())})
        ).identify()
        for each in folders
    ]
    async with RedisStateStore(settings) as store:
        known = await known_id(store)
    assert [each == known for each in ids] == [not each.status for each in ran]


async def test_of_two_archives_that_are_made_at_once_the_first_that_redis_knows_stays(
    live: RedisStateStore, archive: Archive, other: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = archive.prepare

    async def slow() -> None:
        # Both have seen that Redis knows none.
        await prepare()
        await KnownArchive(live, other).ready()

    monkeypatch.setattr(archive, "prepare", slow)
    with pytest.raises(OtherArchive) as refused:
        await KnownArchive(live, archive).ready()
    ids = await other.identify(), await archive.identify()
    assert (refused.value.known, refused.value.found) == ids
    assert await known_id(live) == ids[0]


async def test_prepare_keeps_the_id_that_is_there(
    archiving: Settings, other_url: str, other: Archive
) -> None:
    given = archiving.model_copy(update={"archive_url": SecretStr(other_url)})
    opened = [open_archive(given) for _ in range(8)]
    assert await other.identify() is None

    async def made(through: Archive) -> str | None:
        await through.prepare()
        return await through.identify()

    found = set(await asyncio.gather(*map(made, opened)))
    assert found == {await made(other)}
    assert None not in found
    for each in opened:
        await each.aclose()


async def test_an_archive_of_the_version_before_gets_an_id_from_an_archiver(
    live: RedisStateStore, archive: Archive, archive_url: str, archiving: Settings
) -> None:
    (task,) = await waiting(live)
    await archive_all(live, archive)
    await forget_identity(archive_url, archiving.namespace)
    assert await archive.identify() is None
    # Redis knows an id, and nothing says that this archive had it.
    with pytest.raises(OtherArchive, match="older"):
        await KnownArchive(live, archive).ready()
    await send(live, "DEL", live.base.keys.archive_known())
    for _ in range(2):
        await KnownArchive(live, archive).ready()
    assert await known_id(live) == await archive.identify() is not None
    assert await archived(archive) == await expected(live, task)
    # The migration may be made again.
    await forget_identity(archive_url, archiving.namespace, rows=True)
    await archive.prepare()
    assert await archive.identify() not in (None, await known_id(live))


async def forget_identity(url: str, namespace: str, *, rows: bool = False) -> None:
    """Have an archive be as the version before made it; with ``rows`` without the id alone."""
    if url.startswith("file:"):
        folder = Path(url.removeprefix("file://")) / f"namespace={namespace}"
        (folder / "archive.json").unlink()
        return
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as beside:
        if rows:
            await beside.execute("DELETE FROM redis_state.identity")
            return
        await beside.execute("DROP TABLE redis_state.identity")
        await beside.execute(
            "DELETE FROM redis_state.migrations WHERE version = %s", [len(MIGRATIONS)]
        )


async def test_redis_that_went_back_takes_the_archive_or_refuses_it(
    live: RedisStateStore, archive: Archive, caplog: pytest.LogCaptureFixture
) -> None:
    key = live.base.keys.archive_known()
    await waiting(live)
    await archive_all(live, archive)
    # To before it had an id.
    await send(live, "DEL", key)
    (task,) = await waiting(live)
    await archive_all(live, archive)
    assert await known_id(live) == await archive.identify()
    assert await is_marked(live, task)
    assert int(await send(live, "PTTL", key)) > 399 * DAY_MS
    # To the time of an earlier archive.
    await send(live, "HSET", key, "id", NOWHERE)
    (task,) = await waiting(live)
    await all_due(live)
    assert (await Archiver(live, archive).run_once()).other
    assert not await is_marked(live, task)
    assert any(NOWHERE in each.message for each in caplog.records)


async def test_the_key_lives_on_from_each_comparison(
    live: RedisStateStore, archive: Archive
) -> None:
    key, known = live.base.keys.archive_known(), KnownArchive(live, archive)
    await known.ready()
    await send(live, "PEXPIRE", key, DAY_MS)
    await known.ready()
    assert int(await send(live, "PTTL", key)) <= DAY_MS
    known.forget()
    await known.ready()
    assert int(await send(live, "PTTL", key)) > 399 * DAY_MS


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
@pytest.mark.role("any", why="it has two namespaces")
async def test_namespaces_of_a_database_have_its_id_and_each_knows_it(
    live: RedisStateStore, archive: Archive, archiving: Settings, archive_url: str
) -> None:
    second = archiving.model_copy(update={"namespace": f"{archiving.namespace}-b"})
    own = PostgresArchive(archive_url, namespace=second.namespace)
    await KnownArchive(live, archive).ready()
    async with RedisStateStore(second) as store:
        assert await known_id(store) is None
        await KnownArchive(store, own).ready()
        assert await known_id(store) == await known_id(live) == await own.identify()
        await send(store, "DEL", store.base.keys.archive_known())
    await own.aclose()


async def test_an_emptied_folder_that_kept_its_id_is_refused(
    settings: Settings, tmp_path: Path
) -> None:
    given = settings.model_copy(update={"archive_url": SecretStr(tmp_path.as_uri())})
    async with RedisStateStore(given) as store:
        archive = open_archive(given)
        await KnownArchive(store, archive).ready()
        folder = tmp_path / f"namespace={given.namespace}"
        shutil.rmtree(folder / "log")
        with pytest.raises(OtherArchive, match="empty"):
            await KnownArchive(store, archive).ready()
        assert not (folder / "log").exists()
        (folder / "archive.json").write_bytes(b'{"no": "id"}')
        await send(store, "DEL", store.base.keys.archive_known())
        with pytest.raises(ArchiveUnavailable, match="has no id"):
            await KnownArchive(store, archive).ready()


async def test_nothing_is_removed_from_another_archive(
    live: RedisStateStore,
    archive: Archive,
    other: Archive,
    other_url: str,
    untouched: Callable[[], bool],
) -> None:
    settings = live.settings
    (task,) = await waiting(live)
    await archive_all(live, archive)
    async with Eraser(live, other) as eraser:
        with pytest.raises(OtherArchive):
            await eraser.forget(SESSION)
    assert await live.tasks.load(SESSION, task) is not None
    assert untouched()
    kept = {"archive_retention": {"tasks": timedelta(days=30)}}
    async with RedisStateStore(settings.model_copy(update=kept)) as store:
        for call in (Retainer(store, other).run_once, Retainer(store, other).count):
            with pytest.raises(OtherArchive):
                await call()
        # That has kept no other process from it.
        assert await Retainer(store, archive).run_once() is not None
    for command in (("drop-missing",), ("retain",)):
        ran = await cli(
            settings,
            *("archive", *command),
            REDIS_STATE_ARCHIVE_URL=other_url,
            REDIS_STATE_ARCHIVE_RETENTION='{"tasks": "P30D"}',
        )
        assert (ran.status, "Redis knows" in ran.err) == (5, True), ran
    assert untouched()


async def test_tasks_are_not_cancelled_for_an_erasure_in_another_archive(
    live: RedisStateStore, archive: Archive, other: Archive, untouched: Callable[[], bool]
) -> None:
    await KnownArchive(live, archive).ready()
    async with TaskClient(live) as client:
        await client.submit("h", session_id=SESSION, task_id="t")
        for leave_unset in (False, True):
            with pytest.raises(OtherArchive):
                await client.forget(SESSION, archive=other, leave_unset=leave_unset)
        state = await client.get(SESSION, "t")
        assert state is not None
        assert state.status is TaskStatus.PENDING
    assert untouched()


READING: list[tuple[str, ...]] = [
    ("status",),
    ("tasks",),
    ("show", SESSION, "task"),
    ("events", "trace"),
    ("artifacts", SESSION),
    ("retain", "--dry-run"),
]


async def test_reading_makes_no_archive(
    settings: Settings, other_url: str, archiving: Settings, untouched: Callable[[], bool]
) -> None:
    for command in READING:
        ran = await cli(
            settings,
            *("archive", *command),
            REDIS_STATE_ARCHIVE_URL=other_url,
            REDIS_STATE_ARCHIVE_RETENTION='{"tasks": "P30D"}',
        )
        assert (ran.status, "no worker has prepared it yet" in ran.err) == (5, True), ran
    given = archiving.model_copy(update={"archive_url": SecretStr(other_url)})
    async with RedisStateStore(given) as store:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.archive.session(SESSION),
            lambda: store.archive.task(SESSION, "task"),
            lambda: store.archive.tasks(SESSION),
            lambda: store.archive.updates(SESSION),
            lambda: store.archive.trajectory("trace", SESSION),
            lambda: store.archive.events("trace"),
            lambda: store.archive.records(RecordKind.EVENT, "trace"),
            store.archive.find,
        ]
        for call in calls:
            with pytest.raises(ArchiveUnavailable, match="no worker has prepared it yet"):
                await call()
    assert untouched()


async def test_status_says_that_redis_knows_another_one(
    live: RedisStateStore, archive: Archive, settings: Settings, archive_url: str
) -> None:
    async def status(*options: str) -> Ran:
        return await cli(
            settings, "archive", "status", *options, REDIS_STATE_ARCHIVE_URL=archive_url
        )

    own = await archive.identify()
    ran = await status("--json")
    assert (ran.status, ran.document["id"], ran.document["known_id"]) == (0, own, None)
    await send(live, "HSET", live.base.keys.archive_known(), "id", NOWHERE)
    await send(live, "PEXPIRE", live.base.keys.archive_known(), DAY_MS)
    ran = await status("--json")
    assert (ran.status, ran.document["known_id"]) == (1, NOWHERE)
    assert "Redis knows another archive" in (await status()).out


async def test_status_shows_a_place_where_nothing_is(
    live: RedisStateStore,
    archive: Archive,
    settings: Settings,
    other_url: str,
    untouched: Callable[[], bool],
) -> None:
    await KnownArchive(live, archive).ready()
    await waiting(live)
    ran = await cli(settings, "archive", "status", "--json", REDIS_STATE_ARCHIVE_URL=other_url)
    found = {name: ran.document[name] for name in ("id", "known_id", "tasks", "waiting")}
    known = await archive.identify()
    assert (ran.status, found) == (1, {"id": None, "known_id": known, "tasks": 0, "waiting": 1})
    ran = await cli(settings, "archive", "status", REDIS_STATE_ARCHIVE_URL=other_url)
    assert (ran.status, "Redis knows another archive" in ran.out) == (1, True)
    assert untouched()


async def doctor(settings: Settings) -> list[tuple[Verdict, str, str]]:
    async with RedisStateStore(settings) as store:
        return [(each.state, each.says, each.server) async for each in archive_findings(store)]


async def test_the_doctor_asks_the_archive(
    live: RedisStateStore,
    settings: Settings,
    other: Archive,
    other_url: str,
    untouched: Callable[[], bool],
) -> None:
    assert await doctor(settings) == []
    given = live.settings.model_copy(update={"archive_url": SecretStr(other_url)})
    ((state, says, place),) = await doctor(given)
    assert (state, "there is none" in says) == (Verdict.FINDING, True)
    assert (place.endswith(("/other", "/mnt/archive")), "?" in place) == (True, False)
    await send(live, "HSET", live.base.keys.archive_known(), "id", NOWHERE)
    await send(live, "PEXPIRE", live.base.keys.archive_known(), DAY_MS)
    ((state, says, _),) = await doctor(given)
    assert (state, says) == (Verdict.FINDING, f"it has no id, and Redis knows {NOWHERE}")
    assert untouched()
    await KnownArchive(live, other).accept()
    ((state, says, _),) = await doctor(given)
    assert (state, says) == (Verdict.SOUND, f"reached, its id is {await other.identify()}")
    # An hour behind, by the time that stands beside the entry.
    await waiting(live)
    ((key, ((entry, at),)),) = await since_of(live)
    await send(live, "ZADD", key, int(float(at)) - 2 * 3_600_000_000, entry)
    late, sound = await doctor(given)
    assert (late[0], "1 tasks" in late[1], sound[0]) == (Verdict.FINDING, True, Verdict.SOUND)
    # So are updates that could not be archived.
    await send(live, "DEL", key)
    behind = live.base.keys.archive_sessions_since(0)
    seconds, _ = await send(live, "TIME")
    since_ms = (int(seconds) - 3 * 3_600) * 1_000
    await send(live, "ZADD", behind, since_ms, session_entry(SESSION))
    await send(live, "PEXPIRE", behind, DAY_MS)
    late, sound = await doctor(given)
    assert ("of 1 sessions" in late[1], sound[0]) == (True, Verdict.SOUND)
    await send(live, "DEL", behind)
    nowhere = SecretStr("postgresql://u:s3cret@127.0.0.1:1/db")
    *_, (state, says, place) = await doctor(given.model_copy(update={"archive_url": nowhere}))
    assert (state, "cannot" in says, "s3cret" in says + place) == (Verdict.FINDING, True, False)
    wrong = SecretStr("mysql://u:s3cret@h/db")
    ((state, says, place),) = await doctor(given.model_copy(update={"archive_url": wrong}))
    assert (state, "s3cret" in says + place) == (Verdict.FINDING, False)


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_the_doctor_does_not_know_an_archive_whose_id_it_may_not_read(
    live: RedisStateStore, archive: Archive, postgres: OwnPostgres
) -> None:
    await KnownArchive(live, archive).ready()
    narrow = SecretStr(postgres.url.replace("//postgres@", "//reads_tasks@"))
    given = live.settings.model_copy(update={"archive_url": narrow})
    with psycopg.connect(postgres.url, autocommit=True) as beside:
        beside.execute("CREATE ROLE reads_tasks LOGIN")
        beside.execute("GRANT USAGE ON SCHEMA redis_state TO reads_tasks")
        try:
            ((state, says, _),) = await doctor(given)
            assert (state, "InsufficientPrivilege" in says) == (Verdict.UNKNOWN, True)
            beside.execute("GRANT SELECT ON redis_state.identity TO reads_tasks")
            assert [each[0] for each in await doctor(given)] == [Verdict.SOUND]
        finally:
            beside.execute("DROP OWNED BY reads_tasks")
            beside.execute("DROP ROLE reads_tasks")


async def since_of(store: RedisStateStore) -> list[tuple[str, list[tuple[bytes, bytes]]]]:
    """Return since when tasks wait, of each shard that has some."""
    found: list[tuple[str, list[tuple[bytes, bytes]]]] = []
    for shard in range(WATCH_SHARDS):
        key = store.base.keys.archive_since(shard)
        flat = await send(store, "ZRANGE", key, 0, -1, "WITHSCORES")
        if flat:
            found.append((key, list(zip(flat[::2], flat[1::2], strict=True))))
    return found


@pytest.mark.role("any", why="it reads the names of all keys")
async def test_a_namespace_whose_archive_was_taken_away_takes_another_one(
    live: RedisStateStore, settings: Settings, archive: Archive, other: Archive
) -> None:
    await KnownArchive(live, archive).ready()
    async with RedisStateStore(settings) as plain:
        await release_held(plain)
        assert await known_id(plain) == await archive.identify()
        await release_held(plain, dry_run=False)
        assert await known_id(plain) is None
    await KnownArchive(live, other).ready()
    assert await known_id(live) == await other.identify()
