"""Approvals of the OpenAI Agents SDK: pauses that free the worker, one winner for each."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("jsonschema", reason="needs the forms extra")
pytest.importorskip("agents", reason="needs the openai-agents extra")

from agents import Agent, Runner, function_tool
from agents.items import ToolApprovalItem

from redis_state import RedisStateStore
from redis_state.errors import InvalidDecision, InvalidField, TokenResolved
from redis_state.integrations.openai_agents import approvals, durable, openai_handler
from redis_state.models import TaskStatus
from redis_state.worker import OpenPause, TaskClient, TaskContext
from tests.support.agents.openai_agents import (
    QUIET,
    Items,
    Turn,
    agent_of,
    call,
    outputs,
    scripted,
)
from tests.support.processes.pools import SESSION, becomes, pool

pytestmark = pytest.mark.worker


async def opened(client: TaskClient, task: str, many: int = 1) -> dict[str, OpenPause]:
    """Wait until a task has paused with so many pauses; return them by the ids of their calls."""
    await becomes(client, task, TaskStatus.PAUSED)
    pauses = [pause for pause in await client.pauses(SESSION) if pause.task_id == task]
    assert len(pauses) == many
    return {pause.payload["tool_call_id"]: pause for pause in pauses}


def durably(agent: Agent[Any], **terms: Any) -> Any:
    """Make a handler whose result is what the agent's tools have given back."""

    async def handler(ctx: TaskContext) -> Any:
        result = await Runner.run(agent, ctx.input, run_config=QUIET)
        return outputs(result.to_input_list())

    return durable(handler, **terms)


