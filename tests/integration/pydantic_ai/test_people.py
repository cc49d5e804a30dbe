"""Waits for people in agents of pydantic-ai: pauses that free the worker, one winner for each."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("jsonschema", reason="needs the forms extra")
pytest.importorskip("pydantic_ai", reason="needs the pydantic-ai extra")

from pydantic_ai import DeferredToolRequests, RunContext, Tool
from pydantic_ai.capabilities import RequestInput
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.tools import DeferredToolResults

from redis_state import RedisStateStore
from redis_state.errors import InvalidDecision, TokenResolved
from redis_state.integrations.agent_runs.units import Units
from redis_state.integrations.pydantic_ai import current_task, durable, pydantic_handler
from redis_state.integrations.pydantic_ai.approvals import NOT_IN_TIME
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import OpenPause, TaskClient, TaskContext
from redis_state.worker.tasks.waitpoints.deciding import pause_left_ms
from redis_state.worker.tasks.waitpoints.pause_tokens import token_key
from tests.support.agents.pydantic_ai import call, durable_agent, returns, says, scripted
from tests.support.processes.pools import SESSION, becomes, pool, statuses
from tests.support.samples import changed
from tests.support.tasks.runs import run_to_the_end

pytestmark = pytest.mark.worker


async def opened(client: TaskClient, task: str, many: int = 1) -> dict[str, OpenPause]:
    """Wait until a task has paused with so many pauses; return them by the ids of their calls."""
    await becomes(client, task, TaskStatus.PAUSED)
    pauses = [pause for pause in await client.pauses(SESSION) if pause.task_id == task]
    assert len(pauses) == many
    return {pause.payload["tool_call_id"]: pause for pause in pauses}


def durably(agent: Any, **options: Any) -> Any:
    """Make a handler whose result is what the agent's tools have given back."""

    async def handler(ctx: TaskContext) -> Any:
        return returns((await agent.run(ctx.input, **options)).all_messages())

    return durable(handler)


