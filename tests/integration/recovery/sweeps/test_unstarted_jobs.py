"""Jobs that were claimed and never started: a sweep gives them to another worker."""

from __future__ import annotations

from functools import partial

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import BackendError
from redis_state.models import TaskStatus
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.old_claims import OldClaims
from redis_state.worker.recovery.report import SweepReport
from redis_state.worker.recovery.sweeper import Sweeper
from redis_state.worker.tasks.changes import TaskChanges
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import (
    SESSION,
    arq_key,
    key_of_queue,
    pool,
    queue_of,
    queued,
    statuses,
)
from tests.support.scripts.replies import clock_ms, clock_passes
from tests.support.tasks.crash_states import (
    MARK_MS,
    claimed,
    claims_of,
    entry_in_ms,
    forget_entry,
    make_due,
    pause,
    picked,
    queued_as,
    seen,
    send,
    started,
    submitted,
    sweep,
    sweeper_of,
)


async def _answer(_: TaskContext) -> int:
    return 42


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


async def test_a_claimed_task_whose_record_is_damaged_holds_up_no_other(
    store: RedisStateStore,
) -> None:
    damaged, other = await submitted(store), await submitted(store)
    for task in (damaged, other):
        await queued_as(store, task)
        await claimed(store, task)
        await forget_entry(store, watch_entry(SESSION, task))
    record = store.base.keys.task(SESSION, damaged)
    was = await send(store, "HGET", record, "version")
    await send(store, "HSET", record, "version", "x")
    sweeper = sweeper_of(store)

    async def released(task: str) -> bool:
        await sweeper.run_once()
        return f"{SESSION}/{task}:0" in await queued(store)

    await eventually(partial(released, other), "the claim of the other is old enough")
    assert await queued(store) == [f"{SESSION}/{other}:0"]
    # It is looked at again, and so found once it is repaired.
    assert await entry_in_ms(store, watch_entry(SESSION, damaged)) is not None
    await send(store, "HSET", record, "version", was)
    await make_due(store, watch_entry(SESSION, damaged))
    await eventually(partial(released, damaged), "the repaired one is queued again")


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


@pytest.mark.parametrize("change", ["picked again", "another version"])
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
    if change == "picked again":
        await picked(store, task)
    else:
        assert await TaskChanges(store).prioritize(SESSION, task, 5)
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
