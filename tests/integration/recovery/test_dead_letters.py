"""Tasks that kill their workers: they are failed, and listed as dead letters."""

from __future__ import annotations

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import LeaseLost
from redis_state.models import TaskStatus
from redis_state.scripts import Announcement
from redis_state.worker import TaskContext
from redis_state.worker.recovery.report import SweepReport
from redis_state.worker.tasks.started import NotStarted
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import (
    SESSION,
    becomes,
    client_of,
    pool,
    statuses,
)
from tests.support.scripts.replies import clock_ms, clock_passes
from tests.support.tasks.crash_states import (
    decide,
    handed_over,
    pause,
    seen,
    send,
    started,
    status_of,
    submitted,
    sweep,
)


async def _answer(_: TaskContext) -> int:
    return 42


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
    await store.base.scripts.add_member(index, member=f'["{SESSION}","{task}"]', ttl_ms=60_000)
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
