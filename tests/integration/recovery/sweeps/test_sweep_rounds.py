"""Rounds of sweeps: their cost, trouble with the servers, and many sweepers at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from arq.worker import create_worker

from redis_state import RedisStateStore, Settings
from redis_state.errors import BackendUnavailable
from redis_state.models import TaskStatus
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.testing import eventually
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker import Handler, TaskContext
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.queue_history import QueueHistory
from redis_state.worker.recovery.report import SweepReport
from redis_state.worker.recovery.sweep_loop import sweep_regularly
from redis_state.worker.recovery.sweeper import Sweeper
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import (
    SESSION,
    agent,
    becomes,
    client_of,
    key_of_queue,
    pool,
    queue_of,
    queued,
    watched,
)
from tests.support.scripts.replies import HOUR
from tests.support.servers.faults import Proxy, needs_arqs_runner, run_processes
from tests.support.servers.sets.nodes import primaries
from tests.support.sizes import sizes
from tests.support.tasks.crash_states import (
    all_flushed,
    decided,
    entry_in_ms,
    handed_over,
    make_due,
    orphaned,
    paused,
    send,
    started,
    submitted,
    sweeper_of,
)


async def _answer(_: TaskContext) -> int:
    return 42


async def test_a_round_with_nothing_to_do_is_one_turn_and_a_round_is_bounded(
    store: RedisStateStore,
) -> None:
    # What was looked at is not due again while the test runs.
    sweeper = sweeper_of(store, limit=1, lease_ms=400_000)
    await sweeper.run_once()
    nodes = await primaries(store.transport)
    before = store.transport.sender.batches
    assert await sweeper.run_once() == SweepReport()
    # The first question leaves alone, the others together behind it.
    assert store.transport.sender.batches <= before + 2 * nodes
    for number in range(100):
        await WatchList(store.base.scripts, store.base.keys).put(
            watch_entry(SESSION, f"gone-{number}"), delay_ms=0
        )
    for _ in range(2):
        looked: list[int] = []
        while not looked or looked[-1]:
            before = store.transport.sender.batches
            looked.append((await sweeper.run_once()).looked)
            # 16 begin in two groups, and each of them asks by itself.
            assert 0 < store.transport.sender.batches - before <= 2 * 5 * nodes
        assert sum(looked) == 100
        assert max(looked) <= 16
        for number in range(100):
            await make_due(store, watch_entry(SESSION, f"gone-{number}"))
    assert sweeper.totals == SweepReport(looked=200, dropped=100)


async def test_a_dead_workers_task_does_not_wait_behind_tasks_that_ended(
    store: RedisStateStore,
) -> None:
    """A pool that ends tasks faster than it sweeps has thousands of their entries due."""
    ended = [await submitted(store) for _ in range(200)]
    moves = TaskTransitions(store)
    for task in ended:
        await moves.finish_run(await started(store, task), TaskStatus.COMPLETE)
    orphan = await orphaned(store)
    for task in (*ended, orphan):
        await make_due(store, watch_entry(SESSION, task))
    # What was taken over is not due again while the test runs.
    sweeper = sweeper_of(store, limit=1, lease_ms=400_000)
    report = await sweeper.run_once()
    assert report.taken_over == 1
    assert 0 < report.dropped <= 16
    assert [each for each in await queued(store) if orphan in each]
    while report.looked:
        report = await sweeper.run_once()
    assert sweeper.totals.dropped == len(ended)
    # Each was inspected once.
    assert sweeper.totals.looked == len(ended) + 1


async def _seldom_checked(store: RedisStateStore, sweeper: Sweeper) -> list[str]:
    """Have tasks wait that were found where they should be, and are due to be looked at again."""
    waiting = [(await paused(store))[0] for _ in range(40)]
    waiting += [await submitted(store) for _ in range(40)]
    # The first time half of them is queued.
    for _ in range(2):
        await _all_due(store, waiting)
        while (await sweeper.run_once()).looked:
            pass
    assert sweeper.totals.requeued == 40
    await _all_due(store, waiting)
    return waiting


async def _all_due(store: RedisStateStore, tasks: Sequence[str]) -> None:
    for task in tasks:
        await make_due(store, watch_entry(SESSION, task))


async def test_a_dead_workers_task_does_not_wait_behind_tasks_that_wait(
    store: RedisStateStore,
) -> None:
    """A pool that was away has to look at all that became due meanwhile."""
    queue = Queue(store, name=queue_of(store.settings))
    history = QueueHistory(store, queue)
    while await history.run_once():
        pass
    sweeper = sweeper_of(store, limit=1, history=history)
    waiting = await _seldom_checked(store, sweeper)
    orphan = await orphaned(store)
    for shard in range(WATCH_SHARDS):
        # Since later than all others.
        key, entry = store.base.keys.watch(shard), watch_entry(SESSION, orphan)
        await send(store, "ZADD", key, "XX", 2, entry)
    report = await sweeper.run_once()
    assert report.taken_over == 1
    assert 0 < report.looked - 1 <= 16
    assert [each for each in await queued(store) if orphan in each]
    # Those that wait have their turn too, whatever else is due.
    keys = [store.base.keys.watch(shard) for shard in range(WATCH_SHARDS)]
    for number in range(len(waiting)):
        for key in keys:
            await send(store, "ZADD", key, 1, b"urgent %d" % number)
    for _ in waiting:
        await sweeper.run_once()
    for task in waiting:
        in_ms = await entry_in_ms(store, watch_entry(SESSION, task))
        assert in_ms is not None
        # It was due since 1970.
        assert in_ms > -HOUR
    await queue.aclose()


async def test_with_the_queue_away_the_rest_is_swept_and_nothing_is_lost(
    store: RedisStateStore, settings: Settings, unused_tcp_port: int
) -> None:
    away = SecretStr(f"redis://127.0.0.1:{unused_tcp_port}/0")
    task, gone = await submitted(store), "gone"
    await TaskBookkeeping(store).inspect_soon(SESSION, gone)
    for name in (task, gone):
        await make_due(store, watch_entry(SESSION, name))
    elsewhere = RedisStateStore(
        settings.model_copy(update={"queue_url": away, "call_timeout_s": 0.2})
    )
    other = Queue(elsewhere, name=queue_of(settings))
    sweeper = Sweeper(store, other)
    with pytest.raises(BackendUnavailable):
        await sweeper.run_once()
    assert sweeper.totals == SweepReport(looked=2)
    await make_due(store, watch_entry(SESSION, gone))
    with pytest.raises(BackendUnavailable):
        await sweeper.run_once()
    assert sweeper.totals == SweepReport(looked=3, dropped=1)
    assert await entry_in_ms(store, watch_entry(SESSION, gone)) is None
    in_ms = await entry_in_ms(store, watch_entry(SESSION, task))
    assert in_ms is not None
    assert in_ms <= 1_500
    await other.aclose()


async def test_sweeping_survives_the_servers_absence_and_says_so_once(
    store: RedisStateStore, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", logger="redis_state.worker.recovery.sweep_loop")
    async with Proxy(settings.url.get_secret_value()) as proxy:
        # Long enough for a busy machine: it may fail only while connections are refused.
        short = {"call_timeout_s": 2.0, "connect_timeout_s": 2.0}
        through = settings.model_copy(update={"url": SecretStr(proxy.url), **short})
        async with RedisStateStore(through) as own:
            sweep_on = sweep_regularly(own, queues=[queue_of(settings)], lease_s=0.4)
            task = asyncio.create_task(sweep_on)
            first = await submitted(store)
            await make_due(store, watch_entry(SESSION, first))
            await eventually(lambda: queued(store), "it sweeps")
            proxy.refuse()
            assert proxy.cut()
            await eventually(lambda: caplog.messages, "it says so")
            refused = proxy.refused
            await eventually(lambda: proxy.refused > refused + 5, "it tries again and again")
            assert [one for one in caplog.messages if "sweeping fails" in one][1:] == []
            assert len(caplog.messages) == 1
            proxy.refuse(refusing=False)
            second = await submitted(store)
            await make_due(store, watch_entry(SESSION, second))

            async def both() -> bool:
                return len(await queued(store)) == 2

            await eventually(both, "it sweeps again")
            assert not task.done()
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()


# A cancelled runner may leave a pipeline to the garbage collector: that is arq's.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.role("any", why="arq's own runner needs more")
async def test_a_worker_sweeps_under_arqs_own_runner_too(store: RedisStateStore) -> None:
    needs_arqs_runner(store.settings.url.get_secret_value())
    task = await orphaned(store)
    options = agent(store.settings, {"answer": _answer}, lease_s=0.4).arq_settings()
    worker = create_worker(options, handle_signals=False)
    running = asyncio.create_task(worker.async_run())
    await make_due(store, watch_entry(SESSION, task))
    async with client_of(store) as client:
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 42

    def is_idle() -> bool:
        return all(job.done() for job in worker.tasks.values())

    await eventually(is_idle, "its job is over")
    running.cancel()
    await asyncio.wait({running})
    with pytest.deprecated_call():
        await worker.close()
    left = [one for one in asyncio.all_tasks() if "sweeper" in one.get_name()]
    assert left == []


async def test_a_worker_that_is_full_sweeps_too(store: RedisStateStore) -> None:
    let_go = asyncio.Event()

    async def stay(ctx: TaskContext) -> None:
        await ctx.progress("begun")
        await let_go.wait()

    handlers: dict[str, Handler] = {"stay": stay, "answer": _answer}
    async with pool(store, handlers, max_tasks=1, lease_s=0.4) as client:
        full = await client.submit("stay", session_id=SESSION)
        await becomes(client, full, TaskStatus.RUNNING)
        task = await submitted(store)
        await make_due(store, watch_entry(SESSION, task))

        async def is_queued() -> bool:
            return f"{SESSION}/{task}:0" in await queued(store)

        await eventually(is_queued, "the full worker has queued it")
        let_go.set()
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 42


@pytest.mark.parametrize("many", sizes(60, 200))
async def test_eight_sweepers_queue_each_of_many_tasks_once_and_all_are_finished(
    store: RedisStateStore, settings: Settings, many: int
) -> None:
    plants = [submitted, all_flushed, orphaned, handed_over, decided]
    tasks = [await plants[number % len(plants)](store) for number in range(many)]
    await send(store, "DEL", key_of_queue(settings))
    for task in tasks:
        await make_due(store, watch_entry(SESSION, task))
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "queue": queue_of(settings),
        "sweepers": 2,
        "processes": 4,
        "limit": 1,
    }
    done: Counter[str] = Counter()
    shares: list[int] = []
    for reports in await run_processes("sweep", [argument] * 4):
        shares.append(sum(report["looked"] for report in reports))
        for report in reports:
            done.update(report)
    assert sum(share > 0 for share in shares) > 1, "they did race"
    assert {name: n for name, n in done.items() if n} == {
        "looked": many,
        "requeued": many * 4 // 5,
        "taken_over": many // 5,
    }
    names = await queued(store)
    assert len(names) == many
    assert {name.split("/")[1].split(":")[0] for name in names} == set(tasks)
    async with pool(store, {"answer": _answer}) as client:
        for task in tasks:
            assert (await client.wait(SESSION, task, timeout_s=30)).result == 42

        async def idle() -> bool:
            return not await queued(store) and not await watched(store)

        await eventually(idle, "nothing is left")
