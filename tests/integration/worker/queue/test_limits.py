"""Limits of queues with real pools: exact in every process, changed while they hold, and fair."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any
from unittest.mock import ANY

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings, TaskFailed
from redis_state.errors import InvalidField
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import (
    Budget,
    KeyLimits,
    Rate,
    RetryPolicy,
    TaskClient,
    TaskContext,
    guarded,
    retried,
)
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from tests.support.commands import cli
from tests.support.processes.pools import (
    SESSION,
    becomes,
    client_of,
    job_of,
    key_of_queue,
    pool,
    queue_of,
    statuses,
)
from tests.support.processes.worker_processes import stop, worker_process
from tests.support.scripts.replies import HOUR, clock_ms

pytestmark = pytest.mark.worker


class Gate:
    """Counts how many run, of each key, and lets them end when it is opened."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.begun: list[str] = []
        self.opened = asyncio.Event()

    async def __call__(self, ctx: TaskContext) -> None:
        self.begun.append(ctx.input)
        for name in (ctx.input, ""):
            self.running[name] += 1
            self.most[name] = max(self.most[name], self.running[name])
        await self.opened.wait()
        for name in (ctx.input, ""):
            self.running[name] -= 1


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    async with client_of(store) as opened:
        yield opened


async def test_a_queue_and_its_keys_have_no_more_running_than_is_set(
    store: RedisStateStore, client: TaskClient
) -> None:
    gate, name = Gate(), queue_of(store.settings)
    await client.queues.limit(name, running=5, per_key=2)
    await client.queues.limit_key(name, "vip", running=3)
    tasks = [
        await client.submit("work", key, session_id=SESSION, limit_key=key)
        for key in ("acme", "vip", "other")
        for _ in range(4)
    ]
    async with pool(store, {"work": gate}, name="one"), pool(store, {"work": gate}, name="two"):
        await eventually(lambda: gate.running[""] == 5, "as many run as may")
        assert (await client.queues.get(name)).waiting == 7
        gate.opened.set()
        for task in tasks:
            await client.wait(SESSION, task, timeout_s=60)
    assert gate.most[""] == 5
    assert gate.most["acme"] == gate.most["other"] == 2
    assert gate.most["vip"] <= 3


async def test_limits_are_changed_while_they_hold_and_read_back(
    store: RedisStateStore, client: TaskClient
) -> None:
    gate, name = Gate(), queue_of(store.settings)
    await client.queues.limit(name, running=1, rate=Rate(100, timedelta(seconds=1)))
    await client.queues.limit_key(name, "k k", running=7)
    info = await client.queues.get(name)
    assert (info.limit, info.per_key, info.rate) == (1, None, Rate(100, timedelta(seconds=1)))
    assert info.keys == {"k k": KeyLimits(running=7)}
    for _ in range(4):
        await client.submit("work", "", session_id=SESSION)
    async with pool(store, {"work": gate}):
        await eventually(lambda: gate.running[""] >= 1, "one runs")
        await client.queues.limit(name, running=3)
        await eventually(lambda: len(gate.begun) == 3, "three run")
        await client.queues.pause(name)
        await client.queues.limit(name, running=None)
        assert (await client.queues.get(name)).paused
        gate.opened.set()
        await eventually(lambda: not gate.running[""], "they end")
        assert len(gate.begun) == 3
        await client.queues.resume(name)
        await eventually(lambda: len(gate.begun) == 4, "the last one begins")

        async def empty() -> bool:
            found = await client.queues.get(name)
            return not (found.waiting or found.running)

        await eventually(empty, "it is empty")
    assert name not in [info.name for info in await TaskClient(store).queues.list()]


