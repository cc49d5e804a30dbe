"""What Prometheus scrapes from a worker, compared with a plain model of the work it was given."""

from __future__ import annotations

import asyncio
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("prometheus_client", reason="needs the prometheus extra")

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.backoff import Backoff
from redis_state.errors import BackendUnavailable, LeaseLost
from redis_state.models import TaskStatus
from redis_state.primitives.watchlist.watchlist import ENDED_MS, Band, WatchList, check_after
from redis_state.scripts import Fence
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from redis_state.worker.observe import metrics
from redis_state.worker.observe import tracing as telemetry
from redis_state.worker.observe.metrics import ArchiveMetrics, WorkerMetrics, count_regularly
from redis_state.worker.observe.stats import RunOutcome, WorkerStats
from redis_state.worker.pool import serving as restarts
from redis_state.worker.queue import counting
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.transitions import TaskTransitions
from redis_state.worker.tasks.waitpoints import open_pauses
from redis_state.worker.tasks.waitpoints.open_pauses import pauses_older_than
from tests.support.processes import children
from tests.support.processes.pools import (
    SESSION,
    agent,
    becomes,
    client_of,
    open_token,
    pool,
    queue_of,
    serving,
)
from tests.support.processes.worker_processes import begin
from tests.support.scripts.replies import HOUR
from tests.support.servers.faults import Proxy, run_server, short_directory
from tests.support.tasks.runs import steal

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(port: int) -> Series:
    """Read all series over HTTP, without their worker's name."""

    def fetch() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text: str = answer.read().decode()
            return text

    found: Series = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(fetch)):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("worker") == "w"
            found[sample.name, frozenset(labels.items())] = sample.value
    return found


def of(series: Series, name: str, **labels: str) -> float:
    return series.get((f"redis_state_{name}", frozenset(labels.items())), 0.0)


async def works(ctx: TaskContext) -> Any:
    """End as told."""
    match ctx.input:
        case "fail":
            raise ValueError("no luck")
        case "pause":
            return (await ctx.approval("?")).approved
        case "wait":
            await ctx.progress("begun")
            return await asyncio.Event().wait()
        case _:
            return 1


