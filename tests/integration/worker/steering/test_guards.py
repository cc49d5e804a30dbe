"""Guards and budgets: what may end a task at its checkpoints."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import InvalidField
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import (
    Budget,
    Guard,
    RetryPolicy,
    Spent,
    TaskContext,
    TaskStopped,
    guarded,
    retried,
    versioned,
)
from redis_state.worker.handler.guards import guards_of
from redis_state.worker.handler.versions import lanes_of
from redis_state.worker.queue.jobs.parked import lane_of
from tests.support.processes.pools import SESSION, becomes, open_token, pool
from tests.support.tasks.runs import begin_again, make, run_once


def spent(*, seconds: float = 0.0, steps: int = 0, updates: int = 0) -> Spent:
    return Spent("s", "t", "h", 1, seconds, steps, updates)


@pytest.mark.parametrize(
    ("budget", "within", "beyond", "reason"),
    [
        (Budget(seconds=1.5), spent(seconds=1.5), spent(seconds=1.6), "1.5 seconds"),
        (Budget(steps=2), spent(steps=2), spent(steps=3), "2 steps"),
        (Budget(updates=0), spent(), spent(updates=1), "0 updates"),
        (Budget(steps=1, updates=5), spent(updates=5), spent(steps=2), "1 steps"),
    ],
)
def test_a_budget_allows_so_much_and_no_more(
    budget: Budget, within: Spent, beyond: Spent, reason: str
) -> None:
    assert budget.check(within) is None
    assert budget.check(beyond) == f"its budget of {reason} is used up"


@pytest.mark.parametrize(
    ("terms", "named"),
    [
        ({"seconds": 0}, "seconds"),
        ({"seconds": float("inf")}, "seconds"),
        ({"steps": -1}, "steps"),
        ({"updates": 1.5}, "updates"),
        ({"steps": True}, "steps"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(terms: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidField) as refused:
        Budget(**terms)
    assert refused.value.field == named


def test_a_guarded_handler_is_itself() -> None:
    @guarded(Budget(steps=1))
    def handler(ctx: int) -> int:
        """Say it."""
        return ctx

    assert (handler(3), handler.__doc__) == (3, "Say it.")
    assert guards_of(handler) == (Budget(steps=1),)
    assert guards_of(lambda: None) == ()


def test_what_is_wrapped_twice_keeps_both() -> None:
    def handler(ctx: int) -> int:
        return ctx

    both = guarded(Budget(steps=1))(guarded(Budget(steps=2))(handler))
    assert (both(3), guards_of(both)) == (3, (Budget(steps=1), Budget(steps=2)))
    again = retried(retried(handler, RetryPolicy(attempts=5)), RetryPolicy(attempts=2))
    assert (again(3), again.policy.attempts) == (3, 2)


async def test_guarded_versions_are_versions_of_which_each_is_guarded(
    store: RedisStateStore,
) -> None:
    async def first(ctx: TaskContext) -> str:
        await ctx.step("one", list)
        if ctx.attempt == 1:
            begin_again()
        return "1"

    async def second(ctx: TaskContext) -> str:
        for _ in range(3):
            await ctx.step("two", list)
        return "2"

    def deployed(default: str) -> Any:
        budget = Budget(steps=2)
        return guarded(budget)(versioned({"1": first, "2": second}, default=default))

    await make(store)
    await run_once(store, deployed("1"))
    # A worker without the versions leaves it to others.
    assert (await run_once(store, second)).status is TaskStatus.PENDING
    assert (await run_once(store, deployed("2"))).result == "1"
    await make(store, "new")
    ended = await run_once(store, deployed("2"), task_id="new")
    assert ended.error == "TaskStopped: its budget of 2 steps is used up"
    lanes = {lane_of("h", None), lane_of("h", "1"), lane_of("h", "2")}
    assert set(lanes_of({"h": deployed("1")})) == lanes
    with pytest.raises(InvalidField, match="needs a handler"):
        versioned({"1": deployed("1")}, default="1")


async def test_a_budget_of_steps_counts_those_of_all_runs_once(store: RedisStateStore) -> None:
    did: list[int] = []

    async def handler(ctx: TaskContext) -> None:
        for number in range(2):
            await ctx.step("a", did.append, number)
        if ctx.attempt == 1:
            await ctx.approval("more?")
        for number in range(2, 9):
            await ctx.step("a", did.append, number)

    async with pool(store, {"h": guarded(Budget(steps=4))(handler)}) as client:
        task = await client.submit("h", session_id=SESSION)
        await client.approve(await open_token(store, task))
        state = await client.wait(SESSION, task, timeout_s=60)
    assert state.status is TaskStatus.FAILED
    assert state.error == "TaskStopped: its budget of 4 steps is used up"
    assert did == [0, 1, 2, 3]


async def test_a_budget_of_updates_counts_those_of_all_runs_once(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> None:
        await ctx.progress("one")
        if ctx.attempt == 1:
            await ctx.pause()
        await ctx.progress("two")
        await ctx.progress("three")

    async with pool(store, {"h": handler}, guards=[Budget(updates=2)]) as client:
        task = await client.submit("h", session_id=SESSION)
        await client.approve(await open_token(store, task))
        state = await client.wait(SESSION, task, timeout_s=60)
        reported = [
            update.content["message"]
            for update in await store.list_updates(SESSION, task_id=task)
            if update.update_type.value == "PROGRESS"
        ]
    assert (state.status, reported) == (TaskStatus.FAILED, ["one", "two"])
    assert state.error == "TaskStopped: its budget of 2 updates is used up"


async def test_seconds_are_those_of_all_runs_and_not_of_the_time_between(
    store: RedisStateStore,
) -> None:
    seen: list[float] = []

    class Watcher:
        def check(self, spent: Spent) -> None:
            seen.append(spent.seconds)

    async def handler(ctx: TaskContext) -> None:
        await ctx.checkpoint()
        if ctx.attempt == 1:
            await ctx.pause()
        await ctx.checkpoint()

    begun = time.monotonic()
    async with pool(store, {"h": handler}, guards=[Watcher()]) as client:
        task = await client.submit("h", session_id=SESSION)
        token = await open_token(store, task)
        await becomes(client, task, TaskStatus.PAUSED)
        paused = time.monotonic()
        await eventually(lambda: time.monotonic() > paused + 1, "a second goes by")
        await client.approve(token)
        await client.wait(SESSION, task, timeout_s=60)
    assert seen == sorted(seen)
    record = await store.tasks.load_fields(SESSION, task)
    assert record is not None
    spent_s = int(record.fields["spent_ms"]) / 1000
    assert seen[-1] <= spent_s + 0.001
    assert spent_s <= time.monotonic() - begun - 1


async def test_a_handler_that_goes_on_after_any_error_is_stopped_all_the_same(
    store: RedisStateStore,
) -> None:
    went_on: list[int] = []

    class Full:
        def check(self, spent: Spent) -> str | None:
            return "the day is over" if spent.updates else None

    async def stubborn(ctx: TaskContext) -> str:
        for number in range(3):
            try:
                await ctx.progress("more")
            except Exception:  # noqa: BLE001
                went_on.append(number)
            except TaskStopped as stopped:
                assert stopped.reason == "the day is over"  # noqa: PT017
        return "done"

    await make(store)
    state = await run_once(store, guarded(Full())(stubborn))
    assert (state.status, state.result) == (TaskStatus.FAILED, None)
    assert state.error == "TaskStopped: the day is over"
    assert went_on == []


async def test_a_guard_may_ask_elsewhere_and_serves_as_a_stop_signal(
    store: RedisStateStore,
) -> None:
    key = f"{store.settings.namespace}:stop"

    class Signal:
        async def check(self, spent: Spent) -> str | None:
            stated = await store.transport.sender.send("GET", key, repeatable=True)
            return f"{spent.handler} {stated.decode()}" if stated else None

    guard: Guard = Signal()

    async def handler(ctx: TaskContext) -> None:
        await ctx.progress("begun")
        while True:
            await ctx.checkpoint()
            await asyncio.sleep(0.01)

    async with pool(store, {"h": handler}, guards=[guard]) as client:
        task = await client.submit("h", session_id=SESSION)
        async for entry in client.watch(SESSION, task):
            if entry.value.update_type.value == "PROGRESS":
                await store.transport.sender.send(
                    "SET", key, "is told to stop", "PX", 60_000, repeatable=True
                )
        state = await client.get(SESSION, task)
    assert state is not None
    assert state.error == "TaskStopped: h is told to stop"


async def test_a_guard_that_fails_fails_the_handler_at_its_checkpoint(
    store: RedisStateStore,
) -> None:
    class Broken:
        def check(self, spent: Spent) -> str | None:
            raise OSError(f"{spent.handler} cannot be judged")

    async def handler(ctx: TaskContext) -> None:
        await ctx.checkpoint()

    await make(store)
    state = await run_once(store, guarded(Broken())(handler))
    assert state.error == "OSError: h cannot be judged"