async def test_who_waits_is_listed_by_key_with_the_age_of_the_oldest(
    store: RedisStateStore, settings: Settings, client: TaskClient
) -> None:
    name = queue_of(settings)
    await client.queues.limit(name, per_key=1)
    for key, count in (("a c/me", 3), ("b", 1)):
        for _ in range(count):
            await client.submit("work", key, session_id=SESSION, limit_key=key, priority=3)
    await client.submit("work", "s", session_id="s:1", in_turn=True)
    gate = Gate()
    # A priority makes a task wait for no longer.
    assert 0 < (await client.queues.get(name)).oldest_s < 60
    async with pool(store, {"work": gate}):
        await eventually(lambda: gate.running[""] == 3, "one of each runs")
        found = await client.queues.keys(name)
        assert [(each.limit_key, each.in_turn, each.waiting, each.running) for each in found] == [
            ("a c/me", None, 2, 1),
            (None, "s:1", 0, 1),
            ("b", None, 0, 1),
        ]
        assert [0 < each.oldest_s < 60 for each in found] == [True, False, False]
        assert await client.queues.keys(name, limit=1) == [replace(found[0], oldest_s=ANY)]
        ran = await cli(settings, "queues", "keys", name, "--json", "--limit", "2")
        assert [each["waiting"] for each in ran.document] == [2, 0]
        ran = await cli(settings, "queues", "keys", name)
        assert "session s:1, in turn" in ran.out
        gate.opened.set()
        await eventually(lambda: len(gate.begun) == 5 and not gate.running[""], "all have ended")

        async def forgotten() -> bool:
            return not await client.queues.keys(name)

        await eventually(forgotten, "no key is left")
    assert (await client.queues.get(name)).oldest_s == 0
    with pytest.raises(InvalidField):
        await client.queues.keys(name, limit=0)


async def test_the_tasks_of_a_session_run_in_turn_and_other_sessions_beside_them(
    store: RedisStateStore, client: TaskClient
) -> None:
    gate = Gate()
    for session in ("a", "b"):
        for _ in range(3):
            await client.submit("work", session, session_id=session, in_turn=True)
    async with pool(store, {"work": gate}):
        await eventually(lambda: gate.running[""] == 2, "one of each runs")
        gate.opened.set()
        await eventually(lambda: len(gate.begun) == 6, "all have run")
        await eventually(lambda: not gate.running[""], "all have ended")
    assert (gate.most["a"], gate.most["b"]) == (1, 1)


async def test_a_paused_task_holds_no_permit(store: RedisStateStore, client: TaskClient) -> None:
    async def ask(ctx: TaskContext) -> str:
        return (await ctx.approval("go on?")).actor

    async def quick(_: TaskContext) -> str:
        return "quick"

    await client.queues.limit(queue_of(store.settings), running=1)
    async with pool(store, {"ask": ask, "quick": quick}):
        waits = await client.submit("ask", session_id=SESSION)
        await becomes(client, waits, TaskStatus.PAUSED)
        other = await client.submit("quick", session_id=SESSION)
        assert await client.result(SESSION, other, timeout_s=60) == "quick"
        (pause,) = await client.pauses(SESSION)
        await client.approve(str(pause.pause_id), actor="ann")
        assert await client.result(SESSION, waits, timeout_s=60) == "ann"


async def test_a_parent_and_its_children_may_share_a_key_that_one_task_at_a_time_has(
    store: RedisStateStore, client: TaskClient
) -> None:
    gate = Gate()
    gate.opened.set()

    async def parent(ctx: TaskContext) -> int:
        children = [await ctx.spawn("work", "acme", limit_key="acme") for _ in range(3)]
        for child in children:
            await ctx.join(child)
        return len(gate.begun)

    async def wrong(ctx: TaskContext) -> None:
        await ctx.spawn("work", limit_key="")

    await client.queues.limit(queue_of(store.settings), per_key=1)
    async with pool(store, {"parent": parent, "work": gate, "wrong": wrong}):
        # A parent that joins has given back its permit.
        task = await client.submit("parent", session_id=SESSION, limit_key="acme")
        assert await client.result(SESSION, task, timeout_s=60) == 3
        assert gate.most["acme"] == 1
        task = await client.submit("wrong", session_id=SESSION)
        assert "limit_key" in ((await client.wait(SESSION, task, timeout_s=60)).error or "")