async def test_the_numbers_are_those_of_a_known_workload(
    store: RedisStateStore, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_COUNT_EVERY_S", 0.05)
    plan = ["ok"] * 7 + ["fail"] * 3 + ["pause"] * 4
    async with pool(
        store, {"works": works}, name="w", metrics_port=unused_tcp_port, max_tasks=6
    ) as client:
        tasks = [(how, await client.submit("works", how, session_id=SESSION)) for how in plan]
        for how, task in tasks:
            if how == "pause":
                await becomes(client, task, TaskStatus.PAUSED)
            else:
                await client.wait(SESSION, task, timeout_s=60)
        paused = [task for how, task in tasks if how == "pause"]
        for task in paused[:3]:
            await client.approve(await open_token(store, task))
            await client.wait(SESSION, task, timeout_s=60)
        await client.wait(SESSION, await client.submit("?", session_id=SESSION), timeout_s=60)
        await client.submit("works", "wait", session_id=SESSION, task_id="waits")

        model = Counter(completed=7 + 3, failed=3, paused=4)
        runs = len(plan) + 3 + 1

        async def settled() -> Series | None:
            found = await scrape(unused_tcp_port)
            one = of(found, "open_pauses", older_than_s="0") == 1
            return found if one and of(found, "running_tasks", handler="works") == 1 else None

        series = await eventually(settled, "the last task runs and one pause is open")
        assert series is not None
        for outcome in RunOutcome:
            counted = of(series, "run_seconds_count", handler="works", outcome=outcome.value)
            assert (outcome.value, counted) == (outcome.value, model[outcome.value])
        # Any text may be named as a handler: what nobody knows makes one series together.
        ended = {outcome: of(series, "runs_ended_total", outcome=outcome) for outcome in RunOutcome}
        assert ended == dict.fromkeys(RunOutcome, 0) | model | {"failed": 4}
        assert ("redis_state_runs_ended_total", frozenset({("outcome", "unwritten")})) in series
        unknown = {"handler": "(unknown)", "outcome": "failed"}
        assert of(series, "run_seconds_count", **unknown) == 1
        assert of(series, "runs_started_total", handler="works") == runs
        waits = [value for (name, _), value in series.items() if "wait_seconds_count" in name]
        assert waits == [runs + 1]
        assert 0 < sum(v for (name, _), v in series.items() if "wait_seconds_sum" in name) < 60
        assert of(series, "max_tasks") == 6
        assert of(series, "open_pauses", older_than_s="60") == 0
        for zero in ("takeovers_total", "leases_lost_total", "stale_writes_refused_total"):
            assert of(series, zero) == 0
        await client.cancel(SESSION, "waits", hard=True)
        await client.wait(SESSION, "waits", timeout_s=60)
        await client.cancel(SESSION, paused[3])


async def test_a_task_taken_over_is_counted_by_both_sides(
    store: RedisStateStore, unused_tcp_port: int
) -> None:
    refused: list[int] = []

    async def stale(ctx: TaskContext) -> int:
        await ctx.progress("begun")
        if ctx.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(3):
                    try:
                        await store.base.records.save(
                            store.base.keys.memory(SESSION), {}, ttl_ms=1, fence=_fence(ctx)
                        )
                    except LeaseLost as error:
                        refused.append(error.current)
        return ctx.attempt

    def _fence(ctx: TaskContext) -> Fence:
        return ctx.fence

    worker = agent(
        store.settings, {"stale": stale}, name="w", lease_s=1.5, metrics_port=unused_tcp_port
    )
    async with client_of(store) as client, serving(worker):
        task = await begin(client, store, "stale")
        # The thief says nothing any more either, and the task is queued anew.
        taken = await steal(store, task, lease_ms=500)
        assert taken.taken_over

        async def found_out() -> bool:
            return of(await scrape(unused_tcp_port), "leases_lost_total") == 1

        await eventually(found_out, "the first run has found out")
        queue = Queue(store, name=queue_of(store.settings))
        await queue.put(Job(SESSION, task, 2, 0))
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 3
        series = await scrape(unused_tcp_port)
        assert of(series, "takeovers_total") == 1
        assert of(series, "run_seconds_count", handler="stale", outcome="dropped") == 1
        assert refused == [taken.held.epoch] * 3


async def test_stale_writes_that_were_refused_are_counted(
    store: RedisStateStore, unused_tcp_port: int
) -> None:
    async def late(ctx: TaskContext) -> int:
        await ctx.progress("begun")
        await taken.wait()
        refused = 0
        for _ in range(5):
            try:
                await ctx.progress("late")
            except LeaseLost:
                refused += 1
        return refused

    taken = asyncio.Event()
    worker = agent(
        store.settings, {"late": late}, name="w", lease_s=60.0, metrics_port=unused_tcp_port
    )
    async with client_of(store) as client, serving(worker):
        task = await begin(client, store, "late")
        thief = await steal(store, task)
        taken.set()

        async def counted() -> bool:
            # Five updates, and the end of the run.
            return of(await scrape(unused_tcp_port), "stale_writes_refused_total") == 6

        await eventually(counted, "each refusal is counted")
        assert of(await scrape(unused_tcp_port), "leases_lost_total") == 1
        await TaskTransitions(store).finish_run(thief, TaskStatus.COMPLETE)


async def test_metrics_go_to_a_registry_of_the_hosts_own_and_leave_it(
    store: RedisStateStore,
) -> None:
    registry = CollectorRegistry()
    async with pool(store, {"works": works}, name="w", metrics_registry=registry) as client:
        await client.wait(SESSION, await client.submit("works", session_id=SESSION), timeout_s=60)

        def counted() -> bool:
            labels = {"worker": "w", "handler": "works", "outcome": "completed"}
            return registry.get_sample_value("redis_state_run_seconds_count", labels) == 1

        await eventually(counted, "the run is counted")
    assert list(registry.collect()) == []


async def test_a_port_in_use_keeps_no_worker_from_working(
    store: RedisStateStore, unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    taken = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", unused_tcp_port
    )
    async with taken, pool(store, {"works": works}, metrics_port=unused_tcp_port) as client:
        task = await client.submit("works", session_id=SESSION)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 1
    assert "metrics are not served" in caplog.text


def test_what_goes_wrong_in_a_scrape_is_logged_once_and_dropped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "_reported", set[str]())

    def broken() -> int:
        raise ZeroDivisionError

    collector = WorkerMetrics("w", WorkerStats(["h"]), 1, broken)
    for _ in range(3):
        assert list(collector.collect()) == []
    assert [record.message for record in caplog.records] == [
        "telemetry is incomplete: builtins.ZeroDivisionError"
    ]


