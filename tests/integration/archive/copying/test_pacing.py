"""An archiver leaves its process to others: between pieces of a round, and to a process apart."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.archive import open_archive
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.copying.pace import Pace
from redis_state.archive.copying.records import RecordArchiver
from redis_state.archive.protocol import Archive
from redis_state.archive.retaining import Retainer
from redis_state.archive.waiting import ArchiveList
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.scripts.runner import ScriptRunner
from redis_state.testing import eventually
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker.archiving import loop as archiving_loop
from redis_state.worker.archiving.loop import archive_regularly
from redis_state.worker.observe.stats import Counted, WorkerStats
from tests.support.commands import begin, end
from tests.support.processes.pools import SESSION
from tests.support.servers.ports import free_port
from tests.support.tasks.archived.archives import all_due, archive_all, archived, ended, expected
from tests.support.tasks.crash_states import send

pytestmark = pytest.mark.worker

_TASKS = 40


async def waits_for_an_hour(
    live: RedisStateStore, late: Callable[[int], str], *, due_ms: int
) -> None:
    """Have what is listed wait for an hour, and what is on one list be due so much later."""
    for shard in range(WATCH_SHARDS):
        moved = {live.base.keys.archive_since(shard): -3_600_000_000, late(shard): due_ms}
        for key, by in moved.items():
            for entry in await send(live, "ZRANGE", key, 0, -1):
                await send(live, "ZINCRBY", key, by, entry)


async def test_a_round_rests_after_few_commands(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = await asyncio.gather(*(ended(live) for _ in range(_TASKS)))
    listed = ArchiveList(live)
    await asyncio.gather(*(listed.enlist(SESSION, task) for task in tasks))
    await all_due(live)
    sent = [0]
    name = "_run_prepared"
    run: Callable[..., Any] = getattr(ScriptRunner, name)

    async def counted(*args: Any, **options: Any) -> Any:
        sent[-1] += 1
        return await run(*args, **options)

    async def sleep(seconds: float) -> None:
        sent.append(0)
        await asyncio.sleep(seconds)

    monkeypatch.setattr(ScriptRunner, name, counted)
    archiver = Archiver(live, archive, pace=Pace(1.0, sleep=sleep))
    await archiver.run_once()
    # The claims are one command for each shard of two lists, as is settling them. One asks which
    # archive Redis knows.
    assert 0 < max(sent[1:-1]) <= 2 * 16
    assert sent[0] <= 2 * WATCH_SHARDS + 1
    assert sum(sent[1:-1]) >= 2 * _TASKS
    await archive_all(live, archive, archiver)
    assert await archived(archive) == await expected(live, *tasks)


@pytest.mark.parametrize("archive_url", ["parquet"], indirect=True)
async def test_files_are_written_and_verified_in_other_threads(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redis_state.archive.parquet import archive as files  # noqa: PLC0415 - needs the extra
    from redis_state.archive.parquet.files.writing import FileWriting  # noqa: PLC0415 - as above

    task = await ended(live)
    await ArchiveList(live).enlist(SESSION, task)
    where: dict[str, set[int]] = {}

    def noting(module: Any, name: str) -> None:
        work: Any = getattr(module, name)

        def recorded(*args: Any, **options: Any) -> Any:
            where.setdefault(name, set()).add(threading.get_ident())
            return work(*args, **options)

        monkeypatch.setattr(module, name, recorded)

    noting(files, "changes_of")
    noting(FileWriting, "write")
    await archive_all(live, archive)
    assert set(where) == {"changes_of", "write"}
    assert threading.get_ident() not in set[int]().union(*where.values())


@pytest.mark.parametrize("aside", [False, True], ids=["due", "set-aside"])
@pytest.mark.parametrize("what", ["task", "session"])
async def test_a_worker_without_a_share_only_counts_and_says_what_may_expire(
    archiving: Settings,
    archive: Archive,
    caplog: pytest.LogCaptureFixture,
    what: str,
    aside: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    settings = archiving.model_copy(
        update={"archive_share": 0.0, "finished_task_ttl": timedelta(hours=2)}
    )
    async with RedisStateStore(settings) as live:
        task, keys = await ended(live), live.base.keys
        listed = ArchiveList(live)
        await listed.enlist(SESSION, task)
        await listed.watch_session(SESSION, within_ms=0)
        late = keys.archive_watch if what == "task" else keys.archive_sessions
        await waits_for_an_hour(live, late, due_ms=3_600_000 if aside else -3_600_000)
        stats = WorkerStats()
        with caplog.at_level(logging.WARNING, logger="redis_state.worker.archiving.loop"):
            running = asyncio.create_task(
                archive_regularly(live, open_archive(settings), stats=stats)
            )
            await eventually(lambda: stats.archive_backlog.value is not None, "it is counted")
            if not aside:
                await eventually(lambda: bool(caplog.messages), "it is said")
        running.cancel()
        await asyncio.wait({running})
        assert stats.archive_backlog.value is not None
        waiting, oldest_s = stats.archive_backlog.value
        assert (waiting, oldest_s >= 3_600) == (1, True)
        pytest.importorskip("prometheus_client", reason="needs the prometheus extra")
        from redis_state.worker.observe.metrics import ArchiveMetrics  # noqa: PLC0415 - as above

        families = {each.name: each for each in ArchiveMetrics("w", stats).collect()}
        for name, value in (("backlog", waiting), ("backlog_age_seconds", oldest_s)):
            (sample,) = families[f"redis_state_archive_{name}"].samples
            assert (sample.labels, sample.value) == ({"worker": "w"}, value)
        said = [
            "may expire after 7200 s: this worker archives nothing" in m for m in caplog.messages
        ]
        assert said == [True] * (not aside)
        assert not stats.archived
        assert await archived(archive) == {}


@pytest.mark.parametrize("archive_url", ["parquet"], indirect=True)
async def test_what_is_late_waits_for_no_rest_of_an_earlier_round(
    live: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, tasks = ArchiveList(live), 3 * 8 * WATCH_SHARDS
    await asyncio.gather(*(listed.enlist(SESSION, f"gone-{n}") for n in range(tasks)))
    for shard in range(WATCH_SHARDS):
        key = live.base.keys.archive_watch(shard)
        for entry in await send(live, "ZRANGE", key, 0, -1):
            # Three days are more than a quarter of each lifetime.
            await send(live, "ZINCRBY", key, -3 * 86_400_000, entry)
    rests: list[float] = []

    async def sleep(seconds: float) -> None:
        rests.append(seconds)
        await asyncio.sleep(0)

    # Each piece takes the two seconds that count at most.
    monkeypatch.setattr(
        archiving_loop, "Pace", partial(Pace, clock=count(0, 2).__next__, sleep=sleep)
    )
    stats = WorkerStats()
    archive = open_archive(live.settings)
    running = asyncio.create_task(archive_regularly(live, archive, stats=stats, share=0.01))
    await eventually(lambda: stats.archived["looked"] >= tasks, "all are looked at")
    running.cancel()
    await asyncio.wait({running})
    assert 0 < max(rests) <= 30


@pytest.mark.parametrize("archive_url", ["parquet"], indirect=True)
async def test_a_long_round_of_retention_keeps_nothing_back(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ends = list[str](), list[str]()

    async def long(_: object) -> None:
        begun.append("round")
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("round")

    own = open_archive(live.settings)
    close = own.aclose

    async def aclose() -> None:
        ends.append("archive")
        await close()

    monkeypatch.setattr(own, "aclose", aclose)
    monkeypatch.setattr(Retainer, "run_once", long)
    for name in ("_RETAIN_EVERY_S", "_COUNT_EVERY_S", "_PAUSE_S"):
        monkeypatch.setattr(archiving_loop, name, 0.01)
    stats = WorkerStats()
    running = asyncio.create_task(archive_regularly(live, own, stats=stats))
    await eventually(lambda: bool(begun), "a round has begun")
    task = await ended(live)
    await ArchiveList(live).enlist(SESSION, task)
    await eventually(lambda: stats.archived["tasks"] == 1, "the task is archived")
    stats.archive_backlog = Counted()
    await eventually(lambda: stats.archive_backlog.value is not None, "what waits is counted")
    running.cancel()
    await asyncio.wait({running})
    assert (begun, ends) == (["round"], ["round", "archive"])
    assert await archived(archive) == await expected(live, task)


@pytest.mark.parametrize("archive_url", ["parquet"], indirect=True)
async def test_a_pool_that_is_late_again_and_again_says_so_once(
    live: RedisStateStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counted = [0]

    async def overdue_s(_: WatchList) -> float:
        counted[0] += 1
        # Of two lists.
        return 3.0 * 86_400 * ((counted[0] - 1) // 2 % 2)

    monkeypatch.setattr(WatchList, "overdue_s", overdue_s)
    for name in ("_COUNT_EVERY_S", "_PAUSE_S"):
        monkeypatch.setattr(archiving_loop, name, 0.01)
    running = asyncio.create_task(
        archive_regularly(live, open_archive(live.settings), stats=WorkerStats(), share=0.0)
    )
    await eventually(lambda: counted[0] > 40, "it is late more than once")
    running.cancel()
    await asyncio.wait({running})
    assert sum("may expire" in each for each in caplog.messages) == 1


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_trouble_with_records_keeps_no_count_nor_task_back(
    archiving: Settings,
    archive: Archive,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = archiving.model_copy(update={"archive_classes": frozenset({"events"})})

    async def refused(_: object) -> object:
        raise RuntimeError("records fail")

    monkeypatch.setattr(RecordArchiver, "run_once", refused)
    async with RedisStateStore(settings) as live:
        task = await ended(live)
        await ArchiveList(live).enlist(SESSION, task)
        stats = WorkerStats()
        running = asyncio.create_task(archive_regularly(live, open_archive(settings), stats=stats))
        await eventually(lambda: stats.archived["tasks"] == 1, "the task is counted as archived")
        await eventually(lambda: stats.archive_backlog.value is not None, "what waits is counted")
        running.cancel()
        await asyncio.wait({running})
        assert await archived(archive) == await expected(live, task)
        said = [each for each in caplog.messages if "records fail" in each]
        assert said == ["archiving records fails, trying again: records fail"]


async def test_a_process_of_its_own_archives_until_it_is_ended(
    live: RedisStateStore, archive: Archive, settings: Settings, archive_url: str
) -> None:
    pytest.importorskip("prometheus_client", reason="needs the prometheus extra")
    port = free_port()
    # One was refused: it is due again in an hour, and it waits for one.
    await ArchiveList(live).enlist(SESSION, await ended(live))
    await waits_for_an_hour(live, live.base.keys.archive_watch, due_ms=3_600_000)
    task = await ended(live)
    await ArchiveList(live).enlist(SESSION, task)
    process = await begin(
        settings,
        *("archive", "run", "--follow", "--nice", "0", "--metrics-port", str(port)),
        environment={"REDIS_STATE_ARCHIVE_URL": archive_url, "REDIS_STATE_ARCHIVE_SHARE": "0"},
    )

    async def is_archived() -> bool:
        return bool(await archived(archive))

    await eventually(is_archived, "the process archives it")

    def metrics() -> str:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text: str = answer.read().decode()
            return text

    def waiting(name: str, text: str) -> float:
        start = f"redis_state_archive_{name}{{"
        lines = [each for each in text.splitlines() if each.startswith(start)]
        return float(lines[0].rsplit(" ", 1)[1]) if lines else 0.0

    async def is_counted() -> bool:
        text = await asyncio.to_thread(metrics)
        counts = dict(
            line.rsplit(" ", 1) for line in text.splitlines() if "archived_total{" in line
        )
        found = {name.split('"')[1]: float(count) for name, count in counts.items()}
        counted = found.get("tasks") == 1 and found.get("missed") == 0
        return counted and waiting("backlog", text) in (1, 2)

    await eventually(is_counted, "it counts that")
    text, now = await asyncio.to_thread(metrics), await ArchiveList(live).backlog()
    assert 3_600 <= waiting("backlog_age_seconds", text) <= now.oldest_s
    assert "redis_state_max_tasks" not in text
    process.send_signal(signal.SIGTERM)
    assert (await end(process)).status == 0
    assert await archived(archive) == await expected(live, task)
