"""A pool that works while what has ended is archived: its delays, the archive's rate, the memory.

Each archive is measured twice: archived by the worker, which has its share of the time for it, and
by a process of its own. The delays are those of callers, against the same pool without an archiver,
measured before and after.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.driver import Contender, NotMeasured
from benchmarks.measure import percentile
from benchmarks.report import Row, missing, row
from benchmarks.runner import Run
from benchmarks.server import BenchServer
from benchmarks.tasks.archiver import FollowingArchiver
from benchmarks.tasks.paused import client_of, worker
from benchmarks.tasks.planting import SESSION, TASK, Template, plant, sample
from benchmarks.tasks.pool import NAMESPACE
from benchmarks.tasks.postgres import BenchPostgres
from redis_state import RedisStateStore
from redis_state.archive import Archive, ArchiveReader
from redis_state.archive.parquet.archive import ParquetArchive
from redis_state.archive.waiting import ArchiveList
from redis_state.primitives.watchlist.watchlist import found_ended
from redis_state.settings import make_settings
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker import TaskClient

_TASKS, _QUICK = 100_000, 800
_CALLERS, _PAUSE_S = 4, 0.2
# The pool without an archiver, before and again after.
_ALONE_S, _QUICK_ALONE_S = 20.0, 5.0
_TOGETHER = 500
# A measurement that takes longer ends with what it has until then.
_LONGEST_S = 3_000.0
_DEADLINE_S = 2 * _LONGEST_S
_TELL_S = 15.0
_MIB = 1 << 20
# What the archiver's connections and scripts, and the allocator, may leave in Redis.
_BACK_MIB = 4.0


@dataclass
class _Found:
    seconds: float = 0.0
    archived: int = 0
    # Of the planted tasks, what the archive counts at the end.
    kept: int = 0
    # Of each task that it has, with its updates: those of the callers are there, too.
    bytes: float = 0.0
    alone: list[float] = field(default_factory=list[float])
    beside: list[float] = field(default_factory=list[float])
    # Of Redis: before there were tasks, at the highest, and once the tasks had expired; and the
    # index of the callers' tasks, which are listed for their whole lifetime.
    before: int = 0
    peak: int = 0
    after: int = 0
    index: int = 0


def measure_archiving(run: Run) -> list[Row]:
    """Measure with Parquet files and with PostgreSQL, both archived in two ways."""
    count = _QUICK if run.quick else max(_QUICK, round(_TASKS * run.size))
    rows: list[Row] = []
    for apart in (False, True):
        with tempfile.TemporaryDirectory(prefix="redis-state-bench-") as folder:
            rows += _rows("Parquet", run, Path(folder).as_uri(), count, apart=apart)
    for apart in (False, True):
        try:
            # A new one: its tables are empty.
            with BenchPostgres() as postgres:
                rows += _rows("PostgreSQL", run, postgres.url, count, apart=apart)
        except NotMeasured as error:
            return [*rows, missing("archiving: PostgreSQL", str(error))]
    return rows


def _rows(archive: str, run: Run, url: str, count: int, *, apart: bool) -> list[Row]:
    name = f"{archive}, {'a process of its own' if apart else 'the worker'}"
    run.tell(f"archiving: {count:,} tasks, {name}")
    found = _measure(run, url, count, apart=apart)
    alone, beside = sorted(found.alone), sorted(found.beside)
    p50, p99 = ([percentile(took, at) * 1000 for took in (alone, beside)] for at in (0.5, 0.99))
    delays = (
        f"p99 {p99[1]:.1f} ms and {p99[0]:.1f} ms, p50 {p50[1]:.1f} and {p50[0]:.1f}, "
        f"of {len(beside)} and {len(alone)} tasks"
    )
    within = f"{found.archived:,} of {count:,} in {found.seconds:.0f} s"
    memory = (
        f"{found.before / _MIB:.1f} before, {found.peak / _MIB:.1f} at the highest, "
        f"{found.after / _MIB:.1f} after, of which {found.index / _MIB:.1f} list the callers' tasks"
    )
    return [
        row(
            f"3 steps while tasks are archived, p99 beside without: {name}",
            p99[1] / p99[0],
            "x",
            bar=(1.2, 1.1),
            most=True,
            note=delays,
        ),
        row(f"archived: {name}", found.archived / max(found.seconds, 1), "tasks/s", note=within),
        row(
            f"tasks in the archive, of those planted: {name}",
            found.kept / count,
            "x",
            bar=(1, 1),
            note=f"{found.kept:,} of {count:,}, counted by the archive",
        ),
        row(f"a task with its updates: {name}", found.bytes, "bytes"),
        row(
            f"Redis once they have expired, more than before: {name}",
            (found.after - found.before - found.index) / _MIB,
            "MiB",
            bar=(_BACK_MIB, _BACK_MIB / 2),
            most=True,
            note=memory,
        ),
    ]


def _measure(run: Run, url: str, count: int, *, apart: bool) -> _Found:
    found, server = _Found(), run.server
    server.flush()
    with worker(server):
        template = asyncio.run(_template(server))
    # What is planted has the sample's names too.
    server.flush()
    with worker(server):
        server.redis.memory_purge()
        found.before = _memory(server)
        plant(server, template, count)
        found.peak = _memory(server)
        asyncio.run(_alone(run, found))
    asyncio.run(_enlist(server, count))
    with ExitStack() as stack:
        shares = ["0"] if apart else []
        pool = Contender(server.url, "10", url, *shares, module="benchmarks.tasks.pool")
        stack.enter_context(pool)
        if apart:
            stack.enter_context(FollowingArchiver(server, url))
        asyncio.run(_beside(run, found))
        run.tell("archiving: lifetimes end")
        asyncio.run(_expire(server))
        found.kept, found.bytes = asyncio.run(_kept(server, url))
    server.redis.memory_purge()
    found.after, found.index = _memory(server), _index(server)
    with worker(server):
        asyncio.run(_alone(run, found))
    return found


async def _template(server: BenchServer) -> Template:
    store, client = client_of(server)

    async def make(session: str, task: str) -> None:
        await client.submit("three", {"n": 3}, session_id=session, task_id=task)
        await client.wait(session, task, timeout_s=60)

    async with store, client:
        return await sample(server, make)


async def _enlist(server: BenchServer, count: int) -> None:
    """Have the tasks wait for an archiver, as the sweeper does."""
    async with RedisStateStore.from_url(server.url, namespace=NAMESPACE) as store:
        listed = ArchiveList(store)
        for first in range(0, count, _TOGETHER):
            numbers = range(first, min(first + _TOGETHER, count))
            await asyncio.gather(
                *(listed.enlist(SESSION.format(n), TASK.format(n)) for n in numbers)
            )


async def _alone(run: Run, found: _Found) -> None:
    ends = time.monotonic() + (_QUICK_ALONE_S if run.quick else _ALONE_S)
    store, client = client_of(run.server)
    looks = _Looks(run.server, store, found)

    async def until() -> bool:
        # The same process calls and looks. So it looks here too, for the callers' sake.
        await looks.once_a_second()
        return time.monotonic() >= ends

    run.tell("archiving: the pool without an archiver")
    async with store, client:
        await _work(client, found.alone, until)


async def _beside(run: Run, found: _Found) -> None:
    store, client = client_of(run.server)
    looks = _Looks(run.server, store, found)
    async with store, client:
        # The processes have started once they archive.
        while not (first := looks.archived()):  # noqa: ASYNC110 - it asks the server
            await asyncio.sleep(0.1)
        began, reported = time.monotonic(), 0.0

        async def until() -> bool:
            nonlocal reported
            oldest_s = await looks.once_a_second()
            if oldest_s is None:
                return False
            passed = looks.looked_at - began
            # The tasks of the callers wait too, but began to later. Each task is looked at twice.
            over = oldest_s < passed
            if (news := looks.last - first) > found.archived:
                found.archived, found.seconds = news, passed
            if over or looks.looked_at - reported >= _TELL_S:
                reported = looks.looked_at
                run.tell(f"archiving: {found.archived:,} in {found.seconds:.0f} s, {passed:.0f} s")
            return over or passed >= _LONGEST_S

        run.tell("archiving: the pool with one")
        await _work(client, found.beside, until)


class _Looks:
    """What is asked about the archiver, once a second."""

    def __init__(self, server: BenchServer, store: RedisStateStore, found: _Found) -> None:
        self._server, self._found = server, found
        self._lists = [store.base.keys.archive_sessions(shard) for shard in range(WATCH_SHARDS)]
        self._waiting = ArchiveList(store)
        self.looked_at, self.last = 0.0, 0

    def archived(self) -> int:
        """Count the sessions whose updates are archived: each task has one of its own."""
        self._found.peak = max(self._found.peak, _memory(self._server))
        self.last = sum(self._server.redis.zcard(key) for key in self._lists)
        return self.last

    async def once_a_second(self) -> float | None:
        """Return for how long the first of what waits does, if a second has passed."""
        if time.monotonic() - self.looked_at < 1:
            return None
        self.looked_at = time.monotonic()
        self.archived()
        return (await self._waiting.backlog()).oldest_s


async def _work(
    client: TaskClient, took: list[float], until: Callable[[], Awaitable[bool]]
) -> None:
    """Have callers submit tasks and wait for them, at a pace, until something is so."""
    over = asyncio.Event()

    async def calls(caller: int) -> None:
        session = f"caller-{caller}"
        while not over.is_set():
            began = time.monotonic()
            task = await client.submit("three", {"n": 3}, session_id=session)
            await client.wait(session, task, timeout_s=60)
            took.append(time.monotonic() - began)
            await asyncio.sleep(_PAUSE_S)

    async with asyncio.TaskGroup() as group, asyncio.timeout(_DEADLINE_S):
        for caller in range(_CALLERS):
            group.create_task(calls(caller))
        while not await until():  # noqa: ASYNC110 - it asks the server
            await asyncio.sleep(0.1)
        over.set()


async def _kept(server: BenchServer, url: str) -> tuple[int, float]:
    """Count the planted tasks in the archive, and the bytes for each task that it has."""
    settings = make_settings(server.url, namespace=NAMESPACE, archive_url=url)
    async with RedisStateStore(settings) as store, ArchiveReader(store) as reader:
        archive: Archive = reader.archive
        if isinstance(archive, ParquetArchive):
            await archive.compact()

        async def of_callers() -> int:
            found = [await archive.session(f"caller-{caller}") for caller in range(_CALLERS)]
            return sum(each.tasks for each in found if each)

        # Theirs are archived meanwhile, too.
        while True:
            theirs, status = await of_callers(), await archive.status()
            if await of_callers() == theirs:
                return status.tasks - theirs, status.bytes / max(status.tasks, 1)


async def _expire(server: BenchServer) -> None:
    """Have what was archived expire, and wait until the archiver has looked at it once more."""
    for pattern in ("*plant-s-*", "*caller-*"):
        for key in server.redis.scan_iter(match=pattern, count=1000):
            server.redis.pexpire(key, 1)
    async with RedisStateStore.from_url(server.url, namespace=NAMESPACE) as store:
        keys = store.base.keys
        lists = [keys.archive_sessions(shard) for shard in range(WATCH_SHARDS)]
        ends = time.monotonic() + _DEADLINE_S
        while any(server.redis.zcard(key) > _CALLERS for key in lists):
            if time.monotonic() > ends:
                raise NotMeasured("the sessions are still listed")
            for key in lists:
                listed = server.redis.zrange(key, 0, -1, withscores=True)
                # A claim's time has a fraction. An entry that was found ended is due by itself.
                later = {
                    entry: 1 for entry, score in listed if score % 1 == 0 and not found_ended(score)
                }
                if later:
                    server.redis.zadd(key, later, xx=True)
            await asyncio.sleep(1)


def _index(server: BenchServer) -> int:
    """Sum what the index has: nothing of it is planted."""
    lists = server.redis.scan_iter(match="*{/watch-*}:tasks*", count=1000)
    return sum(server.redis.memory_usage(key, samples=0) or 0 for key in lists)


def _memory(server: BenchServer) -> int:
    return int(server.redis.info("memory")["used_memory"])