async def test_pauses_are_counted_by_their_age(store: RedisStateStore) -> None:
    async with pool(store, {"works": works}) as client:
        tasks = [await client.submit("works", "pause", session_id=SESSION) for _ in range(3)]
        for task in tasks:
            await becomes(client, task, TaskStatus.PAUSED)
        sender = store.transport.sender
        pause = (await client.pauses(SESSION))[0]
        key = store.base.keys.session_token(str(pause.token))
        assert key is not None
        await sender.send("HINCRBY", key, "opened", -3600 * 1000, repeatable=False)
        assert await pauses_older_than(store, [0, 60, 1800, 86_400]) == [3, 1, 1, 0]
        for task in tasks:
            await client.cancel(SESSION, task)
    assert await pauses_older_than(store, [0]) == [0]


_WITHOUT = """
import sys, asyncio
for name in ("opentelemetry", "prometheus_client"):
    sys.modules[name] = None
from pydantic import SecretStr
from redis_state import RedisStateStore, Settings
from redis_state.errors import ConfigError
from redis_state.stores.sessions.job_parts import job_of
from redis_state.worker import AgentWorker, TaskClient

async def answer(ctx):
    await ctx.step("one", lambda: 1)
    return (await ctx.approval("?")).approved

async def main(url, namespace):
    settings = Settings(url=SecretStr(url), namespace=namespace)
    queue = "queue-" + namespace
    for options in ({"metrics_port": 0}, {"metrics_registry": object()}):
        try:
            await AgentWorker({}, settings=settings, **options).serve(handle_signals=False)
        except ConfigError as error:
            assert "prometheus" in str(error)
        else:
            raise AssertionError
    async with RedisStateStore(settings) as store, TaskClient(store, queue=queue) as client:
        worker = AgentWorker({"answer": answer}, settings=settings, queue=queue)
        serving = asyncio.create_task(worker.serve(handle_signals=False))
        cursor = await store.update_cursor("s")
        task = await client.submit("answer", session_id="s")
        async for entry in store.watch_updates("s", after=cursor):
            if entry.value.update_type.value == "CHECKPOINT":
                await client.approve(entry.value.content["pause_id"])
                break
        ended = await client.wait("s", task, timeout_s=60)
        fields = await store.tasks.load_fields("s", task)
        assert b"trace" not in job_of(fields.fields)
        serving.cancel()
        await asyncio.wait({serving})
        print(ended.status.value, ended.result)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_without_the_packages_nothing_is_imported_and_all_works(
    store: RedisStateStore,
) -> None:
    url, namespace = store.settings.url.get_secret_value(), store.settings.namespace
    ran = await asyncio.to_thread(
        children.run,
        [sys.executable, "-c", _WITHOUT, url, namespace],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ran.stdout, ran.returncode) == ("COMPLETE True\n", 0), ran.stderr


def test_importing_the_worker_imports_neither_package() -> None:
    # Later releases of redis-py import opentelemetry by themselves, where it is there.
    code = (
        "import sys, redis.asyncio\n"
        "before = {*sys.modules}\n"
        "import redis_state.worker\n"
        "print(sorted(({*sys.modules} - before) & {'opentelemetry', 'prometheus_client'}))"
    )
    ran = children.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


async def test_what_a_sweep_found_is_shown(store: RedisStateStore) -> None:
    registry = CollectorRegistry()
    stats = WorkerStats(["h"])
    stats.swept.update(requeued=2, taken_out=1)
    registry.register(WorkerMetrics("w", stats, 1, int))
    labels = {"worker": "w", "what": "requeued"}
    assert registry.get_sample_value("redis_state_swept_total", labels) == 2


async def test_counting_pauses_goes_on_whatever_goes_wrong(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_COUNT_EVERY_S", 0.01)
    outcomes: list[Any] = [BackendUnavailable("a", "away"), ZeroDivisionError(), [5] * 7]

    async def count(_: RedisStateStore, ages: Any) -> Any:
        found = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        if isinstance(found, Exception):
            raise found
        return found

    stats = WorkerStats()
    counting = asyncio.create_task(count_regularly(store, stats, count))
    await eventually(lambda: stats.open_pauses.value, "it has counted")
    assert (stats.open_pauses.value or {})[0] == 5
    counting.cancel()
    await asyncio.wait({counting})


async def test_what_is_counted_at_the_server_is_not_shown_while_it_cannot_be_counted(
    own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loop in (metrics, counting):
        monkeypatch.setattr(loop, "_COUNT_EVERY_S", 0.05)
        monkeypatch.setattr(loop, "_SHOWN_S", 0.5)
    registry = CollectorRegistry()

    def shown(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"redis_state_{name}", {"worker": "w"} | labels)

    async with Proxy(own_url) as proxy:
        settings = Settings(
            url=SecretStr(proxy.url), namespace="t", connect_timeout_s=0.3, call_timeout_s=0.5
        )
        queue = queue_of(settings)

        def counted() -> list[float | None]:
            return [
                shown("queue_later", queue=queue),
                shown("queue_workers", queue=queue),
                shown("open_pauses", older_than_s="0"),
                shown("sweep_overdue_seconds", band="check"),
            ]

        worker = agent(settings, {"works": works}, name="w", metrics_registry=registry)
        direct = settings.model_copy(update={"url": SecretStr(own_url)})
        async with (
            serving(worker),
            RedisStateStore(direct) as store,
            client_of(store) as client,
        ):
            await client.submit("works", session_id=SESSION, delay=timedelta(hours=1))
            await eventually(lambda: counted() == [1, 1, 0, 0], "all is counted")
            proxy.refuse()
            assert proxy.cut()
            await eventually(lambda: counted() == [None] * 4, "nothing of it is shown")
            assert shown("max_tasks") == 10
            proxy.refuse(refusing=False)
            await eventually(lambda: counted() == [1, 1, 0, 0], "it is counted again")


@pytest.mark.parametrize("band", Band)
async def test_how_late_sweepers_are_is_shown_for_each_band(
    store: RedisStateStore, band: Band
) -> None:
    overdue_ms = {Band.REPAIR: 0, Band.CHECK: check_after(0), Band.ENDED: ENDED_MS}[band] - HOUR
    watch = WatchList(store.base.scripts, store.base.keys)
    await watch.put(b"late", delay_ms=overdue_ms)
    for other in (HOUR, check_after(HOUR), ENDED_MS + HOUR):
        await watch.put(b"%d" % other, delay_ms=other)
    registry, stats = CollectorRegistry(), WorkerStats()
    registry.register(WorkerMetrics("w", stats, 1, int))

    def shown(each: Band) -> float | None:
        labels = {"worker": "w", "band": each.value}
        return registry.get_sample_value("redis_state_sweep_overdue_seconds", labels)

    async def count(_: RedisStateStore, ages: Sequence[float]) -> list[int]:
        return [0] * len(ages)

    assert [shown(each) for each in Band] == [None] * 3
    counting = asyncio.create_task(count_regularly(store, stats, count))
    await eventually(lambda: stats.open_pauses.value, "it has counted")
    for each in Band:
        late_s = shown(each)
        assert late_s is not None
        assert late_s == 0 if each is not band else late_s >= HOUR / 1000 - 1
    counting.cancel()
    await asyncio.wait({counting})


async def test_a_count_is_shown_for_its_time(store: RedisStateStore) -> None:
    stats = WorkerStats()
    registry = CollectorRegistry()
    registry.register(ArchiveMetrics("w", stats))

    def shown() -> list[float | None]:
        names = ("backlog", "sessions_behind", "records_backlog_age_seconds")
        labels = {"worker": "w"}
        return [registry.get_sample_value(f"redis_state_archive_{one}", labels) for one in names]

    assert shown() == [None] * 3
    for shown_s in (3600, 0.01):
        stats.archive_backlog.put((4, 5.0), for_s=shown_s)
        stats.sessions_behind.put(6, for_s=shown_s)
        stats.record_backlog.put((7, 8.0), for_s=shown_s)
        if shown_s > 1:
            assert shown() == [4, 6, 8.0]
    await eventually(lambda: shown() == [None] * 3, "they are too old")


async def test_who_waits_for_a_child_has_no_open_pause_and_who_still_works_may_have_some(
    store: RedisStateStore,
) -> None:
    go = asyncio.Event()

    async def working(ctx: TaskContext) -> None:
        await ctx.open_pause("a")
        await ctx.open_pause("b")
        await go.wait()

    async def parent(ctx: TaskContext) -> None:
        await ctx.join(await ctx.spawn("working"))

    async with pool(store, {"parent": parent, "working": working}) as client:
        task = await client.submit("parent", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)

        async def both() -> bool:
            return len(await client.pauses(SESSION)) == 2

        await eventually(both, "two pauses are open")
        assert await pauses_older_than(store, [0, 60]) == [2, 0]
        go.set()
        await client.wait(SESSION, task, timeout_s=60)
    assert await pauses_older_than(store, [0]) == [0]


async def test_no_more_pauses_are_looked_at_than_the_limit(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool(store, {"works": works}) as client:
        tasks = [await client.submit("works", "pause", session_id=SESSION) for _ in range(8)]
        for task in tasks:
            await becomes(client, task, TaskStatus.PAUSED)
        monkeypatch.setattr(open_pauses, "_MOST_READ", 5)
        assert await pauses_older_than(store, [0]) == [5]
        for task in tasks:
            await client.cancel(SESSION, task)


async def test_a_registry_that_refuses_keeps_no_worker_from_working(
    store: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    registry.register(WorkerMetrics("other", WorkerStats(), 1, int))
    async with pool(store, {"works": works}, metrics_registry=registry) as client:
        task = await client.submit("works", session_id=SESSION)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 1
    assert "this worker has no metrics" in caplog.text


async def test_a_worker_that_waits_for_its_store_has_metrics_and_serves_once_it_is_there(
    own_url: str,
    unused_tcp_port_factory: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restarts, "_RESTART_S", Backoff(0.02, 0.1))
    port, metrics_port = unused_tcp_port_factory(), unused_tcp_port_factory()
    settings = Settings(
        url=SecretStr(f"redis://127.0.0.1:{port}"),
        queue_url=SecretStr(own_url),
        namespace="t",
        connect_timeout_s=0.3,
    )
    worker = agent(settings, {"works": works}, name="w", metrics_port=metrics_port)
    async with serving(worker) as on:

        async def has_metrics() -> bool:
            with suppress(OSError):
                return of(await scrape(metrics_port), "max_tasks") == 10
            return False

        await eventually(has_metrics, "it lives, and says so")
        # So it has tried, and was refused.
        await asyncio.wait({on}, timeout=2 * settings.connect_timeout_s)
        with short_directory() as directory, run_server(directory, "--port", str(port)):
            async with RedisStateStore(settings) as store, client_of(store) as client:
                task = await client.submit("works", session_id=SESSION)
                assert (await client.wait(SESSION, task, timeout_s=60)).result == 1
            on.cancel()
            await asyncio.wait({on})
