"""Steps that are found by a key: in any order, from any asyncio task, once for each key."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.worker import Budget, StepPolicy, TaskContext, guarded
from redis_state.worker.tasks.execution.names import NameScope
from tests.support.processes.pools import (
    SESSION,
    agent,
    becomes,
    client_of,
    open_token,
    pool,
    serving,
)
from tests.support.tasks.runs import begin_again, make, run_once, run_to_the_end

pytestmark = pytest.mark.worker


async def test_a_key_is_done_once_in_whatever_order_it_is_asked_for(
    store: RedisStateStore,
) -> None:
    done: list[str] = []

    async def work(text: str) -> str:
        done.append(text)
        await asyncio.sleep(0)
        return text.upper()

    async def handler(ctx: TaskContext) -> list[Any]:
        keys = ["a", "b", "a", "c"] if ctx.attempt == 1 else ["c", "a", "b"]
        found = await asyncio.gather(*(ctx.keyed_step("work", key, work, key) for key in keys))
        await ctx.pause()
        return list(found)

    async with pool(store, {"work": handler}, steps=StepPolicy(on_changed="fail")) as client:
        task = await client.submit("work", session_id=SESSION)
        await client.approve(await open_token(store, task))
        ended = await becomes(client, task, TaskStatus.COMPLETE)
    assert ended.result == ["C", "A", "B"]
    assert sorted(done) == ["a", "b", "c"]


async def test_a_keyed_branch_counts_from_the_start_and_need_not_be_repeated(
    store: RedisStateStore,
) -> None:
    done: list[str] = []

    async def handler(ctx: TaskContext) -> list[Any]:
        # Of a host that resumes from its own state: it repeats only the last part, under its key.
        ctx.pass_keyed_branches()
        found: list[Any] = []
        for key in "aabc" if ctx.attempt == 1 else "cd":
            branch = ctx.keyed_branch("part#1", key)
            found += [await branch.step("work", done.append, f"{key}{n}") for n in (1, 2)]
            found += [branch.effect_id("work")]
        if ctx.attempt == 1:
            await ctx.pause(key="p")
        ctx.pass_keyed_pauses()
        return found

    async with pool(store, {"work": handler}, steps=StepPolicy(on_changed="fail")) as client:
        task = await client.submit("work", session_id=SESSION)
        await client.approve(await open_token(store, task))
        ended = await becomes(client, task, TaskStatus.COMPLETE)
    assert done == [f"{key}{n}" for key in "abcd" for n in (1, 2)]
    result: Any = ended.result
    assert result[2] != result[5]


@pytest.mark.parametrize("key", ["", "a/b"])
async def test_a_keyed_branch_needs_a_key_that_is_no_path(store: RedisStateStore, key: str) -> None:
    async def handler(ctx: TaskContext) -> None:
        ctx.keyed_branch("part", key)

    state = await run_to_the_end(store, handler)
    assert "key: needs text without a slash" in (state.error or "")


async def test_a_keyed_step_that_failed_is_done_when_it_is_asked_for_again(
    store: RedisStateStore,
) -> None:
    keys: list[str] = []

    async def handler(ctx: TaskContext) -> int:
        def work() -> int:
            keys.append(ctx.effect_id())
            if len(keys) == 1:
                raise ValueError("the first time")
            return len(keys)

        with pytest.raises(ValueError, match="the first time"):
            await ctx.keyed_step("work", "key", work)
        # Another asyncio task, and an ordinary step of that name beside it.
        again: int = await asyncio.create_task(ctx.keyed_step("work", "key", work))
        counted: int = await ctx.step("work", lambda: 7)
        return again + counted

    async with pool(store, {"work": handler}) as client:
        task = await client.submit("work", session_id=SESSION)
        ended = await becomes(client, task, TaskStatus.COMPLETE)
    assert ended.result == 9
    assert len(set(keys)) == 1


@pytest.mark.parametrize("paused", [False, True])
async def test_a_key_that_is_the_place_of_what_another_keys_step_did_is_a_key_of_its_own(
    store: RedisStateStore,
    paused: bool,  # noqa: FBT001 - a parameter
) -> None:
    async def handler(ctx: TaskContext) -> list[Any]:
        async def work() -> str:
            return "outer" + await ctx.step("secret", lambda: " and inner")

        found = [await ctx.keyed_step("tool", "A", work)]
        if paused and ctx.attempt == 1:
            begin_again()
        keys = ["A/secret#1", "A/secret##1"]
        return found + [await ctx.keyed_step("tool", key, str, key) for key in keys]

    ended = await run_to_the_end(store, handler)
    assert ended.result == ["outer and inner", "A/secret#1", "A/secret##1"]


async def test_a_key_that_an_earlier_version_recorded_is_found(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    async def handler(ctx: TaskContext) -> list[Any]:
        def work(key: str) -> str:
            done.append(key)
            return ctx.effect_id()

        keys = ["issue #1", "issue #2"][: ctx.attempt]
        found = [await ctx.keyed_step("work", key, work, key) for key in keys]
        if ctx.attempt == 1:
            begin_again()
        return found

    await make(store)
    with monkeypatch.context() as earlier:
        earlier.setattr(NameScope, "keyed", NameScope.keyed_before)
        await run_once(store, handler)
    ended = await run_once(store, handler, steps=StepPolicy(on_changed="fail"))
    assert ended.status is TaskStatus.COMPLETE, ended.error
    assert done == ["issue #1", "issue #2"]


async def test_a_handler_that_keeps_something_releases_it_when_its_worker_stops(
    store: RedisStateStore,
) -> None:
    class Keeping:
        def __init__(self) -> None:
            self.released: list[bool] = []

        async def __call__(self, ctx: TaskContext) -> str:
            return ctx.worker

        async def release(self, held: RedisStateStore) -> None:
            self.released.append((await held.health()).ok)
            raise RuntimeError("this does not keep the worker from stopping")

    keeping = Keeping()
    guarding = Keeping()
    handlers: dict[str, Any] = {
        "one": keeping,
        "two": keeping,
        "three": guarded(Budget(steps=1))(guarding),
    }
    worker = agent(store.settings, handlers)
    async with client_of(store) as client:
        async with serving(worker):
            task = await client.submit("one", session_id=SESSION)
            await becomes(client, task, TaskStatus.COMPLETE)
            assert keeping.released == []
        assert keeping.released == guarding.released == [True]
        assert await client.workers() == []
