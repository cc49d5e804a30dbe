"""Tasks whose handlers run agents of the OpenAI Agents SDK in a session: each run is kept once."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("agents", reason="needs the openai-agents extra")

from agents import MaxTurnsExceeded, Runner, function_tool
from agents.memory import (
    OpenAIConversationsSession,
    OpenAIResponsesCompactionSession,
)
from agents.testing import ScriptedModel, assistant_message
from openai import AsyncOpenAI

from redis_state import RedisStateStore
from redis_state.errors import SessionBusy
from redis_state.integrations.agent_runs.scopes import current_scope
from redis_state.integrations.openai_agents import RedisStateSession, durable, openai_handler
from redis_state.integrations.openai_agents.history import RunHistory
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskContext, TaskHandedBack
from tests.integration.openai_agents.test_openai_sessions import contents, outside, said
from tests.support.agents.openai_agents import QUIET, agent_of, call, scripted
from tests.support.processes.pools import SESSION, becomes, pool

pytestmark = pytest.mark.worker


async def test_tasks_of_a_session_continue_and_a_replay_adds_nothing_twice(
    store: RedisStateStore,
) -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    turns = [call("pay")], "done"
    model = scripted(lambda items: f"{len(items)}")
    payer = agent_of(scripted(*turns), "payer", tools=[pay])
    handlers = {
        "clerk": openai_handler(agent_of(model), history=True, run_config=QUIET),
        "payer": openai_handler(payer, history=True, run_config=QUIET),
    }
    session = RedisStateSession(SESSION, store=store)
    async with pool(store, handlers) as client:
        task = await client.submit("clerk", "one", session_id=SESSION)
        assert await client.result(SESSION, task, timeout_s=60) == "1"
        task = await client.submit("payer", "two", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        # Another run of the session, while the first one waits for a person.
        async with session:
            agent = agent_of(scripted("three's answer"))
            await Runner.run(agent, "three", session=session, run_config=QUIET)
        (pause,) = await client.pauses(SESSION)
        await client.approve(str(pause.pause_id))
        assert await client.result(SESSION, task, timeout_s=60) == "done"
        task = await client.submit("clerk", "four", session_id=SESSION)
        assert await client.result(SESSION, task, timeout_s=60) == "9"
    items: Any = await session.get_items()
    said_by_people = [item["content"] for item in items if item.get("role") == "user"]
    assert said_by_people == ["one", "three", "two", "four"]
    calls = [item["call_id"] for item in items if "call_id" in item]
    assert calls == ["pay", "pay"]


async def test_a_task_whose_session_is_busy_is_saved_later(store: RedisStateStore) -> None:
    model = scripted("done")
    runs: list[int] = []

    async def handler(ctx: TaskContext) -> Any:
        runs.append(ctx.epoch)
        session = RedisStateSession(SESSION, store=ctx.store, wait_s=0.01)
        agent = agent_of(model)
        return (await Runner.run(agent, "go", session=session, run_config=QUIET)).final_output

    session = RedisStateSession(SESSION, store=store)
    async with pool(store, {"clerk": durable(handler)}) as client:
        async with session:
            task = await client.submit("clerk", session_id=SESSION)
            await eventually(lambda: len(runs) > 1, "it was handed back")
        assert await client.result(SESSION, task, timeout_s=60) == "done"
    assert model.seen == [0]
    assert len(await session.get_items()) == 2


async def test_a_task_that_clears_its_session_does_so_in_one_turn(store: RedisStateStore) -> None:
    class Watched(RedisStateSession):
        async def change_once(self, name: str, **change: Any) -> None:
            await super().change_once(name, **change)
            hasty = RedisStateSession(SESSION, store=store, wait_s=0)
            with pytest.raises(SessionBusy):
                await outside(hasty.add_items([said("between")]))

    async def handler(_: TaskContext) -> None:
        scope = current_scope()
        assert scope is not None
        history = RunHistory(Watched(SESSION, store=store), scope)
        await history.clear_session()
        await history.add_items([said("new")])
        await history.save()

    session = RedisStateSession(SESSION, store=store)
    async with pool(store, {"clerk": durable(handler)}) as client:
        await session.add_items([said("old")])
        task = await client.submit("clerk", session_id=SESSION)
        await client.result(SESSION, task, timeout_s=60)
    assert await contents(session) == ["new"]


async def test_a_session_that_compacts_itself_does_so_once_behind_the_save(
    store: RedisStateStore,
) -> None:
    compacted: list[int] = []
    runs: list[int] = []

    class Compacting(OpenAIResponsesCompactionSession):
        async def run_compaction(self, args: Any = None, **_: Any) -> None:
            assert args["response_id"]
            compacted.append(len(await self.get_items()))

    @function_tool
    def look() -> str:
        return "seen"

    model = ScriptedModel([[call("look")], [assistant_message("done")]])

    async def handler(_: TaskContext) -> Any:
        session = Compacting("any", RedisStateSession(SESSION, store=store), client=MagicMock())
        agent = agent_of(model, tools=[look])
        result = await Runner.run(agent, "go", session=session, run_config=QUIET)
        runs.append(1)
        if len(runs) == 1:
            raise TaskHandedBack("the worker dies")
        return result.final_output

    async with pool(store, {"clerk": durable(handler)}) as client:
        task = await client.submit("clerk", session_id=SESSION)
        assert await client.result(SESSION, task, timeout_s=60) == "done"
    assert (len(runs), compacted) == (2, [4])


async def test_a_session_that_openai_keeps_is_refused_in_a_task(store: RedisStateStore) -> None:
    model = scripted("done")

    async def handler(_: TaskContext) -> Any:
        session: Any = OpenAIConversationsSession(
            conversation_id="conv_1", openai_client=MagicMock(spec=AsyncOpenAI)
        )
        await Runner.run(agent_of(model), "go", session=session, run_config=QUIET)

    async with pool(store, {"clerk": durable(handler)}) as client:
        task = await client.submit("clerk", session_id=SESSION)
        await becomes(client, task, TaskStatus.FAILED)
        failed = await client.get(SESSION, task)
    assert failed is not None
    assert "OpenAIConversationsSession" in str(failed.error)
    assert model.seen == []


async def test_tasks_of_a_history_that_do_not_run_in_turn_are_warned_of_once(
    store: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    handler = openai_handler(agent_of(scripted("done")), history=True, run_config=QUIET)
    warned: list[int] = []
    async with pool(store, {"clerk": handler}) as client:
        for in_turn in (True, False, False):
            task = await client.submit("clerk", "go", session_id=SESSION, in_turn=in_turn)
            await client.result(SESSION, task, timeout_s=60)
            warned.append(caplog.text.count("Submit them with in_turn=True"))
    assert warned == [0, 1, 1]


async def test_a_later_task_of_the_same_id_adds_its_items_too(store: RedisStateStore) -> None:
    @function_tool
    def look() -> str:
        return "seen"

    first = agent_of(scripted("done"))
    second = agent_of(scripted([call("look")], "done"), tools=[look])
    handlers = {
        name: openai_handler(agent, history=True, run_config=QUIET)
        for name, agent in (("short", first), ("long", second))
    }
    async with pool(store, handlers) as client:
        for name in handlers:
            task = await client.submit(name, "report", session_id=SESSION, task_id="weekly")
            assert await client.result(SESSION, task, timeout_s=60) == "done"
            await store.tasks.clear(SESSION, task)
    items: Any = await RedisStateSession(SESSION, store=store).get_items()
    kinds = [item.get("role") or item["type"] for item in items]
    assert kinds == [
        "user",
        "assistant",
        "user",
        "function_call",
        "function_call_output",
        "assistant",
    ]


async def test_a_run_that_ends_by_its_turns_is_kept_once(store: RedisStateStore) -> None:
    @function_tool
    def look() -> str:
        return "seen"

    agent = agent_of(scripted([call("look")], "done"), tools=[look])
    session = RedisStateSession(SESSION, store=store)

    async def handler(ctx: TaskContext) -> Any:
        try:
            await Runner.run(agent, "go", session=session, max_turns=1, run_config=QUIET)
        except MaxTurnsExceeded:
            await ctx.pause(name="again")
            return "too many"

    async with pool(store, {"clerk": durable(handler)}) as client:
        task = await client.submit("clerk", "one", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        (pause,) = await client.pauses(SESSION)
        await client.approve(str(pause.pause_id))
        assert await client.result(SESSION, task, timeout_s=60) == "too many"
    kinds = [item.get("type", item.get("role")) for item in await session.get_items()]
    assert kinds == ["user", "function_call", "function_call_output"]


async def test_a_run_that_fails_leaves_the_session_as_it_was(store: RedisStateStore) -> None:
    handler = openai_handler(agent_of(scripted("x", failing=9)), history=True, run_config=QUIET)
    async with pool(store, {"clerk": handler}) as client:
        task = await client.submit("clerk", "one", session_id=SESSION)
        await becomes(client, task, TaskStatus.FAILED)
    assert await RedisStateSession(SESSION, store=store).get_items() == []