async def test_a_killed_workers_permits_are_exact_and_come_back_with_its_leases(
    store: RedisStateStore, settings: Settings, client: TaskClient
) -> None:
    await client.queues.limit(queue_of(settings), running=2, per_key=1)
    async with worker_process(settings, "one", lease_s=1.0) as one:
        # Those of one millisecond are in the order of their ids.
        tasks = [
            await client.submit("linger", session_id=SESSION, limit_key=key, task_id=f"t{number}")
            for number, key in enumerate(("a", "a", "b"))
        ]

        async def running() -> list[str]:
            states = [(task, await client.get(SESSION, task)) for task in tasks]
            return [task for task, state in states if state and state.status is TaskStatus.RUNNING]

        async def two_run() -> bool:
            return len(await running()) == 2

        await eventually(two_run, "one task of each key runs")
        assert await running() == [tasks[0], tasks[2]]
        assert await stop(one, signal.SIGKILL) == -signal.SIGKILL
    async with worker_process(settings, "two", lease_s=1.0):
        # In a later run each ends at once.
        for task in (tasks[0], tasks[2]):
            assert (await client.wait(SESSION, task, timeout_s=60)).result == "two"
        await becomes(client, tasks[1], TaskStatus.RUNNING)
        await client.cancel(SESSION, tasks[1], hard=True)
        await client.wait(SESSION, tasks[1], timeout_s=60)

        async def none_held() -> bool:
            return not (await client.queues.get(queue_of(settings))).running

        await eventually(none_held, "no permit is held")
    # The log has all moves in their order: the dead worker's permits were free with its leases,
    # and not before.
    keys, running_now = dict(zip(tasks, "aab", strict=True)), set[str]()
    for update in await store.list_updates(SESSION):
        if update.update_type.value == "STATUS_CHANGE":
            if update.content["status"] == "RUNNING":
                running_now.add(update.task_id)
            else:
                running_now.discard(update.task_id)
        assert len(running_now) <= 2
        assert max(Counter(keys[task] for task in running_now).values(), default=0) <= 1
    assert [(await statuses(store, task)).count("RUNNING") for task in tasks] == [2, 1, 2]


# Time


async def test_a_task_begins_after_its_delay_and_not_before(
    store: RedisStateStore, client: TaskClient
) -> None:
    async def now(_: TaskContext) -> int:
        return await clock_ms(store.base.scripts)

    async with pool(store, {"now": now}):
        before = await clock_ms(store.base.scripts)
        soon = timedelta(milliseconds=300)
        tasks = [
            await client.submit("now", session_id=SESSION, delay=soon),
            await client.submit("now", session_id=SESSION, delay=soon, limit_key="k"),
            await client.submit("now", session_id=SESSION, at=datetime.now(UTC) - soon),
            await client.submit("now", session_id=SESSION, delay=timedelta(hours=1)),
        ]
        began = [await client.result(SESSION, task, timeout_s=60) for task in tasks[:3]]
        assert began[0] - before >= 300
        assert began[1] - before >= 300
        info = await client.queues.get(queue_of(store.settings))
        assert (info.waiting, info.later) == (0, 1)
        assert await client.cancel(SESSION, tasks[3])


async def test_a_task_that_is_put_off_is_not_due_earlier_nor_later_by_another_priority(
    store: RedisStateStore, client: TaskClient
) -> None:
    name, places = key_of_queue(store.settings), list[list[bytes]]()
    task = await client.submit("now", session_id=SESSION, delay=timedelta(hours=2), priority=60)
    for priority in (60, 600, 0):
        payload = {"priority": priority}
        await client.steer(SESSION, task, SteeringEventType.PRIORITIZE, payload)
        places.append(await store.transport.commands.zrange_scored(name, 0, -1))
    assert places == [places[0]] * 3
    assert float(places[0][1]) - await clock_ms(store.base.scripts) > 1.9 * HOUR
    state = await client.get(SESSION, task)
    assert state is not None
    assert state.priority == 0


