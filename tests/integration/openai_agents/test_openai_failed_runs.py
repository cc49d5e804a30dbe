"""A run with a session that failed: what the SDK read at the failure is no part of a later run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("agents", reason="needs the openai-agents extra")

from agents import RunHooks, function_tool

from redis_state import RedisStateStore
from redis_state.integrations.openai_agents import RedisStateSession, openai_handler
from redis_state.integrations.openai_agents.history import RunHistory
from redis_state.models import TaskStatus
from redis_state.worker import StepPolicy
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