async def test_the_approvals_of_one_response_are_decided_in_any_order_by_one_winner_each(
    store: RedisStateStore,
) -> None:
    done: Counter[str] = Counter()

    @function_tool
    def look() -> str:
        done["look"] += 1
        return "seen"

    @function_tool(needs_approval=True)
    def pay(to: str) -> str:
        done[to] += 1
        return f"paid {to}"

    model = scripted([call("look"), *(call("pay", {"to": each}, each) for each in "abc")], "done")
    agent = agent_of(model, tools=[look, pay])
    async with pool(store, {"clerk": durably(agent)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        pauses = await opened(client, task, 3)
        assert pauses["a"].payload["arguments"] == {"to": "a"}
        assert (pauses["a"].payload["agent"], pauses["a"].reason) == ("clerk", "await_approval")
        ids = {name: str(pause.pause_id) for name, pause in pauses.items()}
        with pytest.raises(InvalidDecision):
            await client.approve(ids["c"], {"to": "somebody else"})
        decisions = await asyncio.gather(
            *(client.approve(ids["c"], actor=f"p{n}") for n in range(3)), return_exceptions=True
        )
        assert sum(isinstance(each, TokenResolved) for each in decisions) == 2
        await client.reject(ids["b"], "too much", actor="ann")
        await becomes(client, task, TaskStatus.PAUSED)
        assert done == {"look": 1}
        await client.approve(ids["a"], actor="ann")
        assert await client.result(SESSION, task, timeout_s=60) == {
            "look": "seen",
            "a": "paid a",
            "b": "too much",
            "c": "paid c",
        }
    assert done == {"look": 1, "a": 1, "c": 1}
    assert model.seen == [0, 1]


@function_tool(needs_approval=True)
def send(to: str) -> str:
    """Pay somebody."""
    return f"paid {to}"


@pytest.mark.full
async def test_an_approval_times_out_as_its_terms_say(store: RedisStateStore) -> None:
    terms = {"timeout": timedelta(milliseconds=50)}
    agent = agent_of(scripted([call("send", {"to": "b"}, "b")], "done"), tools=[send])
    async with pool(store, {"clerk": durably(agent, pauses=terms)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        found = await client.result(SESSION, task, timeout_s=60)
    assert found == {"b": "No decision on this tool call arrived in time."}


async def test_an_approval_may_hold_for_later_calls(store: RedisStateStore) -> None:
    def terms(item: ToolApprovalItem) -> dict[str, Any]:
        return {"tags": [str(item.arguments)]}

    turns = [[call("send", {"to": each}, each)] for each in "cd"]
    agent = agent_of(scripted(*turns, "done"), tools=[send])
    async with pool(store, {"clerk": durably(agent, pauses=terms)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        pauses = await opened(client, task)
        assert list(pauses["c"].tags) == ['{"to":"c"}']
        await client.approve(str(pauses["c"].pause_id), {"always": True})
        found = await client.result(SESSION, task, timeout_s=60)
    assert found == {"c": "paid c", "d": "paid d"}


@pytest.mark.parametrize("terms", [{}, {"schema": int}], ids=["no schema", "a schema"])
async def test_without_a_form_an_approval_that_says_more_rejects_the_call(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch, terms: dict[str, Any]
) -> None:
    # As where jsonschema is not installed: with a type as schema no worker needs it.
    monkeypatch.setattr(approvals, "find_spec", dict[str, Any]().get)
    says: dict[str, Any] = {"a": 3}
    if not terms:
        says = {"a": "only 3", "b": {"amount": 3}, "c": {"always": True, "amount": 3}, "d": {}}
    calls = [call("send", {"to": each}, each) for each in says]
    agent = agent_of(scripted(calls, "done"), tools=[send])
    async with pool(store, {"clerk": durably(agent, pauses=terms)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        pauses = await opened(client, task, len(says))
        for name, value in says.items():
            await client.approve(str(pauses[name].pause_id), value)
        found = await client.result(SESSION, task, timeout_s=60)
    why = "The approval has a value that nothing reads, so the tool was not called."
    wanted = {"a": "paid a"} if terms else {"a": why, "b": why, "c": why, "d": "paid d"}
    assert found == wanted


async def test_agents_as_tools_wait_for_people_together_and_no_sibling_is_done_again(
    store: RedisStateStore,
) -> None:
    done: Counter[str] = Counter()

    @function_tool(needs_approval=True)
    def pay() -> str:
        done["pay"] += 1
        return "paid"

    @function_tool
    def slow() -> str:
        done["slow"] += 1
        return "slow"

    def write(items: Items) -> Turn:
        for found in outputs(items).values():
            return f"inner {found}"
        return [call("pay", {}, f"pay for {items[0]['content']}")]

    inner = scripted(write)
    asked = agent_of(inner, "inner", tools=[pay])
    asks = [call("ask", {"input": each}, each) for each in "ab"]
    outer = scripted([*asks, call("slow")], "done")
    agent = agent_of(outer, "outer", tools=[asked.as_tool("ask", "Ask it."), slow])
    async with pool(store, {"clerk": durably(agent)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        pauses = await client.pauses(SESSION)
        assert [pause.payload["agent"] for pause in pauses] == ["inner", "inner"]
        await client.reject(str(pauses[0].pause_id), "no")
        await client.approve(str(pauses[1].pause_id))
        found = await client.result(SESSION, task, timeout_s=60)
    assert sorted(found.values()) == ["inner no", "inner paid", "slow"]
    assert done == {"pay": 1, "slow": 1}
    assert (len(inner.seen), outer.seen) == (4, [0, 1])


async def test_interruptions_may_be_left_to_the_handler(store: RedisStateStore) -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    agent = agent_of(scripted([call("pay")], "done"), tools=[pay])

    async def handler(ctx: TaskContext) -> Any:
        result = await Runner.run(agent, ctx.input, run_config=QUIET)
        state = result.to_state()
        for item in result.interruptions:
            state.approve(item)
        return (await Runner.run(agent, state, run_config=QUIET)).final_output

    async with pool(store, {"clerk": durable(handler, pauses=False)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        assert await client.result(SESSION, task, timeout_s=60) == "done"
    with pytest.raises(InvalidField, match="pauses"):
        openai_handler(agent, pauses=False)
