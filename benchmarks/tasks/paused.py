"""One idle worker: how long a task takes through it, and what a paused task leaves."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from benchmarks.driver import Contender
from benchmarks.measure import percentile
from benchmarks.report import Row, row
from benchmarks.runner import Run
from benchmarks.server import BenchServer
from benchmarks.store import latencies
from benchmarks.tasks.pool import NAMESPACE, QUEUE
from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.worker import TaskClient

_LEASE_S = "10"
_DEADLINE_S = 60.0
_INPUT = {"query": "q" * 188}  # 200 bytes as JSON
# Marks of calls that were made lately, leases of runs that have ended: gone within minutes.
_SHORT_MS = 3_600_000


def worker(server: BenchServer, lease_s: str = _LEASE_S) -> Contender:
    """Start a worker in a process of its own. Errors: NotMeasured."""
    return Contender(server.url, lease_s, module="benchmarks.tasks.pool")


def client_of(server: BenchServer) -> tuple[RedisStateStore, TaskClient]:
    """Make a client of these workers."""
    store = RedisStateStore.from_url(server.url, namespace=NAMESPACE)
    return store, TaskClient(store, queue=QUEUE)


def measure_delays(run: Run) -> list[Row]:
    """Measure one task at a time, its client and its worker in two processes."""
    rows: list[Row] = []
    run.tell("delays of one task at a time")
    for measure, took in delays(run.server, 20 if run.quick else 100).items():
        p50, p99 = percentile(took, 0.5), percentile(took, 0.99)
        rows.append(row(f"{measure}, p50", p50, "ms", bar=(5.0, 3.0), most=True))
        rows.append(row(f"{measure}, p99", p99, "ms"))
    return rows


def delays(server: BenchServer, times: int) -> dict[str, list[float]]:
    """Return the milliseconds of each delay, the shortest first."""
    with worker(server):
        return asyncio.run(_delays(server, times))


async def _delays(server: BenchServer, times: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    store, client = client_of(server)
    async with store, client:
        await _three(client)
        for measure, part in (
            ("submit to the result of 3 steps", _three),
            ("approve to the handler going on", latencies.pause),
        ):
            took: list[float] = []
            for _ in range(times):
                # The worker still has to put the task before away.
                await asyncio.sleep(0.05)
                took.append(await part(client) * 1000)
            found[measure] = sorted(took)
    return found


async def _three(client: TaskClient) -> float:
    before = time.monotonic()
    task_id = await client.submit("three", {"n": 3}, session_id="three")
    ended = await client.wait("three", task_id, timeout_s=_DEADLINE_S)
    if ended.result != 3:
        raise RuntimeError(f"three steps returned {ended.result}")
    return time.monotonic() - before


def measure_paused(run: Run) -> list[Row]:
    """Measure what some hundred paused tasks take, the worker gone."""
    # The first ones also make what all tasks share: the shards of indexes and lists.
    few, count = 200, 200 if run.quick else 500
    run.tell(f"{count} paused tasks")
    _pause(run.server, 0, few)
    before = (*_kept(run.server), _later(run.server))
    _pause(run.server, few, few + count)
    after = _kept(run.server)
    parts = _parts(run.server)
    shown = ", ".join(f"{kind} {size:,.0f}" for kind, size in parts.most_common(9))
    short = (after[2] - before[2]) / count
    at_first = (after[0] - before[0]) / count
    size = (_later(run.server) - before[3]) / count
    keys = (after[1] - before[1]) / count
    return [
        row("paused task, bytes", size, "bytes", bar=(6000, 4000), most=True, note=shown),
        row("paused task, bytes in the first minutes", at_first, "bytes"),
        row(
            "paused task, keys",
            round(keys, 2),
            "keys",
            bar=(6, 6),
            most=True,
            note=f"and {short:.2f} that are gone within the hour",
        ),
    ]


def _pause(server: BenchServer, first: int, end: int) -> None:
    with worker(server):
        asyncio.run(_until_paused(server, first, end))
    # The pages of its connections are given back.
    server.redis.memory_purge()


async def _until_paused(server: BenchServer, first: int, end: int) -> None:
    store, client = client_of(server)
    async with store, client, asyncio.timeout(_DEADLINE_S):
        waiting = {
            session: await client.submit("reviewed", _INPUT, session_id=session)
            for session in (f"paused-{number:06d}" for number in range(first, end))
        }
        while waiting:
            for session, task_id in list(waiting.items()):
                state = await client.get(session, task_id)
                if state is not None and state.status is TaskStatus.PAUSED:
                    del waiting[session]
            await asyncio.sleep(0.02)


def _kept(server: BenchServer) -> tuple[int, int, int]:
    """Return the bytes used, the keys that stay, and those that soon expire."""
    lives = [server.redis.pttl(key) for key in server.redis.scan_iter(count=1000)]
    short = sum(0 <= life < _SHORT_MS for life in lives)
    return server.memory(), len(lives) - short, short


def _later(server: BenchServer) -> int:
    """Return the bytes used once what soon expires is gone. It is deleted here."""
    for key in server.redis.scan_iter(count=1000):
        if 0 <= server.redis.pttl(key) < _SHORT_MS:
            server.redis.delete(key)
    return server.memory()


def _parts(server: BenchServer) -> Counter[str]:
    """Return the bytes of each kind of key, of one of the tasks."""
    found: Counter[str] = Counter()
    for key in server.redis.scan_iter(match="*{paused-000001}*", count=1000):
        kind = key.decode().partition("}:")[2]
        name = ":".join(part for part in kind.split(":") if len(part) < 20)
        found[name] += server.redis.memory_usage(key, samples=0)
    return found
