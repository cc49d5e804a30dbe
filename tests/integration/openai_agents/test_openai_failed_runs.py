"""Runs with a session that fail, or that cannot be saved at first: a later run completes them."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("agents", reason="needs the openai-agents extra")

from agents import RunHooks, Runner, function_tool

from redis_state import RedisStateStore
from redis_state.integrations.openai_agents import RedisStateSession, durable, openai_handler
from redis_state.integrations.openai_agents.history import RunHistory
from redis_state.models import TaskStatus
from redis_state.worker import StepPolicy, TaskContext
from tests.support.agents.openai_agents import QUIET, agent_of, call, scripted
from tests.support.processes.pools import SESSION, becomes, pool

pytestmark = pytest.mark.worker


async def kept(store: RedisStateStore) -> list[Any]:
    items: list[Any] = await RedisStateSession(SESSION, store=store).get_items()
    return [item.get("call_id") or item.get("role") for item in items]


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_retry_does_not_read_the_session_as_the_failed_run_did(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    looked = asyncio.Event()
    tried: list[int] = []
    read: list[int | None] = []
    get_items = RunHistory.get_items

    async def noting(history: RunHistory, limit: int | None = None) -> Any:
        read.append(limit)
        return await get_items(history, limit)

    class Hooks(RunHooks[Any]):
        async def on_tool_end(
            self,
            context: Any,
            agent: Any,
            tool: Any,
            result: Any,
        ) -> None:
            if tool.name == "look":
                looked.set()

    @function_tool
    def look() -> str:
        return "seen"

    @function_tool(failure_error_function=None)
    async def buy() -> str:
        tried.append(1)
        if len(tried) == 1:
            # The SDK keeps the result of a call beside one that fails.
            await looked.wait()
            for _ in range(50):
                await asyncio.sleep(0)
            raise RuntimeError
        return "bought"

    monkeypatch.setattr(RunHistory, "get_items", noting)
    settings: Any = None if limit is None else {"limit": limit}
    session = RedisStateSession(SESSION, store=store, session_settings=settings)
    await session.add_items([{"role": "user", "content": f"{n}"} for n in range(5)])
    agent = agent_of(scripted([call("look"), call("buy")], "done"), tools=[look, buy])
    handler = openai_handler(agent, session=session, hooks=Hooks(), run_config=QUIET)
    # What it leaves out of the records would fail it.
    steps = StepPolicy(on_changed="fail")
    async with pool(store, {"clerk": handler}, steps=steps) as client:
        task = await client.submit("clerk", "go", session_id=SESSION, in_turn=True)
        await becomes(client, task, TaskStatus.FAILED)
        assert len(read) == 2, "the SDK has read at the failure"
        assert await kept(store) == ["user"] * 5
        await client.retry(SESSION, task)
        ended = await client.wait(SESSION, task, timeout_s=60)
    assert (ended.status, ended.error, ended.result) == (TaskStatus.COMPLETE, None, "done")
    assert await kept(store) == [*["user"] * 6, "look", "buy", "look", "buy", "assistant"]


@pytest.mark.parametrize("in_block", [False, True])
async def test_a_run_whose_claim_on_its_session_was_taken_is_saved_by_a_later_run(
    store: RedisStateStore, *, in_block: bool
) -> None:
    taken: list[str] = []

    async def take_over() -> None:
        lease = store.base.keys.conversation_lease(SESSION)
        await store.transport.sender.send("HSET", lease, "expires", 0, repeatable=True)
        await RedisStateSession(SESSION, store=store).add_items([{"role": "user", "content": "x"}])

    class Stalled(RedisStateSession):
        async def change_once(self, name: str, **change: Any) -> None:
            if not taken:
                taken.append(name)
                # As while this process stands still.
                elsewhere = asyncio.get_running_loop().create_task(take_over(), context=Context())
                await elsewhere
            await super().change_once(name, **change)

    model = scripted("done")

    async def handler(ctx: TaskContext) -> Any:
        session = Stalled(SESSION, store=ctx.store)
        if not in_block:
            return await answer(session)
        async with session:
            return await answer(session)

    async def answer(session: RedisStateSession) -> Any:
        result = await Runner.run(agent_of(model), "go", session=session, run_config=QUIET)
        return result.final_output

    async with pool(store, {"clerk": durable(handler)}) as client:
        task = await client.submit("clerk", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
    assert taken
    assert (ended.status, ended.error, ended.result) == (TaskStatus.COMPLETE, None, "done")
    assert model.seen == [0]
    assert await kept(store) == ["user", "user", "assistant"]
