"""Agents that tools run: what they wait for, what they hear, and what a session keeps of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("agents", reason="needs the openai-agents extra")

from agents import Runner, function_tool

from redis_state import RedisStateStore
from redis_state.integrations.openai_agents import (
    RedisStateSession,
    current_decision,
    current_task,
    durable,
    openai_handler,
)
from redis_state.models import SteeringEventType, TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from tests.support.agents.openai_agents import QUIET, agent_of, call, scripted
from tests.support.processes.pools import SESSION, becomes, pool, updates_of

pytestmark = pytest.mark.worker


@pytest.mark.parametrize("policy", [None, False])
async def test_the_agent_of_a_function_tool_waits_for_people(
    store: RedisStateStore, policy: Any
) -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    helper = agent_of(scripted([call("pay")], "it is paid"), "helper", tools=[pay])

    @function_tool
    async def delegate() -> str:
        return str((await Runner.run(helper, "pay", run_config=QUIET)).final_output)

    outer = agent_of(scripted([call("delegate")], lambda items: items[-1]["output"]))
    outer.tools.append(delegate)
    handler = openai_handler(outer, tools={"delegate": policy}, run_config=QUIET)
    async with pool(store, {"clerk": handler}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        (pause,) = await client.pauses(SESSION)
        await client.approve(str(pause.pause_id))
        assert await client.result(SESSION, task, timeout_s=60) == "it is paid"


async def test_what_a_person_says_is_for_the_agent_of_the_task(store: RedisStateStore) -> None:
    begun, steered = asyncio.Event(), asyncio.Event()

    @function_tool
    async def delegate() -> str:
        begun.set()
        await steered.wait()
        await current_task().inbox.catch_up()
        return str((await Runner.run(helper, "inner", run_config=QUIET)).final_output)

    inner, model = scripted("helped"), scripted([call("delegate")], "done")
    helper, outer = agent_of(inner, "helper"), agent_of(model, tools=[delegate])
    async with pool(store, {"clerk": openai_handler(outer, run_config=QUIET)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        await begun.wait()
        kind = SteeringEventType.USER_MESSAGE
        await client.steer(SESSION, task, kind, {"text": "to Ann only"})
        steered.set()
        assert await client.result(SESSION, task, timeout_s=60) == "done"
    assert [[each["content"] for each in given] for given in inner.inputs] == [["inner"]]
    assert [each.get("content") for each in model.inputs[1]].count("to Ann only") == 1


def unheard(event: object) -> None:
    """Take an event of a stream."""
    del event


@pytest.mark.parametrize("on_stream", [None, unheard], ids=["whole", "streamed"])
async def test_agents_in_tools_that_give_calls_the_same_id_have_their_own_decisions(
    store: RedisStateStore, on_stream: Any
) -> None:
    decided: dict[str, Any] = {}

    @function_tool(needs_approval=True)
    def pay(to: str) -> str:
        decision = current_decision()
        assert decision is not None
        decided[to] = decision.value
        return f"paid {to}"

    def first(items: list[dict[str, Any]]) -> Any:
        return [call("pay", {"to": items[0]["content"]}, "same")]

    def helper_turn(items: list[dict[str, Any]]) -> Any:
        is_first = not any(item.get("type") == "function_call" for item in items)
        return first(items) if is_first else str(items[-1]["output"])

    helper = agent_of(scripted(helper_turn), "helper", tools=[pay])
    asks = [call("ask", {"input": name}, f"call-{name}") for name in ("ann", "bob")]
    ask = helper.as_tool("ask", "asks", on_stream=on_stream)
    outer = agent_of(scripted(asks, "done"), tools=[ask])
    pauses = {"schema": {"type": ["string", "null"]}}
    handler = openai_handler(outer, pauses=pauses, run_config=QUIET)
    async with pool(store, {"clerk": handler}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)

        async def both() -> Any:
            found = await client.pauses(SESSION)
            return found if len(found) == 2 else None

        for pause in await eventually(both, "both calls wait"):
            to = pause.payload["arguments"]["to"]
            await client.approve(str(pause.pause_id), f"for {to}")
        assert await client.result(SESSION, task, timeout_s=60) == "done"
    assert decided == {"ann": "for ann", "bob": "for bob"}


async def test_an_agent_deep_in_tools_reads_its_decision_and_each_call_is_shown_once(
    store: RedisStateStore,
) -> None:
    decided: list[Any] = []

    @function_tool(needs_approval=True)
    def pay() -> str:
        decision = current_decision()
        decided.append(None if decision is None else decision.value)
        return "paid"

    # The path of a place is shortened: by then it is longer than a path may be.
    tools: list[Any] = [pay]
    agent = agent_of(scripted([call("pay", call_id="pay" * 12)], "done"), "a" * 60, tools=tools)
    for name in "bc":
        asked = call(f"ask-{name}", {"input": "go"}, name * 40)
        tools = [agent.as_tool(f"ask-{name}", "asks")]
        agent = agent_of(scripted([asked], "done"), name * 60, tools=tools)
    pauses = {"schema": {"type": ["string", "null"]}}
    handler = openai_handler(agent, pauses=pauses, publish=True, run_config=QUIET)
    async with pool(store, {"clerk": handler}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        (pause,) = await client.pauses(SESSION)
        await client.approve(str(pause.pause_id), "for ann")
        assert await client.result(SESSION, task, timeout_s=60) == "done"
    assert decided == ["for ann"]
    updates = await updates_of(store, task)
    shown = [each.content for each in updates if each.update_type is UpdateType.TOOL_CALL]
    ids = ["pay" * 12, "b" * 40, "c" * 40]
    for part in ("arguments", "result"):
        assert sorted(each["tool_call_id"] for each in shown if part in each) == sorted(ids)


async def test_a_session_keeps_what_was_before_an_approval_that_the_handler_gives(
    store: RedisStateStore,
) -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    agent = agent_of(scripted([call("pay")], "done"), tools=[pay])

    async def handler(ctx: TaskContext) -> Any:
        session = RedisStateSession("talk", store=ctx.store)
        result = await Runner.run(agent, "go", session=session, run_config=QUIET)
        await ctx.pause(name="meanwhile")
        state = result.to_state()
        for each in result.interruptions:
            state.approve(each)
        return (await Runner.run(agent, state, session=session, run_config=QUIET)).final_output

    async with pool(store, {"clerk": durable(handler, pauses=False)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        (pause,) = await client.pauses(SESSION)
        await client.approve(str(pause.pause_id))
        assert await client.result(SESSION, task, timeout_s=60) == "done"
    items: Any = await RedisStateSession("talk", store=store).get_items()
    kinds = [item.get("role") or item["type"] for item in items]
    assert kinds == ["user", "function_call", "function_call_output", "assistant"]