async def test_the_approvals_of_one_response_are_decided_in_any_order_by_one_winner_each(
    store: RedisStateStore,
) -> None:
    seen: list[int] = []
    paid: list[tuple[str, int, Any]] = []
    looked: list[int] = []
    many = [call("look"), *(call("pay", {"to": name, "amount": 5}, name) for name in "abc")]
    agent = durable_agent(scripted(many, "done", seen=seen))
    agent.tool_plain(name="look")(says("seen", looked))

    @agent.tool(requires_approval=True)
    async def pay(ctx: RunContext[Any], to: str, amount: int) -> str:
        paid.append((to, amount, ctx.tool_call_metadata))
        return f"paid {to}"

    async with pool(store, {"clerk": durably(agent)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        pauses = await opened(client, task, 3)
        assert pauses["a"].payload["arguments"] == {"to": "a", "amount": 5}
        assert pauses["a"].reason == "await_approval"
        ids = {name: str(pause.pause_id) for name, pause in pauses.items()}
        with pytest.raises(InvalidDecision):
            await client.approve(ids["c"], {"to": "c", "amount": "much"})
        decisions = await asyncio.gather(
            *(client.approve(ids["c"], {"to": "c", "amount": 3}, actor=f"p{n}") for n in range(3)),
            return_exceptions=True,
        )
        assert sum(isinstance(each, TokenResolved) for each in decisions) == 2
        await client.reject(ids["b"], "too much", actor="ann")
        await becomes(client, task, TaskStatus.PAUSED)
        assert paid == []
        await client.approve(ids["a"], actor="ann")
        assert await client.result(SESSION, task, timeout_s=60) == {
            "look": "seen",
            "a": "paid a",
            "b": "too much",
            "c": "paid c",
        }
    by = next(f"p{n}" for n, each in enumerate(decisions) if not isinstance(each, Exception))
    assert sorted(paid, key=str) == [
        ("a", 5, {"decided_by": "ann"}),
        ("c", 3, {"decided_by": by}),
    ]
    assert (seen, looked) == ([0, 1], [1])


async def test_an_approval_that_says_what_nobody_can_judge_denies_the_call(
    store: RedisStateStore,
) -> None:
    paid: list[Any] = []

    def pay(**given: Any) -> str:
        paid.append(given)
        return "paid"

    # A reference into another document: the schema of some servers' tools, which is no form.
    parts = {"amount": {"$ref": "https://example.com/amount.json"}}
    schema = {"type": "object", "properties": parts}
    tool = Tool[Any].from_schema(pay, "pay", "Pay.", schema)
    tool.requires_approval = True
    calls = [call("pay", {"amount": 5}, each) for each in "abc"]
    agent = durable_agent(scripted(calls, "done"), tools=[tool])
    async with pool(store, {"clerk": durably(agent)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        pauses = await opened(client, task, 3)
        for name, value in {"a": "only 3", "b": None, "c": {"amount": 3}}.items():
            await client.approve(str(pauses[name].pause_id), value)
        found = await client.result(SESSION, task, timeout_s=60)
    why = "The approval has a value that is no object of arguments, so the tool was not called."
    assert found == {"a": why, "b": "paid", "c": "paid"}
    assert sorted(each["amount"] for each in paid) == [3, 5]


async def test_an_approval_that_a_tool_asks_for_times_out_as_its_terms_say(
    store: RedisStateStore,
) -> None:
    begun: Counter[str] = Counter()
    terms = {"timeout": timedelta(milliseconds=50), "tags": ["money"]}
    agent = durable_agent(scripted([call("pay")], "done"), durability={"pauses": terms})

    @agent.tool
    async def pay(ctx: RunContext[Any]) -> str:
        begun["pay"] += 1
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"why": "large"})
        return "paid"

    async with pool(store, {"clerk": durably(agent)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        found = await client.result(SESSION, task, timeout_s=60)
    assert found["pay"] == "No decision on this tool call arrived in time."
    assert begun == {"pay": 1}


async def test_a_call_that_is_made_elsewhere_gets_its_result_by_the_pause(
    store: RedisStateStore,
) -> None:
    agent = durable_agent(scripted([call("fetch"), call("drop")], "done"))

    @agent.tool_plain
    async def fetch() -> int:
        raise CallDeferred

    @agent.tool_plain
    async def drop() -> int:
        raise CallDeferred

    async with pool(store, {"clerk": durably(agent)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        pauses = await opened(client, task, 2)
        assert pauses["fetch"].reason == "await_result"
        # Its form is the type that the tool says it returns.
        with pytest.raises(InvalidDecision):
            await client.approve(str(pauses["fetch"].pause_id), "seven")
        await client.approve(str(pauses["fetch"].pause_id), 7)
        await client.reject(str(pauses["drop"].pause_id), {"reason": "gone"})
        found = await client.result(SESSION, task, timeout_s=60)
    assert found == {"fetch": 7, "drop": "gone"}


async def test_deferred_calls_may_be_left_to_pydantic_ai(store: RedisStateStore) -> None:
    agent = durable_agent(
        scripted([call("pay")], "done"),
        durability={"pauses": False},
        output_type=[str, DeferredToolRequests],
    )
    agent.tool_plain(name="pay", requires_approval=True)(says("paid"))
    async with pool(store, {"clerk": pydantic_handler(agent)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        found = await client.result(SESSION, task, timeout_s=60)
    assert [each["tool_call_id"] for each in found["approvals"]] == ["pay"]


@pytest.mark.parametrize("answer", ["by a person", "rejected", "at once"])
async def test_a_requested_input_is_a_pause_whose_token_the_application_gets(
    store: RedisStateStore, answer: str
) -> None:
    asked: list[str] = []
    paid: list[int] = []

    async def ask(
        ctx: RunContext[Any], requests: DeferredToolRequests, token: str
    ) -> DeferredToolResults | None:
        asked.append(token)
        return requests.build_results(approve_all=True) if answer == "at once" else None

    agent = durable_agent(scripted([call("pay")], "done"), capabilities=[RequestInput(ask)])
    agent.tool_plain(name="pay", requires_approval=True)(says("paid", paid))
    async with pool(store, {"clerk": durably(agent)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        if answer != "at once":
            await becomes(client, task, TaskStatus.PAUSED)
            decision: Any = {"approvals": {"pay": {"kind": "tool-denied", "message": "no"}}}
            approved = answer == "by a person"
            value = decision if approved else "never"
            await client.resolve(asked[0], approved=approved, value=value)
            with pytest.raises(TokenResolved):
                await client.approve(asked[0], decision)
        found = await client.result(SESSION, task, timeout_s=60)
        assert await client.pauses(SESSION) == []
    wanted = {
        "by a person": "no",
        "rejected": "No decision on this tool call arrived: never",
        "at once": "paid",
    }
    assert found == {"pay": wanted[answer]}
    assert (len(asked), len(paid)) == (1, answer == "at once")


async def test_an_input_that_was_there_at_once_is_found_when_its_token_is_long_gone(
    store: RedisStateStore,
) -> None:
    asked: list[str] = []

    async def ask(
        ctx: RunContext[Any], requests: DeferredToolRequests, token: str
    ) -> DeferredToolResults | None:
        asked.append(token)
        return requests.build_results(approve_all=True)

    agent = durable_agent(scripted([call("pay")], "done"), capabilities=[RequestInput(ask)])
    agent.tool_plain(name="pay", requires_approval=True)(says("paid"))

    async def handler(ctx: TaskContext) -> Any:
        found = returns((await agent.run(ctx.input)).all_messages())
        await ctx.pause(name="later")
        return found

    brief = changed(store.settings, resolved_token_ttl=timedelta(milliseconds=1))
    async with brief, pool(brief, {"clerk": durable(handler)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)

        async def is_gone() -> bool:
            return not await store.transport.commands.exists(token_key(store, asked[0]))

        await eventually(is_gone, "nobody knows the first token any more")
        (pause,) = await client.pauses(SESSION)
        await client.approve(str(pause.pause_id))
        assert await client.result(SESSION, task, timeout_s=60) == {"pay": "paid"}
    assert len(asked) == 1


async def test_an_input_that_comes_too_late_is_none(store: RedisStateStore) -> None:
    async def ask(
        ctx: RunContext[Any], requests: DeferredToolRequests, token: str
    ) -> DeferredToolResults | None:
        async def is_over() -> bool:
            digest = token_key(store, token).rpartition(":")[2]
            return await pause_left_ms(store, SESSION, digest) == 0

        await eventually(is_over, "the time for an answer is up")
        return requests.build_results(approve_all=True)

    capability = RequestInput[Any](ask, timeout=timedelta(milliseconds=50))
    agent = durable_agent(scripted([call("pay")], "done"), capabilities=[capability])
    agent.tool_plain(name="pay", requires_approval=True)(says("paid"))
    async with pool(store, {"clerk": durably(agent)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        found = await client.result(SESSION, task, timeout_s=60)
    assert found == {"pay": f"No decision on this tool call arrived: {NOT_IN_TIME}"}


async def test_agents_in_parallel_tools_wait_for_people_and_no_sibling_is_done_again(
    store: RedisStateStore,
) -> None:
    calls: Counter[str] = Counter()
    inner = durable_agent(scripted([call("pay")], "inner done"), "inner")
    names = [call("ask", {"name": name}, name) for name in "ab"]
    outer = durable_agent(scripted([*names, call("slow")], "done"), "outer")

    @inner.tool_plain(requires_approval=True)
    async def pay() -> str:
        calls["pay"] += 1
        return "paid"

    @outer.tool_plain
    async def ask(name: str) -> Any:
        calls[f"ask {name}"] += 1
        return (await inner.run("go")).output

    @outer.tool_plain
    async def slow() -> str:
        calls["slow"] += 1
        client = TaskClient(store)
        await eventually(lambda: _has(client, 2), "both agents wait")
        return "slow"

    async def _has(client: TaskClient, many: int) -> bool:
        return len(await client.pauses(SESSION)) == many

    async with pool(store, {"clerk": durably(outer)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        pauses = await client.pauses(SESSION)
        assert [pause.payload["tool"] for pause in pauses] == ["pay", "pay"]
        for pause in pauses[::-1]:
            await client.approve(str(pause.pause_id))
        found = await client.result(SESSION, task, timeout_s=60)
    assert found == {"a": "inner done", "b": "inner done", "slow": "slow"}
    assert (calls["slow"], calls["pay"]) == (1, 2)


async def turn(count: int) -> None:
    """Let other asyncio tasks run, so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def runs_beside_a_pause(ctx: TaskContext, turns: int) -> bool:
    """Return whether a unit that begins so many turns behind another one runs beside a pause."""
    units, running = Units(), Counter[str]()

    async def siblings() -> None:
        async with units.one():
            await turn(5)
        await turn(turns)
        async with units.one():
            running["unit"] += 1
            await turn(20)
            running["unit"] -= 1

    beside = asyncio.create_task(siblings())
    await turn(1)
    async with units.quiet(ctx.inbox):
        seen = running["unit"]
        for _ in range(10):
            await turn(1)
            seen += running["unit"]
    await beside
    return seen > 0


async def test_no_unit_begins_beside_a_pause_at_any_turn_of_the_loop(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> list[int]:
        return [turns for turns in range(12) if await runs_beside_a_pause(ctx, turns)]

    state = await run_to_the_end(store, handler)
    assert state.result == []


async def test_no_handling_of_errors_stops_a_pause(store: RedisStateStore) -> None:
    asked: list[int] = []
    agent = durable_agent(scripted([call("ask")], "done"))

    @agent.tool_plain(retries=3)
    async def ask() -> str:
        try:
            return str((await current_task().approval("tool?")).approved)
        except Exception as error:  # noqa: BLE001 - what a pause must pass
            return type(error).__name__

    @agent.output_validator
    async def check(output: str) -> str:
        asked.append(1)
        return f"{output} {(await current_task().approval('output?')).value}"

    async with pool(store, {"a": pydantic_handler(agent)}) as client:
        task = await client.submit("a", "go", session_id=SESSION)
        for value in ("first", "second"):
            await becomes(client, task, TaskStatus.PAUSED)
            (pause,) = await client.pauses(SESSION)
            await client.approve(str(pause.pause_id), value)
        assert await client.result(SESSION, task, timeout_s=60) == "done second"
        told_of = await statuses(store, task)
    assert (told_of.count("PAUSED"), len(asked)) == (2, 2)