async def test_a_task_that_has_begun_is_not_put_off_by_a_clock_that_was_set_back(
    store: RedisStateStore, client: TaskClient
) -> None:
    async def ask(ctx: TaskContext) -> bool:
        return (await ctx.approval("Shall I go on?")).approved

    async with pool(store, {"ask": ask}):
        task = await client.submit("ask", session_id=SESSION, delay=timedelta(milliseconds=10))
        await becomes(client, task, TaskStatus.PAUSED)
        # By the new clock the time that it waited for is still to come.
        due = await clock_ms(store.base.scripts) + HOUR
        key = store.base.keys.task(SESSION, task)
        await store.transport.sender.send("HSET", key, "due", due, repeatable=True)
        (pause,) = await client.pauses(SESSION)
        await client.approve(pause.pause_id or "")
        await becomes(client, task, TaskStatus.COMPLETE)


async def test_a_task_that_is_put_off_for_long_keeps_its_key(
    store: RedisStateStore, client: TaskClient
) -> None:
    delay = timedelta(days=30)
    later = await client.submit("work", "later", session_id=SESSION, delay=delay, limit_key="k")
    gate = Gate()
    gate.opened.set()
    async with pool(store, {"work": gate}):
        soon = await client.submit("work", "soon", session_id=SESSION, limit_key="k")
        await client.wait(SESSION, soon, timeout_s=60)
    owners = store.base.keys.queue(queue_of(store.settings)).owners
    assert await store.transport.commands.hexists(owners, f"later:{job_of(store, later)}")
    assert await store.transport.sender.send("PTTL", owners, repeatable=True) > 29 * 24 * HOUR


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"delay": timedelta(seconds=-1)}, "delay"),
        ({"delay": timedelta(days=9000)}, "delay"),
        ({"delay": 5}, "delay"),
        ({"at": datetime(2030, 1, 1)}, "at"),  # noqa: DTZ001 - that is the mistake
        ({"at": datetime(9000, 1, 1, tzinfo=UTC)}, "at"),
        ({"at": datetime.now(UTC), "delay": timedelta(1)}, "at"),
        ({"limit_key": ""}, "limit_key"),
        ({"limit_key": 5}, "limit_key"),
        ({"limit_key": "", "in_turn": True}, "limit_key"),
    ],
)
async def test_what_no_task_can_wait_for_is_refused_by_name(
    client: TaskClient, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidField) as wrong:
        await client.submit("now", session_id=SESSION, **options)
    assert wrong.value.field == field


