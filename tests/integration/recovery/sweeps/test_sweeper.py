"""Each gap that a crash can leave, planted; and what a sweep makes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import TokenResolved
from redis_state.models import TaskContextSnapshot, TaskState, TaskStatus, TaskType
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.scripts import IndexedTask, Reply
from redis_state.stores.task_index import TaskIndex
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.report import SweepReport
from redis_state.worker.recovery.sweeper import Sweeper
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import (
    SESSION,
    arq_key,
    key_of_queue,
    pool,
    queue_of,
    queued,
    statuses,
    watched,
)
from tests.support.scripts.replies import clock_ms, clock_passes
from tests.support.tasks.crash_states import (
    MARK_MS,
    all_flushed,
    decide,
    decided,
    entry_in_ms,
    forget_entry,
    handed_over,
    make_due,
    orphaned,
    paused,
    payload_gone,
    queued_as,
    seen,
    send,
    started,
    status_of,
    submitted,
    sweep,
    sweeper_of,
)

# Tasks that wait, and are not in the queue


async def _queue_flushed(store: RedisStateStore) -> str:
    task = await submitted(store)
    await queued_as(store, task)
    await send(store, "DEL", key_of_queue(store.settings))
    return task


@pytest.mark.parametrize(
    ("plant", "epoch"),
    [
        (submitted, 0),
        (_queue_flushed, 0),
        (payload_gone, 0),
        (all_flushed, 0),
        (handed_over, 1),
        (decided, 1),
    ],
    ids=["submitted", "queue flushed", "payload gone", "all flushed", "handed over", "decided"],
)
async def test_a_task_that_waits_and_is_not_queued_is_queued_and_run(
    store: RedisStateStore, plant: Callable[[RedisStateStore], Awaitable[str]], epoch: int
) -> None:
    task = await plant(store)
    job = f"{SESSION}/{task}:{epoch}"
    assert await status_of(store, task) == "PENDING"
    before = await seen(store, task)
    assert not (job in before["queue"] and before["payloads"][epoch])
    assert await sweep(store, task) == SweepReport(looked=1, requeued=1)
    after = await seen(store, task)
    assert after["queue"] == [job]
    assert after["payloads"][epoch] == 1
    assert after["record"] == before["record"]
    assert await status_of(store, task) == "PENDING"
    async with pool(store, {"answer": _answer}) as client:
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 42


async def _answer(_: TaskContext) -> int:
    return 42


async def test_a_task_that_is_queued_is_left_alone_however_long_it_waits(
    store: RedisStateStore,
) -> None:
    tasks = [await submitted(store) for _ in range(40)]
    for task in tasks:
        await queued_as(store, task)
    sweeper = sweeper_of(store, limit=40)
    for _ in range(5):
        for task in tasks:
            await make_due(store, watch_entry(SESSION, task))
        assert await sweeper.run_once() == SweepReport(looked=40)
        assert len(await queued(store)) == 40


async def test_a_job_of_an_earlier_epoch_is_good_enough(store: RedisStateStore) -> None:
    task = await handed_over(store)
    # What arq's own retry leaves: the job's id is that of the run that was handed over.
    await queued_as(store, task, runs=0)
    assert await sweep(store, task) == SweepReport(looked=1)
    assert await queued(store) == [f"{SESSION}/{task}:0"]


async def test_a_task_is_queued_where_it_was_submitted(store: RedisStateStore) -> None:
    task = await submitted(store)
    other = Queue(store, name=f"other-{queue_of(store.settings)}")
    await make_due(store, watch_entry(SESSION, task))
    report = await Sweeper(store, other).run_once()
    assert report == SweepReport(looked=1, requeued=1)
    assert await queued(store) == [f"{SESSION}/{task}:0"]
    assert await send(store, "EXISTS", key_of_queue(store.settings, other.name)) == 0
    await other.aclose()


async def test_a_decision_made_from_elsewhere_goes_to_the_tasks_own_queue(
    store: RedisStateStore,
) -> None:
    task, token = await paused(store)
    async with TaskClient(store, queue="elsewhere") as client:
        await client.approve(token)
        assert await queued(store) == [f"{SESSION}/{task}:1"]
        await send(store, "DEL", key_of_queue(store.settings))
        await client.submit("answer", session_id=SESSION, task_id=task)
    assert await queued(store) == [f"{SESSION}/{task}:1"]


async def test_what_is_queued_again_keeps_its_place_in_the_line(store: RedisStateStore) -> None:
    first = await submitted(store)
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 1)
    second = await submitted(store)
    await queued_as(store, second)
    await sweep(store, first)
    assert await queued(store) == [f"{SESSION}/{first}:0", f"{SESSION}/{second}:0"]


# Leases of the dead


async def test_a_task_of_a_dead_worker_is_taken_over(store: RedisStateStore) -> None:
    task = await orphaned(store)
    before = await seen(store, task)
    assert before["queue"] == [f"{SESSION}/{task}:0"]
    assert before["marks"][0] == b"1"
    assert await sweep(store, task) == SweepReport(looked=1, taken_over=1)
    after = await seen(store, task)
    # What the dead one had picked would stand first in the queue, for minutes.
    assert after["queue"] == [f"{SESSION}/{task}:1"]
    assert after["payloads"] == [0, 1, 0, 0]
    assert await status_of(store, task) == "RUNNING"
    async with pool(store, {"answer": _answer}) as client:
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 42
    assert (await statuses(store, task)).count("RUNNING") == 2


async def test_what_the_one_who_takes_over_picked_and_never_started_is_revived(
    store: RedisStateStore,
) -> None:
    task = await orphaned(store)
    await queued_as(store, task, runs=1)
    record = await store.tasks.load_fields(SESSION, task)
    assert record is not None
    mark = arq_key(store, "in-progress", task, 1)
    await send(store, "SET", mark, f"{record.version} 1", "PX", MARK_MS)
    assert await sweep(store, task) == SweepReport(looked=1, released=1)
    assert await send(store, "EXISTS", mark) == 0


async def test_a_running_task_is_looked_at_again_when_its_lease_runs_out(
    store: RedisStateStore,
) -> None:
    task = await submitted(store)
    await started(store, task, lease_ms=9_000)
    assert await sweep(store, task) == SweepReport(looked=1)
    in_ms = await entry_in_ms(store, watch_entry(SESSION, task))
    assert in_ms is not None
    assert 2_500 < in_ms <= 9_001
    assert await queued(store) == []


# Pauses


async def test_a_pause_that_is_overdue_is_decided_and_its_task_queued(
    store: RedisStateStore,
) -> None:
    task, token = await paused(store, overdue=True)
    assert await status_of(store, task) == "PAUSED"
    assert await sweep(store, task) == SweepReport(looked=1, expired=1, requeued=1)
    assert await status_of(store, task) == "PENDING"
    assert await queued(store) == [f"{SESSION}/{task}:1"]
    with pytest.raises(TokenResolved) as late:
        await decide(store, token, actor="late")
    assert late.value.actor == "timeout"


@pytest.mark.parametrize(("timeout_s", "most_ms"), [(20, 20_000), (600, 60_000)])
async def test_a_paused_task_is_looked_at_again_at_its_deadline(
    store: RedisStateStore, timeout_s: int, most_ms: int
) -> None:
    task, token = await paused(store, timeout=timedelta(seconds=timeout_s))
    assert await sweep(store, task) == SweepReport(looked=1)
    in_ms = await entry_in_ms(store, watch_entry(SESSION, task))
    assert in_ms is not None
    assert most_ms / 2 < in_ms <= most_ms
    await decide(store, token)
    in_ms = await entry_in_ms(store, watch_entry(SESSION, task))
    assert in_ms is not None
    assert in_ms <= 2_000


# Entries with nothing to look at


async def _over(store: RedisStateStore) -> str:
    task = await submitted(store)
    await TaskTransitions(store).finish_run(
        await started(store, task), TaskStatus.COMPLETE, result=1
    )
    return task


async def _never_was(store: RedisStateStore) -> str:
    await TaskBookkeeping(store).inspect_soon(SESSION, "never was")
    return "never was"


async def _cleared(store: RedisStateStore) -> str:
    task = await submitted(store)
    await started(store, task)
    await store.clear_session(SESSION)
    return task


async def _a_hosts(store: RedisStateStore) -> str:
    snapshot = TaskContextSnapshot(session_id=SESSION, task_id="host")
    state = TaskState("host", SESSION, TaskStatus.PAUSED, TaskType.FOREGROUND, 0, snapshot)
    await store.save_task(state)
    await TaskBookkeeping(store).inspect_soon(SESSION, "host")
    return "host"


@pytest.mark.parametrize(
    "plant", [_over, _never_was, _cleared, _a_hosts], ids=["over", "never was", "cleared", "host"]
)
async def test_an_entry_with_nothing_to_look_at_is_taken_off(
    store: RedisStateStore, plant: Callable[[RedisStateStore], Awaitable[str]]
) -> None:
    task = await plant(store)
    before = await seen(store, task)
    assert before["watched"]
    # Who ended it has marked the entry.
    assert await sweep(store, task) == SweepReport(looked=1, dropped=plant is _over)
    assert await seen(store, task) == before | {"watched": False}
    assert await watched(store) == 0


async def test_a_hosts_task_that_a_client_cancels_gets_no_entry(store: RedisStateStore) -> None:
    snapshot = TaskContextSnapshot(session_id=SESSION, task_id="host")
    state = TaskState("host", SESSION, TaskStatus.PENDING, TaskType.FOREGROUND, 0, snapshot)
    await store.save_task(state)
    assert await TaskTransitions(store).cancel(state, "enough")
    assert await watched(store) == 0


async def test_entries_of_another_kind_are_left_to_those_who_know_them(
    store: RedisStateStore,
) -> None:
    watch = WatchList(store.base.scripts, store.base.keys)
    for entry in (b'["later","s","t"]', b"\xff{"):
        await watch.put(entry, delay_ms=0)
    assert await sweeper_of(store).run_once() == SweepReport(looked=2)
    await make_due(store, b"\xff{")
    assert await sweeper_of(store).run_once() == SweepReport(looked=1, dropped=1)
    assert await entry_in_ms(store, b'["later","s","t"]') is not None
    assert await watched(store) == 1


async def test_what_cannot_be_judged_is_put_off_and_the_rest_is_swept(
    store: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    broken, weird, good = [await submitted(store) for _ in range(3)]
    keys = store.base.keys
    await send(store, "SET", keys.task(SESSION, broken), "x", "PX", 60_000)
    await send(store, "HSET", keys.task(SESSION, weird), "status", "ODD")
    for task in (broken, weird, good):
        await make_due(store, watch_entry(SESSION, task))
    assert await sweeper_of(store).run_once() == SweepReport(looked=3, requeued=1)
    assert await queued(store) == [f"{SESSION}/{good}:0"]
    assert len([one for one in caplog.messages if "cannot be swept" in one]) == 2
    for task in (broken, weird):
        assert (await entry_in_ms(store, watch_entry(SESSION, task)) or 0) > 10_000


# What clients and sweepers do to one another


async def test_a_client_that_stalls_before_it_writes_its_task_watches_it_anew(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[SweepReport] = []
    announce = TaskIndex.announce

    async def stalled(self: TaskIndex, task: IndexedTask, *, delay_ms: int) -> Reply:
        reply = await announce(self, task, delay_ms=delay_ms if swept else 1)
        if not swept:
            await clock_passes(store.base.scripts, int(reply.facts[0]))
            swept.append(await sweeper_of(store).run_once())
            await make_due(store, task.entry)
            swept.append(await sweeper_of(store).run_once())
        return reply

    monkeypatch.setattr(TaskIndex, "announce", stalled)
    task = await submitted(store)
    assert swept == [SweepReport(looked=1), SweepReport(looked=1, dropped=1)]
    assert await status_of(store, task) == "PENDING"
    assert await entry_in_ms(store, watch_entry(SESSION, task)) is not None


async def test_a_decision_that_comes_while_a_sweeper_looks_is_not_put_off(
    store: RedisStateStore,
) -> None:
    task, token = await paused(store)
    entry = watch_entry(SESSION, task)
    await make_due(store, entry)
    watch = WatchList(store.base.scripts, store.base.keys)
    (claim,) = await watch.claim_due()
    await decide(store, token)
    # The sweeper saw the task paused, and settles after the decision.
    assert await watch.settle([(claim, 60_000)]) == 0
    in_ms = await entry_in_ms(store, entry)
    assert in_ms is not None
    assert in_ms <= 2_000


async def test_a_sweeper_that_dies_with_its_claims_loses_nothing(store: RedisStateStore) -> None:
    task = await submitted(store)
    await make_due(store, watch_entry(SESSION, task))
    watch = WatchList(store.base.scripts, store.base.keys)
    assert len(await watch.claim_due(hold_ms=200)) == 1
    sweeper = sweeper_of(store)
    assert await sweeper.run_once() == SweepReport()

    async def found() -> bool:
        return (await sweeper.run_once()).requeued == 1

    await eventually(found, "its claim has run out")
    assert await queued(store) == [f"{SESSION}/{task}:0"]


async def test_a_lost_entry_is_there_again_once_the_task_is_started(
    store: RedisStateStore,
) -> None:
    task = await submitted(store)
    entry = watch_entry(SESSION, task)
    await forget_entry(store, entry)
    await started(store, task, lease_ms=9_000)
    in_ms = await entry_in_ms(store, entry)
    assert in_ms is not None
    assert 2_500 < in_ms <= 9_000


def test_a_report_adds_up() -> None:
    report = SweepReport(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    report += SweepReport(1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
    assert list(asdict(report).values()) == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
