"""Tasks that kill their workers: they are failed, and listed as dead letters."""

from __future__ import annotations

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import InvalidField, LeaseLost
from redis_state.models import TaskStatus
from redis_state.scripts import Announcement
from redis_state.worker import DeadPage, TaskContext
from redis_state.worker.recovery.report import SweepReport
from redis_state.worker.tasks.dead_letters import record_dead
from redis_state.worker.tasks.started import NotStarted
from redis_state.worker.tasks.transitions import TaskTransitions
from redis_state.worker.tasks.views.cursors import write_cursor
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
    given_up,
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


async def test_dead_letters_are_paged_by_place_while_some_leave_and_others_come(
    store: RedisStateStore,
) -> None:
    dead = [await given_up(store) for _ in range(6)]
    index = store.base.keys.dead_tasks()

    def names(page: DeadPage) -> list[str]:
        return [task.task_id for task in page.tasks]

    async with client_of(store) as client:
        first = await client.list_dead(limit=2)
        assert names(first) == [dead[5], dead[4]]
        # Those of the first page leave: what follows does not move up past the cursor.
        await client.retry(SESSION, dead[5])
        for task in dead[4:]:
            await send(store, "ZREM", index, f'["{SESSION}","{task}"]')
        second = await client.list_dead(limit=2, after=first.cursor)
        assert names(second) == [dead[3], dead[2]]
        # Nor is it pushed back by what is given up meanwhile.
        latest = [await given_up(store) for _ in range(2)]
        third = await client.list_dead(limit=2, after=second.cursor)
        assert (names(third), third.cursor) == ([dead[1], dead[0]], None)
        every = await client.list_dead(limit=6)
        assert (names(every), every.cursor) == ([*latest[::-1], *dead[3::-1]], None)
        assert [task.task_id for task in await client.dead(limit=3)] == names(every)[:3]


async def test_dead_letters_of_one_microsecond_are_each_on_one_page(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.worker.tasks.views.dead_list._READ", 1)
    dead = [await given_up(store) for _ in range(3)]
    index = store.base.keys.dead_tasks()
    for task in dead:
        await send(store, "ZADD", index, "XX", "4000000000000000", f'["{SESSION}","{task}"]')
    async with client_of(store) as client:
        page = await client.list_dead(limit=1)
        listed = [*page.tasks]
        while page.cursor is not None:
            page = await client.list_dead(limit=1, after=page.cursor)
            listed += page.tasks
    assert [task.task_id for task in listed] == sorted(dead, reverse=True)


async def test_a_page_looks_at_so_many_entries_and_goes_on_behind_them(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.worker.tasks.views.dead_list._MOST_READ", 2)
    monkeypatch.setattr("redis_state.worker.tasks.views.dead_list._READ", 2)
    task = await given_up(store)
    for _ in range(3):
        await record_dead(store, SESSION, f"gone-{_}")
    async with client_of(store) as client:
        page = await client.list_dead()
        assert page.tasks == []
        page = await client.list_dead(after=page.cursor)
        assert [each.task_id for each in page.tasks] == [task]
        assert [each.task_id for each in await client.dead()] == [task]


async def test_what_is_no_cursor_or_size_of_a_page_of_dead_letters_is_refused(
    store: RedisStateStore,
) -> None:
    for _ in range(2):
        await given_up(store)
    async with client_of(store) as client:
        other = (await client.find(limit=1)).cursor
        own = (await client.list_dead(limit=1)).cursor
        assert None not in (other, own)
        assert own is not None
        for after in ("", "nonsense", "é", other, own[:12], own[1:], write_cursor("dead", b"x")):
            with pytest.raises(InvalidField, match="after"):
                await client.list_dead(after=after)
        for limit in (0, 1001):
            with pytest.raises(InvalidField, match="limit"):
                await client.list_dead(limit=limit)


async def test_a_poisoned_task_ends_in_a_pool_that_lives_on(store: RedisStateStore) -> None:
    task = await submitted(store)
    for _ in range(4):
        await _dies(store, task)
    async with pool(store, {"answer": _answer}, lease_s=0.4) as client:
        ended = await becomes(client, task, TaskStatus.FAILED)
        assert "4 workers" in (ended.error or "")
        other = await client.submit("answer", session_id=SESSION)
        assert (await client.wait(SESSION, other, timeout_s=60)).result == 42