async def test_a_sleep_frees_the_worker_and_is_slept_once(
    store: RedisStateStore, client: TaskClient
) -> None:
    async def sleeps(ctx: TaskContext) -> int:
        await ctx.sleep(timedelta(milliseconds=1))
        await ctx.sleep(timedelta(seconds=1.1))
        return ctx.attempt

    async def quick(_: TaskContext) -> str:
        return "quick"

    async with pool(store, {"sleeps": sleeps, "quick": quick}, max_tasks=1, lease_s=0.4):
        task = await client.submit("sleeps", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        other = await client.submit("quick", session_id=SESSION)
        assert await client.result(SESSION, other, timeout_s=60) == "quick"
        assert await client.result(SESSION, task, timeout_s=60) == 2


async def test_a_rate_is_shared_and_taken_once_also_by_a_later_run(
    store: RedisStateStore, client: TaskClient
) -> None:
    taken: list[str] = []

    async def call(ctx: TaskContext) -> int:
        await ctx.take("model", Rate(2, timedelta(hours=1)))
        taken.append(ctx.task.task_id)
        await ctx.pause("wait", timeout=timedelta(seconds=1), on_timeout="resume")
        return ctx.attempt

    async with pool(store, {"call": call}, lease_s=0.4):
        first, second = [await client.submit("call", session_id=SESSION) for _ in range(2)]
        for task in (first, second):
            assert await client.result(SESSION, task, timeout_s=60) == 2
        third = await client.submit("call", session_id=SESSION)
        await becomes(client, third, TaskStatus.PAUSED)
        assert third not in taken
        await client.cancel(SESSION, third)


async def test_who_waits_for_a_rate_frees_the_worker_in_order_and_costs_a_budget_little(
    store: RedisStateStore, client: TaskClient
) -> None:
    taken: list[int] = []

    @guarded(Budget(steps=3))
    async def call(ctx: TaskContext) -> None:
        await ctx.take("model", Rate(1, timedelta(seconds=0.5)))
        taken.append(ctx.input)

    async def quick(ctx: TaskContext) -> int:
        return len(taken)

    async with pool(store, {"call": call, "quick": quick}, max_tasks=3, lease_s=0.4):
        waiting = [
            await client.submit("call", number, session_id=SESSION, delay=timedelta(0))
            for number in range(8)
        ]
        other = await client.submit("quick", session_id=SESSION)
        assert await client.result(SESSION, other, timeout_s=60) < len(waiting)
        for task in waiting:
            await client.result(SESSION, task, timeout_s=60)
            steps = await client.snapshots(SESSION, task)
            assert len(steps) <= 3
    assert sorted(taken) == list(range(8))


async def test_each_attempt_of_a_step_takes_and_so_does_each_of_a_compensation(
    store: RedisStateStore, client: TaskClient
) -> None:
    spread, at = Rate(1, timedelta(seconds=1.2)), defaultdict[str, list[float]](list)
    began = dict[str, float]()

    async def call(ctx: TaskContext, name: str) -> None:
        began.setdefault(name, monotonic())
        await ctx.take(name, spread)
        at[name].append(monotonic())
        if len(at[name]) < 3:
            raise ConnectionError

    async def refund(ctx: TaskContext) -> None:
        await call(ctx, "undo")

    policy = RetryPolicy(attempts=3, wait_initial_s=0, wait_jitter_s=0)

    async def handler(ctx: TaskContext) -> None:
        ctx.on_failure(retried(refund, policy), ctx)
        await ctx.step("call", retried(call, policy), ctx, "step")
        raise ValueError

    async with pool(store, {"call": handler}):
        task = await client.submit("call", session_id=SESSION)
        with pytest.raises(TaskFailed):
            await client.result(SESSION, task, timeout_s=60)
    # Who is woken late was given its place in time: the next one may come sooner after it.
    for name, times in at.items():
        waited = [when - began[name] for when in times]
        assert all(each > 1.2 * number - 0.1 for number, each in enumerate(waited))
    assert {name: len(times) for name, times in at.items()} == {"step": 3, "undo": 3}


async def test_how_long_the_oldest_waits_does_not_count_its_priority(
    store: RedisStateStore, client: TaskClient
) -> None:
    name = queue_of(store.settings)
    for priority in (1_000, 0, 7):
        await client.submit("answer", session_id=SESSION, priority=priority)
    assert (await client.queues.get(name)).oldest_s < 60
    # One that waits for longer, behind one that is more urgent.
    queue = Queue(store, name=name)
    now = await clock_ms(store.base.scripts)
    task = await client.submit("answer", session_id=SESSION, delay=timedelta(hours=1))
    await queue.defer(Job(SESSION, task, 0, 0, at_ms=now - 120_000), sooner=True)
    # A task that is gone, and a job of an unknown kind, have no priority.
    await store.transport.commands.unlink(store.base.keys.task(SESSION, task))
    assert 120 <= (await client.queues.get(name)).oldest_s < 180
    await queue.aclose()
