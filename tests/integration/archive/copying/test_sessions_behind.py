"""A session whose updates could not be archived is counted as behind, since the first failure."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import count

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive import open_archive
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.copying.pace import Pace
from redis_state.archive.protocol import Archive
from redis_state.archive.waiting import ArchiveList
from redis_state.doctor.questions.archive import archive_findings
from redis_state.erasure import Eraser, release_held
from redis_state.testing import eventually
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker.archiving import loop as archiving_loop
from redis_state.worker.archiving.loop import archive_regularly
from redis_state.worker.observe.stats import WorkerStats
from tests.support.processes.pools import SESSION
from tests.support.servers.sets.nodes import ask_each
from tests.support.tasks.archived.archives import all_due, tell
from tests.support.tasks.crash_states import send

pytestmark = [
    pytest.mark.worker,
    # The lists are the same for every archive.
    pytest.mark.parametrize("archive_url", ["parquet"], indirect=True),
]
DAY_MS = 86_400_000


async def listed(live: RedisStateStore) -> ArchiveList:
    """Have a session with updates and no task be due."""
    await tell(live, 3)
    waiting = ArchiveList(live)
    await waiting.watch_session(SESSION, within_ms=0)
    return waiting


async def earlier(live: RedisStateStore, by_ms: int) -> None:
    """Have what is behind be so for longer."""
    for shard in range(WATCH_SHARDS):
        key = live.base.keys.archive_sessions_since(shard)
        for entry in await send(live, "ZRANGE", key, 0, -1):
            await send(live, "ZINCRBY", key, -by_ms, entry)


async def behind_since(live: RedisStateStore) -> int:
    """Count the sessions of which it is recorded since when they are behind."""
    keys = live.base.keys
    counts = [
        await send(live, "ZCARD", keys.archive_sessions_since(n)) for n in range(WATCH_SHARDS)
    ]
    return sum(counts)


async def test_a_session_is_behind_from_its_first_failure_until_it_is_copied(
    live: RedisStateStore, archive: Archive, away: Archive
) -> None:
    waiting, archiver = await listed(live), Archiver(live, away)
    assert (await archiver.run_once()).postponed == 1
    await earlier(live, 7_200_000)
    # The second failure postpones it again, and moves no time.
    await all_due(live)
    assert (await archiver.run_once()).postponed == 1
    backlog = await waiting.backlog()
    assert (backlog.tasks, backlog.oldest_s, backlog.sessions) == (0, 0, 1)
    assert 7_200 <= backlog.behind_s < 7_300
    assert backlog.age_s == backlog.behind_s
    await all_due(live)
    assert (await Archiver(live, archive).run_once()).updates == 3
    backlog = await waiting.backlog()
    assert (backlog.sessions, backlog.age_s, await behind_since(live)) == (0, 0, 0)


async def test_a_session_that_nothing_looks_at_is_behind(live: RedisStateStore) -> None:
    waiting = await listed(live)
    assert (await waiting.backlog()).sessions == 0
    await all_due(live)
    backlog = await waiting.backlog()
    assert (backlog.sessions, backlog.behind_s > 60) == (1, True)


async def damaged(live: RedisStateStore, archive: Archive) -> ArchiveList:
    """Have a session be behind whose updates cannot be read."""
    waiting, rows = await listed(live), live.updates.keys(SESSION).rows
    await send(live, "DEL", rows)
    await send(live, "SET", rows, "no stream", "PX", 60_000)
    assert (await Archiver(live, archive).run_once()).refused == 1
    return waiting


async def test_a_session_that_cannot_be_read_is_behind(
    live: RedisStateStore, archive: Archive
) -> None:
    waiting = await damaged(live, archive)
    await earlier(live, 3_600_000)
    backlog = await waiting.backlog()
    assert (backlog.sessions, backlog.behind_s >= 3_600) == (1, True)


@pytest.mark.role("any", why="it reads the names of all keys")
@pytest.mark.parametrize("how", ["erased", "released", "expired"])
async def test_a_session_that_is_let_go_of_is_not_behind_any_more(
    live: RedisStateStore, archive: Archive, away: Archive, how: str
) -> None:
    await listed(live)
    assert (await Archiver(live, away).run_once()).postponed == 1
    assert await behind_since(live) == 1
    if how == "erased":
        async with Eraser(live, archive) as eraser:
            await eraser.forget(SESSION)
    elif how == "released":
        await release_held(live, dry_run=False, force=True)
    else:
        keys = live.updates.keys(SESSION)
        await send(live, "DEL", keys.rows, keys.ids)
        for _ in range(2):
            await all_due(live)
            await Archiver(live, archive).run_once()
    assert await behind_since(live) == 0


async def test_what_is_behind_is_measured_and_a_line_of_the_log_says_it(
    archiving: Settings, archive: Archive, away: Archive, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("prometheus_client", reason="needs the prometheus extra")
    from redis_state.worker.observe.metrics import ArchiveMetrics  # noqa: PLC0415 - as above

    settings = archiving.model_copy(update={"archive_share": 0.0})
    async with RedisStateStore(settings) as live:
        await listed(live)
        assert (await Archiver(live, away).run_once()).postponed == 1
        # More than a quarter of each lifetime.
        await earlier(live, 4 * DAY_MS)
        stats = WorkerStats()
        with caplog.at_level(logging.WARNING, logger="redis_state.worker.archiving.loop"):
            running = asyncio.create_task(
                archive_regularly(live, open_archive(settings), stats=stats)
            )
            await eventually(lambda: len(caplog.messages) > 1, "it is said")
        running.cancel()
        await asyncio.wait({running})
    assert caplog.messages[-1].startswith("updates of 1 sessions wait to be archived for 3456")
    families = {each.name: each for each in ArchiveMetrics("w", stats).collect()}
    measured = {
        name: families[f"redis_state_archive_{name}"].samples[0].value
        for name in ("backlog", "sessions_behind", "backlog_age_seconds")
    }
    age_s = measured.pop("backlog_age_seconds")
    assert measured == {"backlog": 0, "sessions_behind": 1}
    assert age_s >= 4 * DAY_MS / 1000


async def test_a_session_that_is_behind_for_ever_takes_no_rest_away(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, tasks, hurried = await damaged(live, archive), 3 * 8 * WATCH_SHARDS, list[int]()
    await earlier(live, 4 * DAY_MS)
    await asyncio.gather(*(waiting.enlist(SESSION, f"gone-{n}") for n in range(tasks)))

    class Watched(Pace):
        def hurry(self) -> None:
            hurried.append(1)
            super().hurry()

    async def sleep(_: float) -> None:
        await asyncio.sleep(0)

    paced = partial(Watched, clock=count(0, 2).__next__, sleep=sleep)
    monkeypatch.setattr(archiving_loop, "Pace", paced)
    stats = WorkerStats()
    running = asyncio.create_task(
        archive_regularly(live, open_archive(live.settings), stats=stats, share=0.5)
    )
    await eventually(lambda: stats.archived["looked"] >= tasks, "all are looked at")
    running.cancel()
    await asyncio.wait({running})
    assert (stats.sessions_behind.value, hurried) == (1, [])


async def test_what_an_archiver_of_an_earlier_version_has_copied_is_not_behind(
    live: RedisStateStore, archive: Archive, away: Archive
) -> None:
    waiting = await listed(live)
    assert (await Archiver(live, away).run_once()).postponed == 1
    # It takes off the list alone what it has archived.
    for shard in range(WATCH_SHARDS):
        await send(live, "DEL", live.base.keys.archive_sessions(shard))
    assert (await waiting.backlog()).sessions == 1
    stats = WorkerStats()
    running = asyncio.create_task(
        archive_regularly(live, open_archive(live.settings), stats=stats, share=0.0)
    )
    await eventually(lambda: stats.archive_backlog.value is not None, "it is counted")
    running.cancel()
    await asyncio.wait({running})
    assert (stats.sessions_behind.value, stats.archive_backlog.value, await behind_since(live)) == (
        0,
        (0, 0),
        0,
    )


@pytest.mark.role("any", why="it makes users")
async def test_a_user_that_an_earlier_version_has_made_counts(
    live: RedisStateStore, archive: Archive
) -> None:
    await archive.prepare()
    await listed(live)
    await all_due(live)
    user = f"earlier-{live.settings.namespace}"
    rights = ("on", ">secret", "~*", "&*", "+@all", "-zcount")
    await ask_each(live.transport, "ACL", "SETUSER", user, *rights)
    scheme, _, place = live.settings.url.get_secret_value().partition("://")
    url = SecretStr(f"{scheme}://{user}:secret@{place}")
    try:
        async with RedisStateStore(live.settings.model_copy(update={"url": url})) as narrow:
            assert (await ArchiveList(narrow).backlog()).sessions == 1
            found = [each.says async for each in archive_findings(narrow)]
    finally:
        await ask_each(live.transport, "ACL", "DELUSER", user)
    late, sound = found
    assert ("updates of 1 sessions wait" in late, "reached" in sound) == (True, True)
