"""A run does not end by a pause while a step of another asyncio task works."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from redis_state.worker.tasks.waitpoints.open_pauses import list_open_pauses
from tests.support.processes.pools import SESSION, becomes, client_of, pool
from tests.support.servers.proxies.command_proxy import CommandProxy
from tests.support.tasks.runs import TASK, make, run_once
from tests.support.tasks.waitpoints import tokens_of


class Work:
    """The work of a step that lasts until another part of the handler waits."""

    def __init__(self, store: RedisStateStore) -> None:
        self.calls: list[str] = []
        self._store = store

    async def do(self, name: str, waits_for: int = 1) -> str:
        """Work until so many pauses are open, and for some round trips more."""
        self.calls.append(name)
        if len(self.calls) == 1:
            await eventually(lambda: self._opened(waits_for), "the pauses are open")
        for _ in range(20):
            await list_open_pauses(self._store, SESSION)
        return name

    async def _opened(self, count: int) -> bool:
        """Return whether so many pauses are open: a sleep too, which is in no list."""
        journal = self._store.tasks.keys(SESSION, TASK).journal
        flat: list[bytes] = await self._store.base.scripts.transport.commands.hgetall(journal)
        return sum(entry.startswith(b"pause:") for entry in flat[::2]) >= count


async def decide(store: RedisStateStore, *names: str) -> None:
    """Approve the pauses of these names."""
    tokens = await tokens_of(store, TASK, len(names))
    async with client_of(store) as client:
        for name in names:
            await client.approve(tokens[name], name)


@pytest.mark.parametrize("waits", ["pause", "sleep"])
async def test_a_step_beside_a_pause_is_done_once(store: RedisStateStore, waits: str) -> None:
    work = Work(store)

    async def handler(ctx: TaskContext) -> Any:
        pause = ctx.pause(name="p") if waits == "pause" else ctx.sleep(timedelta(days=1), name="p")
        return (await asyncio.gather(ctx.step("work", work.do, "a"), pause))[0]

    await make(store)
    assert (await run_once(store, handler)).status is TaskStatus.PAUSED
    assert work.calls == ["a"]
    if waits == "pause":  # time alone ends a sleep
        await decide(store, "p")
        assert (await run_once(store, handler)).result == "a"
        assert work.calls == ["a"]


async def test_a_step_beside_a_join_is_done_once(store: RedisStateStore) -> None:
    work = Work(store)

    async def joined(ctx: TaskContext, begun: asyncio.Event) -> Any:
        child = await ctx.spawn("h")
        begun.set()
        return await ctx.join(child)

    async def slowly(begun: asyncio.Event) -> str:
        work.calls.append("a")
        await begun.wait()
        for _ in range(20):
            await list_open_pauses(store, SESSION)
        return "a"

    async def handler(ctx: TaskContext) -> Any:
        begun = asyncio.Event()
        return (await asyncio.gather(ctx.step("work", slowly, begun), joined(ctx, begun)))[0]

    await make(store)
    assert (await run_once(store, handler)).status is TaskStatus.PAUSED
    assert work.calls == ["a"]
    async with client_of(store) as client:
        (child,) = await client.children(SESSION, TASK)

    async def child_handler(_: TaskContext) -> None: ...

    await run_once(store, child_handler, task_id=child.task_id)
    assert (await run_once(store, handler)).result == "a"
    assert work.calls == ["a"]


async def test_a_decision_that_comes_while_a_step_works_is_returned_in_the_same_run(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> list[Any]:
        decided = asyncio.Event()

        async def asks() -> int:
            await ctx.pause(name="p")
            decided.set()
            return ctx.attempt

        return list(await asyncio.gather(ctx.step("work", decided.wait), asks()))

    async def decides() -> None:
        await decide(store, "p")

    await make(store)
    ended, _ = await asyncio.gather(run_once(store, handler), decides())
    assert ended.result == [True, 1]


async def test_steps_whose_own_work_waits_do_not_wait_for_each_other(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> list[Any]:
        async def asks(name: str) -> str:
            return str((await ctx.pause(name=name)).value)

        asked = (ctx.step(f"ask {name}", asks, name) for name in ("p", "q"))
        return list(await asyncio.gather(*asked))

    await make(store)
    assert (await run_once(store, handler)).status is TaskStatus.PAUSED
    await decide(store, "p", "q")
    assert (await run_once(store, handler)).result == ["p", "q"]


async def test_no_step_begins_while_a_pause_ends_the_run(store: RedisStateStore) -> None:
    calls: list[int] = []
    ending = asyncio.Event()

    async def late(ctx: TaskContext) -> None:
        await ending.wait()
        await ctx.step("late", calls.append, ctx.attempt)

    async def handler(ctx: TaskContext) -> None:
        await asyncio.gather(ctx.pause(name="p"), late(ctx))

    async def begin() -> None:
        ending.set()
        for _ in range(20):
            await list_open_pauses(store, SESSION)

    async with CommandProxy(store.settings.url.get_secret_value()) as proxy:
        settings = store.settings.model_copy(update={"url": SecretStr(proxy.url)})
        async with RedisStateStore(settings) as near:
            await make(near)
            with proxy.meanwhile("pause_task", begin):
                assert (await run_once(near, handler)).status is TaskStatus.PAUSED
    assert calls == []
    await decide(store, "p")
    assert (await run_once(store, handler)).status is TaskStatus.COMPLETE
    assert calls == [2]


async def test_a_cancel_ends_a_pause_that_waits_for_a_step_and_the_step(
    store: RedisStateStore,
) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async def handler(ctx: TaskContext) -> None:
        await asyncio.gather(ctx.step("work", work), ctx.pause(name="p"))

    async with pool(store, {"h": handler}) as client:
        await client.submit("h", session_id=SESSION, task_id=TASK)
        await tokens_of(store, TASK, 1)
        await client.cancel(SESSION, TASK)
        await becomes(client, TASK, TaskStatus.CANCELLED)
    assert ended == ["work"]


async def test_a_failure_beside_a_pause_fails_the_task(store: RedisStateStore) -> None:
    work = Work(store)

    async def fail() -> None:
        await work.do("a")
        raise ValueError("no")

    async def handler(ctx: TaskContext) -> None:
        await asyncio.gather(ctx.step("work", fail), ctx.pause(name="p"))

    await make(store)
    assert (await run_once(store, handler)).error == "ValueError: no"
    assert work.calls == ["a"]


async def test_what_still_works_when_the_handler_ends_is_cancelled(store: RedisStateStore) -> None:
    ended: list[str] = []

    async def handler(ctx: TaskContext) -> str:
        begun = asyncio.Event()

        async def work() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("work")

        left = asyncio.create_task(ctx.step("work", work))
        left.add_done_callback(lambda done: ended.append(f"cancelled {done.cancelled()}"))
        await begun.wait()
        return "done"

    async with pool(store, {"h": handler}) as client:
        task = await client.submit("h", session_id=SESSION)
        assert await client.result(SESSION, task) == "done"
    assert ended == ["work", "cancelled True"]
