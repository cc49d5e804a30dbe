"""Many processes submit to one session at once, and die on the way; what is left, by a model."""

from __future__ import annotations

import signal
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

import itertools

from redis_state import RedisStateStore, Settings
from redis_state.models import SteeringEventType, TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import OnBusy, TaskContext
from tests.processes.deaths.die_on_busy import PHASES
from tests.support.processes.pools import SESSION, becomes, client_of, pool, queue_of
from tests.support.processes.worker_processes import has_begun, stop, worker_process
from tests.support.servers.faults import run_processes

pytestmark = pytest.mark.slow

_PROCESSES, _TURNS, _CALLERS = 4, 3, 4


async def race(store: RedisStateStore, policy: OnBusy) -> tuple[list[str], dict[str, str]]:
    settings = store.settings
    arguments: list[dict[str, Any]] = [
        {
            "url": settings.url.get_secret_value(),
            "namespace": settings.namespace,
            "queue": queue_of(settings),
            "policy": policy.value,
            "name": f"p{number}",
            "turns": _TURNS,
            "callers": _CALLERS,
        }
        for number in range(_PROCESSES)
    ]
    results = await run_processes("race_on_busy", arguments)
    made = [name for each in results for name in each["made"]]
    refused = {name: by for each in results for name, by in each["refused"].items()}
    assert len(made) + len(refused) == _PROCESSES * _TURNS * _CALLERS
    return made, refused


async def by_order(store: RedisStateStore) -> list[Any]:
    views = [
        await store.tasks.look(SESSION, task.task_id) for task in await store.list_tasks(SESSION)
    ]
    return sorted((view for view in views if view), key=lambda view: view.order)


async def test_of_those_that_reject_one_wins_and_is_named_to_all_others(
    store: RedisStateStore,
) -> None:
    made, refused = await race(store, OnBusy.REJECT)
    assert len(made) == 1
    assert set(refused.values()) == set(made)
    assert [view.task_id for view in await by_order(store)] == made


async def test_of_those_that_replace_the_last_is_left_and_each_other_names_its_successor(
    store: RedisStateStore,
) -> None:
    made, refused = await race(store, OnBusy.REPLACE)
    views = await by_order(store)
    assert (len(views), refused) == (len(made), {})
    for before, after in itertools.pairwise(views):
        state = await store.tasks.load(SESSION, before.task_id)
        assert state is not None
        assert state.error == f"replaced by task {after.task_id!r}"
    assert [view.status for view in views] == [TaskStatus.CANCELLED] * (len(views) - 1) + [
        TaskStatus.PENDING
    ]
    begun: list[str] = []

    async def work(ctx: TaskContext) -> None:
        begun.append(ctx.input)

    async with pool(store, {"work": work}) as client:
        await client.wait(SESSION, views[-1].task_id, timeout_s=60)
    assert begun == [views[-1].task_id]


@pytest.mark.parametrize("policy", [OnBusy.ENQUEUE, OnBusy.INTERRUPT])
async def test_all_that_wait_run_once_and_the_last_to_interrupt_runs_first(
    store: RedisStateStore, policy: OnBusy
) -> None:
    begun: list[str] = []
    running = most = 0

    async def ask(ctx: TaskContext) -> None:
        await ctx.approval("go on?")

    async def work(ctx: TaskContext) -> None:
        nonlocal running, most
        begun.append(ctx.input)
        running, most = running + 1, max(most, running + 1)
        await ctx.checkpoint()
        running -= 1

    async with pool(store, {"ask": ask}) as client:
        await client.submit("ask", session_id=SESSION, task_id="first", in_turn=True)
        await becomes(client, "first", TaskStatus.PAUSED)
    made, refused = await race(store, policy)
    assert not refused
    order = [view.task_id for view in await by_order(store) if view.task_id != "first"]
    assert sorted(order) == sorted(made)
    async with pool(store, {"work": work}, max_tasks=8) as client:
        for name in order:
            await client.wait(SESSION, name, timeout_s=60)
    assert sorted(begun) == sorted(made)
    assert most == 1
    async with client_of(store) as client:
        first = await client.get(SESSION, "first")
        assert first is not None
        cancels = [
            event
            for event in await store.list_steering(SESSION, task_id="first")
            if event.event_type is SteeringEventType.CANCEL
        ]
    if policy is OnBusy.INTERRUPT:
        assert begun == order[::-1]
        assert first.status is TaskStatus.CANCELLED
        assert len({event.event_id for event in cancels}) == len(cancels) > 0
    else:
        assert (first.status, cancels) == (TaskStatus.PAUSED, [])


async def test_an_interrupted_task_whose_worker_is_killed_does_not_run_again(
    store: RedisStateStore, settings: Settings
) -> None:
    async with client_of(store) as client:
        async with worker_process(settings, "one", lease_s=0.5) as one:
            await client.submit("linger", session_id=SESSION, task_id="a", in_turn=True)
            await eventually(lambda: has_begun(store, "a"), "it runs")
            await client.submit("nap", 0, session_id=SESSION, task_id="b", on_busy="interrupt")
            assert await stop(one, signal.SIGKILL) == -signal.SIGKILL
        async with worker_process(settings, "two", lease_s=0.5):
            ended = await client.wait(SESSION, "a", timeout_s=60)
            assert await client.result(SESSION, "b", timeout_s=60) == "two"
    assert (ended.status, ended.error) == (TaskStatus.CANCELLED, "interrupted by task 'b'")
    # Until the dead worker's lease had run out, the new one did not begin.
    moves = [
        (update.task_id, update.content["status"])
        for update in await store.list_updates(SESSION)
        if update.update_type is UpdateType.STATUS_CHANGE
    ]
    assert moves.count(("b", "RUNNING")) == 1
    assert moves.index(("a", "RUNNING")) < moves.index(("b", "RUNNING"))


@pytest.mark.parametrize(
    ("edges", "stride"),
    [(["before"], 3), pytest.param(["before", "after"], 1, marks=pytest.mark.full)],
)
async def test_a_death_at_any_round_trip_leaves_what_the_policy_says(
    settings: Settings, edges: list[str], stride: int
) -> None:
    argument: dict[str, Any] = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "stride": stride,
    }
    dying = [argument | {"edge": edge} for edge in edges]
    for results in await run_processes("die_on_busy", dying, timeout_s=300):
        assert {each["phase"] for each in results} == set(PHASES)
        if stride == 1:
            trips = {each["trip"] for each in results}
            assert {"index_task", "create_turn_task", "queue_job", "settle_turn"} <= trips
        assert not [each for each in results if each["problems"]]
