"""What is held for an archive that is no more is let go of."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("pyarrow", reason="needs the parquet extra")


from redis_state import ArchiveInUse, RedisStateStore, Settings
from redis_state.archive import open_archive
from redis_state.archive.waiting import ArchiveList
from redis_state.archive.working import WorkingArchivers
from redis_state.erasure import release_held
from redis_state.scripts import TaskKeys
from redis_state.stores.archive_list import RecordList
from redis_state.stores.base import ARCHIVE_HOLD_MS
from redis_state.stores.traces.trajectories import trajectory_entry
from redis_state.testing import eventually
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.transport.sending.calls import CallSender
from redis_state.worker.archiving.loop import archive_regularly
from tests.support.commands import cli
from tests.support.processes.pools import SESSION
from tests.support.scripts.replies import clock_ms
from tests.support.tasks.archived.archives import ended
from tests.support.tasks.archived.saved_tasks import save_to_end
from tests.support.tasks.crash_states import send

pytestmark = [
    pytest.mark.worker,
    pytest.mark.role("any", why="it reads the names of all keys"),
]

HOUR = 3_600_000
LONG = "s" * 130


@pytest.fixture
def archive_url(tmp_path: Path) -> str:
    """Give the URL of an archive that nobody makes."""
    return (tmp_path / "archive").as_uri()


@pytest.fixture
async def plain(settings: Settings) -> AsyncIterator[RedisStateStore]:
    """Give a store of the namespace from which `archive_url` was taken away."""
    async with RedisStateStore(settings) as opened:
        yield opened


async def lives(store: RedisStateStore, *keys: str) -> list[int]:
    return [int(await send(store, "PTTL", key)) for key in keys]


async def is_held(store: RedisStateStore, *keys: str) -> list[bool]:
    return [left > ARCHIVE_HOLD_MS // 2 for left in await lives(store, *keys)]


async def hold_task(store: RedisStateStore, session: str, task: str) -> TaskKeys:
    """Make a task that has ended, and hold it."""
    keys = store.tasks.keys(session, task)
    await send(store, "HSET", keys.task, "status", "FAILED", "version", "1", "write", "w")
    await send(store, "HSET", keys.journal, "step:a#1", "1")
    await send(store, "ZADD", keys.tasks, "1", task)
    for key in (keys.task, keys.journal, keys.tasks):
        await send(store, "PEXPIRE", key, HOUR)
    await store.base.scripts.read_ended(
        keys, least_ms=2 * HOUR, hold_ms=ARCHIVE_HOLD_MS, whole=False
    )
    return keys


async def hold_records(store: RedisStateStore) -> list[str]:
    """Hold a record of each class; return what is held then."""
    keys, scripts = store.base.keys, store.base.scripts
    artifacts = keys.artifacts("place")
    for record, index, member in (
        (keys.trajectory(SESSION, "trace"), keys.traces(SESSION), "trace"),
        (keys.trajectory(LONG, LONG), keys.traces(LONG), LONG),
        (keys.agent_session(SESSION), None, None),
        (artifacts.reference("a"), artifacts.references, "a"),
    ):
        await scripts.put_record(
            record, {"document": b"{}"}, write="w", ttl_ms=HOUR, index=index, member=member
        )
        await scripts.hold_record(
            record,
            index=index,
            member=member,
            least_ms=2 * HOUR,
            hold_ms=ARCHIVE_HOLD_MS,
            whole=False,
        )
    return [
        keys.trajectory(SESSION, "trace"),
        keys.traces(SESSION),
        keys.trajectory(LONG, LONG),
        keys.traces(LONG),
        keys.agent_session(SESSION),
        artifacts.reference("a"),
        artifacts.references,
    ]


async def listed_until(store: RedisStateStore) -> int:
    """Return until when the index lists the last of the tasks that it lists, in ms."""
    until = 0
    for shard in range(WATCH_SHARDS):
        key = store.base.keys.task_index(shard).expiry
        for score in (await send(store, "ZRANGE", key, -1, -1, "WITHSCORES"))[1::2]:
            until = max(until, int(float(score)))
    return until


async def test_all_that_is_held_is_let_go_of_and_a_dry_run_changes_nothing(
    live: RedisStateStore, plain: RedisStateStore
) -> None:
    task, log = live.tasks.keys(SESSION, await ended(live)), live.updates.keys(SESSION)
    late, long = await hold_task(live, "late", "t"), await hold_task(live, LONG, LONG)
    held = str(int(await send(live, "PEXPIRETIME", late.task)))
    await send(live, "HSET", late.task, "archive_hold", f"1 {held}")
    names = [*task[1:3], task.journal, log.rows, log.ids, late.task, late.journal]
    names += [long.task, long.journal, long.tasks, *await hold_records(live)]
    names.remove(task.journal)
    assert all(await is_held(live, *names))
    entry = trajectory_entry(SESSION, "trace")

    async def nothing() -> None:
        return None

    await RecordList(live.base).covering(entry, nothing)
    await ArchiveList(live).enlist(SESSION, "gone")
    await ArchiveList(live).watch_session(SESSION, within_ms=HOUR)
    expected = {
        "tasks": 3,
        "updates": 1,
        "trajectories": 2,
        "agent_sessions": 1,
        "artifacts": 1,
    }
    counted = await release_held(plain)
    assert (counted.dry_run, dict(counted.released), counted.unlisted) == (True, expected, 3)
    assert dict(counted.overdue) == {"tasks": 1}
    assert all(await is_held(live, *names))
    done = await release_held(plain, dry_run=False)
    assert (dict(done.released), dict(done.overdue)) == (expected, {"tasks": 1})
    assert (done.unlisted, done.failed, done.in_use) == (3, 0, [])
    assert not any(await is_held(live, *names))
    assert 0 < (await lives(live, late.task))[0] <= 60_000
    assert (await lives(live, long.tasks))[0] <= HOUR
    record = int(await send(live, "PEXPIRETIME", task.task))
    assert abs(await listed_until(live) - record) < HOUR
    assert (await release_held(plain, dry_run=False)).is_empty
    assert (await ArchiveList(live).backlog()).tasks == 0


async def test_what_a_host_has_saved_is_let_go_of(
    live: RedisStateStore, plain: RedisStateStore
) -> None:
    # The name of a key with a long id is a digest: its index has the id.
    tasks = [await save_to_end(live, "a"), await save_to_end(live, LONG)]
    log = live.updates.keys(SESSION)
    names = [*(live.tasks.keys(SESSION, each).task for each in tasks), log.rows, log.ids]
    assert all(await is_held(live, *names))
    expected = {"tasks": len(tasks), "updates": 1}
    # Each task's entry, and its session's.
    entries = len(tasks) + 1
    counted = await release_held(plain)
    assert (dict(counted.released), counted.unlisted) == (expected, entries)
    done = await release_held(plain, dry_run=False)
    assert (dict(done.released), done.unlisted, done.failed) == (expected, entries, 0)
    assert not any(await is_held(live, *names))
    assert min(await lives(live, *names)) > HOUR
    assert await listed_until(live) == 0
    assert (await release_held(plain, dry_run=False)).is_empty
    assert (await ArchiveList(live).backlog()).oldest_s == 0
    for each in tasks:
        assert await plain.tasks.load(SESSION, each) is not None
    # A later save is held no more.
    await save_to_end(plain, "a")
    assert not any(await is_held(live, *names))


async def test_what_was_held_alone_is_let_go_of(
    live: RedisStateStore, plain: RedisStateStore
) -> None:
    await ended(live)
    log, alone = live.updates.keys(SESSION), await hold_task(live, "alone", "t")
    saved = await hold_task(live, "saved", "t")
    await send(live, "DEL", log.rows)
    await send(live, "DEL", alone.task)
    await send(live, "PEXPIRE", saved.task, 2 * HOUR)
    names = [log.ids, alone.journal, saved.journal]
    assert all(await is_held(live, *names))
    counted = await release_held(plain)
    done = await release_held(plain, dry_run=False)
    assert counted.released == done.released == {"tasks": 1, "updates": 1, "journals": 2}
    assert not any(await is_held(live, *names))
    assert 2 * HOUR >= (await lives(live, saved.task))[0] > HOUR


async def test_nothing_is_let_go_of_while_something_archives(
    live: RedisStateStore, plain: RedisStateStore
) -> None:
    keys = live.tasks.keys(SESSION, await ended(live))
    with pytest.raises(ArchiveInUse, match="archive_url is set here"):
        await release_held(live, dry_run=False)
    async with WorkingArchivers(live) as signs:
        await signs.sign()
        with pytest.raises(ArchiveInUse) as refused:
            await release_held(plain, dry_run=False)
        assert refused.value.reasons == [f"{(await signs.names())[0]} archives"]
        counted = await release_held(plain)
        assert (counted.released["tasks"], len(counted.in_use)) == (1, 1)
    assert await is_held(live, keys.task) == [True]
    assert (await release_held(plain)).in_use == []
    async with WorkingArchivers(live) as signs:
        await signs.sign()
        assert (await release_held(plain, dry_run=False, force=True)).released["tasks"] == 1


WRITES = {"release_record", "release_log", "index_task", "run_once"}


class Died(Exception):
    """The release ends here, as if its process was killed."""


@pytest.mark.parametrize("edge", ["before", "after"])
async def test_a_release_that_dies_at_each_write_is_finished_by_the_next(
    live: RedisStateStore,
    plain: RedisStateStore,
    monkeypatch: pytest.MonkeyPatch,
    edge: str,
) -> None:
    run = CallSender.run
    seen: Counter[str] = Counter()
    died = True
    at = 0
    while died:
        at, died, left = at + 1, False, at + 1
        task = live.tasks.keys(SESSION, await ended(live))
        await ArchiveList(live).enlist(SESSION, task.task_id)
        await ArchiveList(live).watch_session(SESSION, within_ms=HOUR)
        names = [task.task, live.updates.keys(SESSION).ids, *await hold_records(live)]

        def dying(sender: CallSender, what: Any, *more: Any, **options: Any) -> Any:
            nonlocal left, died
            name = what.script.name
            left -= name in WRITES
            if left or died or name not in WRITES:
                return run(sender, what, *more, **options)
            died = True
            seen[name] += 1
            if edge == "after":
                run(sender, what, *more, **options)
            raise Died

        monkeypatch.setattr(CallSender, "run", dying)
        try:
            await release_held(plain, dry_run=False)
        except Died:
            pass
        finally:
            monkeypatch.setattr(CallSender, "run", run)
        await release_held(plain, dry_run=False)
        assert not any(await is_held(live, *names))
        assert (await release_held(plain)).is_empty
        assert await listed_until(live) < await clock_ms(live.base.scripts) + ARCHIVE_HOLD_MS // 2
        # Else each turn has more to write than the one before.
        await live.tasks.clear(SESSION, task.task_id)
    assert seen.keys() == WRITES


async def test_an_archiver_says_that_it_works_and_that_it_does_no_more(
    live: RedisStateStore,
) -> None:
    signs = WorkingArchivers(live)

    async def count(number: int) -> bool:
        return len(await signs.names()) == number

    for share, number in ((1.0, 1), (0.0, 0)):
        archiver = asyncio.create_task(
            archive_regularly(live, open_archive(live.settings), share=share)
        )
        await asyncio.sleep(0)
        await eventually(partial(count, number), "it gives a sign")
        archiver.cancel()
        await asyncio.wait({archiver})
        assert await count(0)


async def test_the_command_lets_go_only_if_it_is_asked_to(
    live: RedisStateStore, settings: Settings, archive_url: str
) -> None:
    key = live.tasks.keys(SESSION, await ended(live)).task
    ran = await cli(settings, "archive", "release")
    assert "repeat with --yes" in ran.out
    document = (await cli(settings, "archive", "release", "--yes", "--dry-run", "--json")).document
    assert (document["dry_run"], document["released"]) == (True, {"tasks": 1, "updates": 1})
    refused = await cli(
        settings, "archive", "release", "--yes", REDIS_STATE_ARCHIVE_URL=archive_url
    )
    assert (refused.status, "archive_url is set" in refused.err) == (4, True)
    assert await is_held(live, key) == [True]
    ran = await cli(settings, "archive", "release", "--yes", "--json")
    assert (ran.status, ran.document["released"]) == (0, {"tasks": 1, "updates": 1})
    assert await is_held(live, key) == [False]
    assert "nothing is held" in (await cli(settings, "archive", "release", "--yes")).out
