"""Attributes that a handler sets, and what a task tells of its steps."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import InvalidField
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import RetryPolicy, TaskContext, retried
from redis_state.worker.tasks.execution import running
from redis_state.worker.tasks.views.stream import TaskView
from tests.support.processes.pools import SESSION, becomes, client_of, pool


async def test_a_handler_sets_attributes_once_and_a_replay_does_not_turn_them_back(
    store: RedisStateStore,
) -> None:
    seen: list[dict[str, Any]] = []

    async def work(ctx: TaskContext) -> dict[str, Any]:
        seen.append(dict(ctx.attributes))
        await ctx.set_attributes({"phase": "first", "n": 1})
        seen.append(dict(ctx.attributes))
        await ctx.set_attributes({"phase": "second", "given": None})
        await ctx.pause()
        await ctx.set_attributes({"phase": "third"})
        return dict(ctx.attributes)

    async with pool(store, {"h": work}) as client:
        given: dict[str, Any] = {"given": True, "kept": "\ud800"}
        task = await client.submit("h", session_id=SESSION, attributes=given)
        await becomes(client, task, TaskStatus.PAUSED)

        async def listed() -> Any:
            return (await client.find(attributes={"phase": "second"}, status="PAUSED")).tasks

        # The index follows the task.
        (found,) = await eventually(listed, "it is found as paused")
        assert found.attributes == {"phase": "second", "n": 1, "kept": "\ud800"}
        (pause,) = await client.pauses(SESSION)
        assert pause.token is not None
        await client.approve(pause.token)
        last = {"phase": "third", "n": 1, "kept": "\ud800"}
        assert await client.result(SESSION, task) == last
        # The second run passes what the first one has set.
        assert seen[2] == seen[3] == {"phase": "second", "n": 1, "kept": "\ud800"}
        for phase, count in (("first", 0), ("second", 0), ("third", 1)):
            assert len((await client.find(attributes={"phase": phase})).tasks) == count
        view = await client.inspect(SESSION, task)
        assert view is not None
        assert view.attributes == last


async def test_parts_that_set_attributes_at_once_keep_each_others(store: RedisStateStore) -> None:
    async def work(ctx: TaskContext) -> dict[str, Any]:
        late = asyncio.create_task(ctx.branch("late").set_attributes({"late": 1}))
        await asyncio.sleep(0)
        parts = ({"x": 1}, {"y": 2}, {"given": None})
        await asyncio.gather(*(ctx.branch("part").set_attributes(part) for part in parts))
        await late
        return dict(ctx.attributes)

    async with pool(store, {"h": work}) as client:
        task = await client.submit("h", session_id=SESSION, attributes={"given": True})
        assert await client.result(SESSION, task) == {"late": 1, "x": 1, "y": 2}
        (found,) = (await client.find(attributes={"x": 1, "y": 2, "late": 1})).tasks
        assert found.attributes == {"late": 1, "x": 1, "y": 2}


async def test_attributes_that_cannot_be_are_refused_where_they_are_set(
    store: RedisStateStore,
) -> None:
    async def work(ctx: TaskContext) -> list[str]:
        refused: list[str] = []
        many = {f"a{number}": number for number in range(16)}
        for attributes in ({"a b": 1}, {"x": 1.5}, {"x": ["y"]}, many | {"b": 1}):
            try:
                await ctx.set_attributes(attributes)  # type: ignore[arg-type]
            except InvalidField as error:
                refused.append(error.field)
        await ctx.set_attributes(many)
        try:
            await ctx.set_attributes({"more": 1})
        except InvalidField as error:
            refused.append(error.field)
        return refused

    async with pool(store, {"h": work}) as client:
        task = await client.submit("h", session_id=SESSION)
        names = ["attributes", "attributes['x']", "attributes['x']", "attributes", "attributes"]
        assert await client.result(SESSION, task) == names


async def test_a_task_tells_when_its_steps_began_and_what_runs_now(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "SLOW_S", 0.05)
    gate = asyncio.Event()
    failures = [True]

    async def slow() -> int:
        if failures:
            failures.clear()
            raise ConnectionError
        await gate.wait()
        return 1

    policy = RetryPolicy(attempts=2, wait_initial_s=0.01, wait_jitter_s=0)

    async def work(ctx: TaskContext) -> int:
        await ctx.step("fast", lambda: 0)
        return await ctx.step("slow", retried(slow, policy))

    async with pool(store, {"h": work}) as client:
        task = await client.submit("h", session_id=SESSION)

        async def shown() -> TaskView | None:
            view = await client.inspect(SESSION, task)
            return view if view is not None and view.running else None

        view = await eventually(shown, "the slow step is shown")
        assert view is not None
        (step,) = view.running
        assert (step.step, step.attempt) == ("slow#1", 2)
        assert abs(datetime.now(UTC) - step.began_at) < timedelta(minutes=2)
        gate.set()
        assert await client.result(SESSION, task) == 1
        view = await client.inspect(SESSION, task)
        assert view is not None
        assert view.running == ()
        fast, slow_step = await client.snapshots(SESSION, task)
        assert (fast.attempts, slow_step.attempts) == (1, 2)
        for each in (fast, slow_step):
            assert each.began_at is not None
            assert each.began_at <= each.at
        assert slow_step.began_at is not None
        assert slow_step.at - slow_step.began_at >= timedelta(milliseconds=50)


async def test_a_fast_step_costs_no_call_of_its_own_to_tell_of_it(store: RedisStateStore) -> None:
    async def work(ctx: TaskContext) -> None:
        for _ in range(20):
            await ctx.step("fast", lambda: 0)

    async with pool(store, {"h": work}) as client:
        await client.result(SESSION, await client.submit("h", session_id=SESSION))
        task = await client.submit("h", session_id=SESSION)
        await client.result(SESSION, task)
        record = await store.tasks.load_fields(SESSION, task)
        assert record is not None
        assert "doing" not in record.fields
    async with client_of(store) as client:
        assert len(await client.snapshots(SESSION, task)) == 20
