"""Each gap that a crash can leave, planted; and what a sweep makes of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from arq.worker import create_worker

from redis_state import RedisStateStore, Settings
from redis_state.errors import BackendError, BackendUnavailable, LeaseLost, TokenResolved
from redis_state.models import TaskContextSnapshot, TaskState, TaskStatus, TaskType
from redis_state.primitives.watchlist import WatchList
from redis_state.scripts import Announcement, IndexedTask
from redis_state.stores.task_index import TaskIndex
from redis_state.testing import eventually
from redis_state.worker import Handler, TaskClient, TaskContext
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.old_claims import OldClaims
from redis_state.worker.recovery.report import SweepReport
from redis_state.worker.recovery.sweep_loop import sweep_regularly
from redis_state.worker.recovery.sweeper import Sweeper
from redis_state.worker.tasks.moves import watch_entry
from redis_state.worker.tasks.started import NotStarted, StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import (
    SESSION,
    agent,
    arq_key,
    becomes,
    client_of,
    key_of_queue,
    pool,
    queue_of,
    queued,
    statuses,
    watched,
)
from tests.support.scripts import clock_ms, clock_passes
from tests.support.servers.faults import Proxy, needs_arqs_runner, run_processes
from tests.support.servers.nodes import primaries
from tests.support.sizes import sizes
from tests.support.tasks.crash_states import (
    MARK_MS,
    claimed,
    claims_of,
    close_queues,
    decide,
    decided,
    entry_in_ms,
    forget_entry,
    handed_over,
    make_due,
    orphaned,
    pause,
    paused,
    picked,
    queued_as,
    seen,
    send,
    started,
    submitted,
    sweeper_of,
)


@pytest.fixture(autouse=True)
async def _no_queue_stays_open() -> AsyncIterator[None]:
    yield
    await close_queues()


async def sweep(store: RedisStateStore, task: str, **options: Any) -> SweepReport:
    """Look at a task now, and once more: the second time nothing may change."""
    await make_due(store, watch_entry(SESSION, task))
    sweeper = sweeper_of(store, **options)
    report = await sweeper.run_once()
    assert report.looked == 1
    after = await seen(store, task)
    await make_due(store, watch_entry(SESSION, task))
    again = await sweeper.run_once()
    # Only an entry that two looks in a row have found to be over is taken out.
    status = await store.tasks.look(SESSION, task)
    over = status is None or status.status.is_terminal or not status.ours
    assert again == SweepReport(looked=int(after["watched"]), dropped=after["watched"] and over)
    watched = after["watched"] and not again.dropped
    assert await seen(store, task) == after | {"watched": watched}
    return report


async def status_of(store: RedisStateStore, task: str) -> str | None:
    state = await store.tasks.load(SESSION, task)
    return None if state is None else state.status.value


# Tasks that wait, and are not in the queue


async def _queue_flushed(store: RedisStateStore) -> str:
    task = await submitted(store)
    await queued_as(store, task)
    await send(store, "DEL", key_of_queue(store.settings))
    return task


async def _payload_gone(store: RedisStateStore) -> str:
    task = await submitted(store)
    await queued_as(store, task)
    await send(store, "DEL", arq_key(store, "job", task))
    return task


async def _all_flushed(store: RedisStateStore) -> str:
    task = await _payload_gone(store)
    await send(store, "DEL", key_of_queue(store.settings))
    return task


@pytest.mark.parametrize(
    ("plant", "epoch"),
    [
        (submitted, 0),
        (_queue_flushed, 0),
        (_payload_gone, 0),
        (_all_flushed, 0),
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
    sweeper = sweeper_of(store)
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


# Jobs that were picked and never started


async def test_what_a_worker_claimed_and_never_started_is_given_to_another(
    store: RedisStateStore,
) -> None:
    task = await submitted(store)
    await queued_as(store, task)
    await claimed(store, task)
    patient, sweeper = sweeper_of(store, lease_ms=400_000), sweeper_of(store)
    reports: list[SweepReport] = []

    async def released(by: Sweeper = sweeper) -> bool:
        # The worker that claimed it may be about to start it. Its entry is not due all the while.
        reports.append(await by.run_once())
        return await queued(store) == [f"{SESSION}/{task}:0"]

    await make_due(store, watch_entry(SESSION, task))
    assert not await released(patient)
    in_ms = await entry_in_ms(store, watch_entry(SESSION, task))
    assert in_ms is not None
    assert in_ms <= 100_000
    await forget_entry(store, watch_entry(SESSION, task))
    await eventually(released, "its claim is old enough")
    assert sum(report.released for report in reports) == 1
    assert await send(store, "ZCARD", claims_of(store)) == 0
    async with pool(store, {"answer": _answer}) as client:
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 42
        assert await statuses(store, task) == ["PENDING", "RUNNING", "COMPLETE"]


async def test_claims_of_tasks_that_run_are_left_alone_and_those_of_others_are_ended(
    store: RedisStateStore,
) -> None:
    """As of a worker that dies after a task's end, and before that of its claim: when no entry of
    the watch list leads there, or only one that was claimed before the job was.
    """
    tasks = {name: await submitted(store) for name in ("runs", "ended", "paused", "gone")}
    runs: dict[str, StartedRun] = {}
    for name, task in tasks.items():
        await queued_as(store, task)
        await claimed(store, task)
        runs[name] = await started(store, task)
        await forget_entry(store, watch_entry(SESSION, task))
    await TaskTransitions(store).finish_run(runs["ended"], TaskStatus.COMPLETE)
    await pause(store, runs["paused"])
    for name in ("ended", "paused"):
        await forget_entry(store, watch_entry(SESSION, tasks[name]))
    await send(store, "DEL", store.base.keys.task(SESSION, tasks["gone"]))
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 200)
    sweeper = sweeper_of(store)
    for _ in range(2):
        assert await sweeper.run_once() == SweepReport()
    left = await send(store, "ZRANGE", claims_of(store), 0, -1)
    assert [claim.decode().rpartition("/")[2] for claim in left] == [tasks["runs"]]
    assert await queued(store) == []


async def test_a_claim_that_was_made_after_it_was_listed_stays(store: RedisStateStore) -> None:
    task = await submitted(store)
    await queued_as(store, task)
    await claimed(store, task)
    await TaskTransitions(store).finish_run(await started(store, task), TaskStatus.COMPLETE)
    queue = Queue(store, name=queue_of(store.settings))
    claims = OldClaims(store, queue, queues=[queue.name], patience_ms=100)
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 200)
    listed = await claims.read()
    assert not isinstance(listed, BackendError)
    # A worker ends the claim, and another one claims a late job of the task.
    await queued_as(store, task)
    await claimed(store, task)
    assert await claims.release(listed) == []
    assert await send(store, "ZCARD", claims_of(store)) == 1
    # That one is listed too, once it is old enough.
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 200)
    again = await claims.read()
    assert not isinstance(again, BackendError)
    await claims.release(again)
    assert await send(store, "ZCARD", claims_of(store)) == 0


async def test_a_task_whose_worker_died_as_it_started_is_inspected_when_its_lease_runs_out(
    store: RedisStateStore,
) -> None:
    task = await submitted(store)
    await queued_as(store, task)
    await claimed(store, task)
    await started(store, task, lease_ms=3_000)
    # As if the worker had died before it could say so; and the task had waited for long before.
    entry = watch_entry(SESSION, task)
    await WatchList(store.base.scripts, store.base.keys).put(entry, delay_ms=60_000, sooner=True)
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 200)
    assert await sweeper_of(store).run_once() == SweepReport()
    in_ms = await entry_in_ms(store, entry)
    assert in_ms is not None
    assert in_ms <= 3_000


async def test_what_arqs_own_worker_picked_and_never_started_is_given_to_another(
    store: RedisStateStore,
) -> None:
    task = await submitted(store)
    await queued_as(store, task)
    await picked(store, task)
    mark = arq_key(store, "in-progress", task)
    sweeper = sweeper_of(store)

    async def released() -> bool:
        # The mark stays at first, its life too.
        await sweeper.run_once()
        return not await send(store, "EXISTS", mark)

    await make_due(store, watch_entry(SESSION, task))
    assert not await released()
    assert 0 < await send(store, "PTTL", mark) <= MARK_MS
    await eventually(released, "it was seen twice")
    assert sweeper.totals.released == 1
    assert await queued(store) == [f"{SESSION}/{task}:0"]


@pytest.mark.parametrize("change", ["picked anew", "another version"])
async def test_the_patience_begins_anew_with_each_pick_and_each_version(
    store: RedisStateStore, change: str
) -> None:
    task = await submitted(store)
    await queued_as(store, task)
    await picked(store, task)
    # A patience that the two looks of a sweep do not use up by themselves.
    await sweep(store, task, lease_ms=8_000)
    mark = arq_key(store, "in-progress", task)
    first = await send(store, "GET", mark)
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 2_000)
    if change == "picked anew":
        await picked(store, task)
    else:
        assert await TaskTransitions(store).prioritize(SESSION, task, 5)
    assert await sweep(store, task, lease_ms=8_000) == SweepReport(looked=1)
    assert await send(store, "GET", mark) not in (None, first)


async def test_a_job_in_a_live_workers_hands_is_left_alone(store: RedisStateStore) -> None:
    task = await submitted(store)
    await queued_as(store, task)
    await claimed(store, task)
    await started(store, task)
    assert await sweep(store, task) == SweepReport(looked=1)
    assert await send(store, "ZCARD", claims_of(store)) == 1


@pytest.mark.parametrize("lost", ["place", "payload"])
async def test_what_was_picked_and_then_lost_is_queued_anew(
    store: RedisStateStore, lost: str
) -> None:
    task = await submitted(store)
    await queued_as(store, task)
    await picked(store, task)
    await send(store, "SET", arq_key(store, "in-progress", task), "1 1", "PX", MARK_MS)
    gone = key_of_queue(store.settings) if lost == "place" else arq_key(store, "job", task)
    await send(store, "DEL", gone)
    assert await sweep(store, task) == SweepReport(looked=1, requeued=1)
    after = await seen(store, task)
    assert (after["queue"], after["payloads"][0]) == ([f"{SESSION}/{task}:0"], 1)
    assert after["marks"][0] is None


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
    await TaskTransitions(store).inspect_soon(SESSION, "never was")
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
    await TaskTransitions(store).inspect_soon(SESSION, "host")
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
    assert await sweep(store, task) == SweepReport(looked=1)
    assert await seen(store, task) == before | {"watched": False}
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

    async def stalled(self: TaskIndex, task: IndexedTask, *, delay_ms: int) -> tuple[int, bool]:
        due_ms, known = await announce(self, task, delay_ms=delay_ms if swept else 1)
        if not swept:
            await clock_passes(store.base.scripts, due_ms)
            swept.append(await sweeper_of(store).run_once())
            await make_due(store, task.entry)
            swept.append(await sweeper_of(store).run_once())
        return due_ms, known

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


# Cost and trouble


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
            assert 0 < store.transport.sender.batches - before <= 2 * 3 * nodes
        assert sum(looked) == 100
        assert max(looked) <= 16
        for number in range(100):
            await make_due(store, watch_entry(SESSION, f"gone-{number}"))
    assert sweeper.totals == SweepReport(looked=200, dropped=100)


async def test_with_the_queue_away_the_rest_is_swept_and_nothing_is_lost(
    store: RedisStateStore, settings: Settings, unused_tcp_port: int
) -> None:
    away = SecretStr(f"redis://127.0.0.1:{unused_tcp_port}/0")
    task, gone = await submitted(store), "gone"
    await TaskTransitions(store).inspect_soon(SESSION, gone)
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


# Many at once


@pytest.mark.parametrize("many", sizes(60, 200))
async def test_eight_sweepers_queue_each_of_many_tasks_once_and_all_are_finished(
    store: RedisStateStore, settings: Settings, many: int
) -> None:
    plants = [submitted, _all_flushed, orphaned, handed_over, decided]
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


# Poisoned tasks


async def _dies(store: RedisStateStore, task: str) -> None:
    await started(store, task, lease_ms=1)
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 1)


async def test_a_task_that_kills_its_workers_is_failed_and_listed(store: RedisStateStore) -> None:
    task = await submitted(store)
    for _ in range(4):
        await _dies(store, task)
    async with client_of(store) as client:
        assert await client.dead() == []
        found = await TaskTransitions(store).start(
            SESSION, task, owner="fifth", lease_ms=60_000, worker="w"
        )
        reason = "given up: 4 workers in a row died, or stalled, while they ran it"
        assert found == NotStarted(reason)
        state = await client.get(SESSION, task)
        assert state is not None
        assert (state.status, state.error) == (TaskStatus.FAILED, reason)
        assert [dead.task_id for dead in await client.dead()] == [task]
        assert await client.dead(limit=0) == []
    lease = await send(store, "HGET", store.base.keys.lease(SESSION, task), "owner")
    assert lease == b""
    index = store.base.keys.dead_tasks()
    assert 0 < await send(store, "PTTL", index) <= 7 * 24 * 3600 * 1000


async def test_a_sweeper_fails_it_without_a_worker(store: RedisStateStore) -> None:
    task = await submitted(store)
    for _ in range(3):
        await _dies(store, task)
    report = await sweep(store, task, max_crashes=2)
    assert report == SweepReport(looked=1, failed=1)
    async with client_of(store) as client:
        (dead,) = await client.dead()
    assert dead.error == "given up: 3 workers in a row died, or stalled, while they ran it"
    assert (await statuses(store, task))[-1] == "FAILED"


async def test_a_holder_that_lives_after_all_writes_nothing_once_its_task_is_given_up(
    store: RedisStateStore,
) -> None:
    task = await submitted(store)
    life = TaskTransitions(store)
    run = await started(store, task, lease_ms=60_000)
    assert not await life.dead_letter(SESSION, task, died=4)
    assert await status_of(store, task) == "RUNNING"
    await send(store, "HSET", store.base.keys.lease(SESSION, task), "expires", 0)
    assert await life.dead_letter(SESSION, task, died=4)
    with pytest.raises(LeaseLost):
        await life.finish_run(run, TaskStatus.COMPLETE)
    assert await status_of(store, task) == "FAILED"


async def test_a_task_that_does_not_run_is_not_given_up(store: RedisStateStore) -> None:
    task = await handed_over(store)
    before = await seen(store, task)
    assert not await TaskTransitions(store).dead_letter(SESSION, task, died=4)
    after = await seen(store, task)
    assert after | {"lease": None} == before | {"lease": None}
    await started(store, task)


@pytest.mark.parametrize("how", ["hand over", "pause"])
async def test_a_clean_end_of_a_run_forgets_those_that_died_before(
    store: RedisStateStore, how: str
) -> None:
    task = await submitted(store)
    life = TaskTransitions(store)
    for _ in range(3):
        await _dies(store, task)
    run = await started(store, task)
    if how == "hand over":
        await life.finish_run(run, TaskStatus.PENDING)
    else:
        await decide(store, await pause(store, run))
    for _ in range(4):
        await _dies(store, task)
    found = await life.start(SESSION, task, owner="last", lease_ms=1, worker="w")
    assert isinstance(found, NotStarted)


async def test_a_crash_between_the_list_and_the_move_is_made_good(store: RedisStateStore) -> None:
    task = await submitted(store)
    for _ in range(5):
        # The fifth is the start after which its worker would give it up, and dies instead.
        reply = await store.base.scripts.start_task(
            store.tasks.keys(SESSION, task),
            {"status": b"RUNNING"},
            owner=f"{_}",
            lease_ms=1,
            write=f"{_}",
            ttl_ms=60_000,
            announcement=_silence(store),
            steering=store.base.keys.steering(SESSION),
        )
        assert reply.word == "OK"
        await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 1)
    index = store.base.keys.dead_tasks()
    await store.base.scripts.note_member(index, member=f'["{SESSION}","{task}"]', ttl_ms=60_000)
    async with client_of(store) as client:
        assert await client.dead() == []
        assert await sweep(store, task) == SweepReport(looked=1, failed=1)
        assert [dead.task_id for dead in await client.dead()] == [task]


def _silence(store: RedisStateStore) -> Announcement:
    return Announcement(store.updates.keys(SESSION), 100, 60_000, [(b"u", b"[]")])


async def test_a_poisoned_task_ends_in_a_pool_that_lives_on(store: RedisStateStore) -> None:
    task = await submitted(store)
    for _ in range(4):
        await _dies(store, task)
    async with pool(store, {"answer": _answer}, lease_s=0.4) as client:
        ended = await becomes(client, task, TaskStatus.FAILED)
        assert "4 workers" in (ended.error or "")
        other = await client.submit("answer", session_id=SESSION)
        assert (await client.wait(SESSION, other, timeout_s=60)).result == 42


def test_a_report_adds_up() -> None:
    report = SweepReport(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    report += SweepReport(1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
    assert list(asdict(report).values()) == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
