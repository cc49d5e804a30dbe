"""Model requests and tool calls of pydantic-ai are steps: none is made again in a later run."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("pydantic_ai", reason="needs the pydantic-ai extra")

from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    BinaryContent,
    DocumentUrl,
    FunctionToolset,
    ModelRetry,
    RunContext,
    ToolReturn,
    UsageLimits,
)
from pydantic_ai.exceptions import UsageLimitExceeded, UserError
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import DynamicToolset

from redis_state import RedisStateStore
from redis_state.errors import InvalidField
from redis_state.integrations.pydantic_ai import (
    RedisStateDurability,
    branch,
    current_task,
    durable,
    pydantic_handler,
    pydantic_handlers,
)
from redis_state.models import TaskStatus
from redis_state.worker import RetryPolicy, TaskContext
from tests.support.agents.pydantic_ai import call, durable_agent, returns, says, scripted
from tests.support.processes.pools import SESSION, pool
from tests.support.tasks.runs import begin_again, run_to_the_end

pytestmark = pytest.mark.worker


def twice(handler: Any, done: list[int] | None = None) -> Any:
    """Make a handler end its first run where it would return, so that the second is a replay."""
    ends = [] if done is None else done

    async def run(ctx: TaskContext) -> Any:
        result = await handler(ctx)
        ends.append(1)
        if len(ends) == 1:
            begin_again()
        return result

    return run


async def test_a_replay_makes_no_request_and_calls_no_tool_again(store: RedisStateStore) -> None:
    seen: list[int] = []
    calls: Counter[str] = Counter()
    model = scripted([call("look"), call("buy", {"item": "tea"})], "done", seen=seen)
    agent = durable_agent(model)

    @agent.tool_plain
    async def look() -> dict[str, Any]:
        calls["look"] += 1
        return {"nan": float("nan"), "bytes": BinaryContent(b"\xff", media_type="x/y")}

    @agent.tool_plain
    def buy(item: str) -> str:
        calls["buy"] += 1
        return f"bought {item}"

    kept: list[Any] = []

    async def handler(ctx: TaskContext) -> Any:
        result = await agent.run("go")
        kept.append((result.run_id, result.usage, returns(result.all_messages())))
        return result.output

    state = await run_to_the_end(store, twice(durable(handler)))
    assert (state.status, state.result) == (TaskStatus.COMPLETE, "done")
    assert (seen, calls) == ([0, 1], {"look": 1, "buy": 1})
    assert len(kept) == 2
    assert repr(kept[0]) == repr(kept[1])


async def test_parallel_tools_are_found_in_whatever_order_they_come(store: RedisStateStore) -> None:
    calls: Counter[str] = Counter()
    first = asyncio.Event()
    runs: list[int] = []
    many = [call("work", {"n": n}, f"call-{n}") for n in range(5)]
    agent = durable_agent(scripted(many, "done"))

    @agent.tool_plain
    async def work(n: int) -> int:
        calls[str(n)] += 1
        if n == 0 and len(runs) == 1:
            # The first call is the last to be recorded, and its run ends without it.
            await first.wait()
            begin_again()
        if n == 4:
            first.set()
        return n * n

    async def handler(ctx: TaskContext) -> Any:
        runs.append(1)
        return returns((await agent.run("go")).all_messages())

    state = await run_to_the_end(store, durable(handler))
    assert state.result == {f"call-{n}": n * n for n in range(5)}
    assert calls["0"] == 2
    assert all(count <= 2 for count in calls.values())


async def test_a_large_result_comes_back_whole(store: RedisStateStore) -> None:
    calls: list[int] = []
    agent = durable_agent(scripted([call("read")], "x" * 300_000))

    @agent.tool_plain
    async def read() -> str:
        calls.append(1)
        return "é" * 1_000_000

    async def handler(ctx: TaskContext) -> list[int]:
        result = await agent.run("go")
        return [len(result.output), len(returns(result.all_messages())["read"])]

    state = await run_to_the_end(store, twice(durable(handler)))
    assert (state.result, calls) == ([300_000, 1_000_000], [1])


async def test_a_tool_has_its_own_retry_policy_and_a_retry_of_the_model_is_none(
    store: RedisStateStore,
) -> None:
    calls: Counter[str] = Counter()
    quick = RetryPolicy(attempts=3, on=ConnectionError, wait_initial_s=0, wait_max_s=0)
    model = scripted([call("named"), call("marked")], [call("named", None, "2")], "done")
    agent = durable_agent(model, durability={"tools": {"named": quick}})

    @agent.tool_plain
    async def named() -> str:
        calls["named"] += 1
        if calls["named"] < 3:
            raise ConnectionError
        if calls["named"] == 3:
            raise ModelRetry("once more")
        return "named"

    @agent.tool_plain(metadata={"redis_state": {"retry": quick}})
    async def marked() -> str:
        calls["marked"] += 1
        if calls["marked"] < 2:
            raise ConnectionError
        return "marked"

    async def handler(ctx: TaskContext) -> Any:
        return returns((await agent.run("go")).all_messages())

    state = await run_to_the_end(store, twice(durable(handler)))
    assert state.result == {"named": "once more", "2": "named", "marked": "marked"}
    assert calls == {"named": 4, "marked": 2}


async def test_a_tool_may_run_in_the_handler_and_its_agent_in_steps_of_its_own(
    store: RedisStateStore,
) -> None:
    seen: list[int] = []
    calls: list[str] = []
    inner = durable_agent(scripted("inner", seen=seen), "inner")
    outer = durable_agent(
        scripted([call("ask", None, "1"), call("ask", None, "2")], "done"),
        "outer",
        durability={"tools": {"ask": False}},
    )

    @outer.tool
    async def ask(ctx: RunContext[Any]) -> Any:
        calls.append(str(ctx.tool_call_id))
        result = await inner.run("go", usage=ctx.usage)
        return f"{result.output} {result.run_id}"

    async def handler(ctx: TaskContext) -> Any:
        result = await outer.run("go")
        assert result.usage.requests == 4
        return returns(result.all_messages())

    state = await run_to_the_end(store, twice(durable(handler)))
    assert state.result is not None
    assert len(set(state.result.values())) == 2
    assert sorted(calls) == ["1", "1", "2", "2"]
    assert len(seen) == 2


async def test_an_agent_in_a_tool_of_another_is_found_again_if_the_tool_was_not_done(
    store: RedisStateStore,
) -> None:
    seen: list[int] = []
    runs: list[int] = []
    usages: list[int] = []
    inner = durable_agent(scripted([call("look")], "inner", seen=seen), "inner")
    outer = durable_agent(scripted([call("ask")], "done"), "outer")
    inner.tool_plain(name="look")(says("seen"))

    @outer.tool
    async def ask(ctx: RunContext[Any]) -> Any:
        output = (await inner.run("go", usage=ctx.usage)).output
        if len(runs) == 1:
            begin_again()
        return output

    async def handler(ctx: TaskContext) -> Any:
        runs.append(1)
        result = await outer.run("go")
        usages.append(result.usage.requests)
        if len(runs) == 2:
            begin_again()
        return returns(result.all_messages())

    state = await run_to_the_end(store, durable(handler))
    # The second run did the tool, the third has its record: both count what its agent used.
    assert (state.result, seen, usages) == ({"ask": "inner"}, [0, 1], [4, 4])


async def test_several_runs_of_one_agent_have_ids_of_their_own(store: RedisStateStore) -> None:
    seen: list[int] = []
    ids: list[list[str]] = []
    agent = durable_agent(scripted("done", seen=seen))

    async def named(name: str) -> Any:
        with branch(name):
            return await agent.run(name)

    async def handler(ctx: TaskContext) -> Any:
        names = ["a", "b", "/", "x" * 1000]
        # In another order in the second run.
        order = names if not ids else names[::-1]
        results = [await agent.run("1"), await agent.run("2")]
        results += await asyncio.gather(*map(named, order))
        results += await asyncio.gather(agent.run("5", run_id="x"), agent.run("6", run_id="y"))
        ids.append(sorted(str(result.run_id) for result in results))
        with pytest.raises(InvalidField, match="run_id"):
            await asyncio.gather(agent.run("7"), agent.run("8"))
        with pytest.raises(InvalidField, match="another branch"):
            await named("a")

    await run_to_the_end(store, twice(durable(handler)))
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 8
    # The seventh is done, or the end of its handler ends it.
    assert len(seen) in (8, 8 + 1)


async def test_hostile_ids_of_calls_and_tools_are_kept_apart(store: RedisStateStore) -> None:
    calls: Counter[str] = Counter()
    odd = ["", "#", "a#2", "a/b", "a", "~", "x" * 70_000, "x" * 70_001, "\n\x00", "é", "\ud800"]
    turns = [[call("work", {"n": n}, each) for n, each in enumerate(odd)]]
    # One id in several responses of a run. Within one response pydantic-ai refuses that.
    turns += [[call("work", {"n": n}, "a")] for n in (100, 101, 100)]
    agent = durable_agent(scripted(*turns, "done"), "clerk/# é")

    @agent.tool_plain
    async def work(n: int) -> int:
        calls[str(n)] += 1
        return n

    async def handler(ctx: TaskContext) -> Any:
        for prompt in ("one", "two"):
            assert (await agent.run(prompt)).output == "done"

    await run_to_the_end(store, twice(durable(handler)))
    wanted = {str(n): 2 for n in range(len(odd))} | {"100": 4, "101": 2}
    assert calls == wanted


async def test_the_tools_of_a_dynamic_toolset_are_steps(store: RedisStateStore) -> None:
    made: list[str] = []
    calls: list[int] = []

    def make(ctx: RunContext[Any]) -> FunctionToolset[Any]:
        made.append(current_task().task.task_id)
        return FunctionToolset([Tool(says("seen", calls), name="look")])

    agent = durable_agent(
        scripted([call("look")], "done"), toolsets=[DynamicToolset(make, id="dynamic")]
    )
    seen: list[Any] = []

    async def handler(ctx: TaskContext) -> Any:
        seen.append(returns((await agent.run("go")).all_messages()))

    await run_to_the_end(store, twice(durable(handler)))
    assert seen == [{"look": "seen"}] * 2
    assert (calls, set(made)) == ([1], {"t"})


async def test_a_toolset_of_one_run_is_refused_in_a_task(store: RedisStateStore) -> None:
    agent = durable_agent(scripted("done"))

    async def handler(ctx: TaskContext) -> Any:
        with pytest.raises(UserError, match="redis_state"):
            await agent.run("go", toolsets=[FunctionToolset([says("x")], id="late")])

    state = await run_to_the_end(store, durable(handler))
    assert state.status is TaskStatus.COMPLETE


async def test_usage_limits_hold_in_a_replay_too(store: RedisStateStore) -> None:
    seen: list[int] = []
    agent = durable_agent(scripted([call("look")], [call("look")], "done", seen=seen))
    agent.tool_plain(name="look")(says("seen"))

    async def handler(ctx: TaskContext) -> Any:
        with pytest.raises(UsageLimitExceeded):
            await agent.run("go", usage_limits=UsageLimits(request_limit=2))

    await run_to_the_end(store, twice(durable(handler)))
    assert seen == [0, 1]


class Answer(BaseModel):
    text: str
    sure: bool


async def test_a_handler_gives_the_output_and_takes_what_an_agent_needs(
    store: RedisStateStore,
) -> None:
    given: list[Any] = []
    agent = Agent(
        scripted([call("final_result", {"text": "yes", "sure": True})]),
        name="clerk",
        deps_type=str,
        output_type=Answer,
    )

    @agent.output_validator
    def check(ctx: RunContext[str], answer: Answer) -> Answer:
        given.append((ctx.deps, ctx.prompt, current_task().task.task_id))
        return answer

    handler = pydantic_handler(agent, deps=lambda ctx: f"deps of {ctx.task.task_id}")
    async with pool(store, {"clerk": handler}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        found = await client.result(SESSION, task, timeout_s=60)
    assert found == {"text": "yes", "sure": True}
    assert given == [(f"deps of {task}", "go", task)]


async def test_bad_input_is_refused_where_it_is_given() -> None:
    model = scripted("done")
    with pytest.raises(InvalidField, match="name"):
        pydantic_handler(Agent(model))
    with pytest.raises(InvalidField, match="clerk"):
        pydantic_handlers(Agent(model, name="clerk"), Agent(model, name="clerk"))
    with pytest.raises(InvalidField, match="deps"):
        pydantic_handler(Agent(model, name="clerk"), deps="no function")  # type: ignore[arg-type]
    with pytest.raises(InvalidField, match="message_history"):
        pydantic_handler(Agent(model, name="clerk"), message_history=[])
    wrong: tuple[Any, ...] = (
        {"tools": {"a": 3}},
        {"retry": 3},
        {"pauses": {"key": "x"}},
        {"pauses": 7},
    )
    for options in wrong:
        with pytest.raises(InvalidField):
            RedisStateDurability(**options)
    with pytest.raises(InvalidField, match="task"):
        current_task()


async def test_what_a_tool_returns_beside_text_is_the_same_in_a_replay(
    store: RedisStateStore,
) -> None:
    calls: list[int] = []
    # What a tool adds is a prompt, from which the turns count again.
    agent = durable_agent(scripted(lambda said: "done" if returns(said) else [call("look")]))

    @agent.tool_plain
    async def look() -> ToolReturn[Any]:
        calls.append(1)
        return ToolReturn(
            return_value={"page": DocumentUrl("https://x.example/a", media_type="text/x")},
            content=["see", BinaryContent(b"\x00\xff", media_type="x/y")],
            metadata={"seen": [1, 2]},
        )

    kept: list[Any] = []

    async def handler(ctx: TaskContext) -> Any:
        kept.append((await agent.run("go")).all_messages())

    state = await run_to_the_end(store, twice(durable(handler)))
    assert (state.status, calls) == (TaskStatus.COMPLETE, [1])
    for messages in kept:
        parts = [part for message in messages for part in message.parts]
        (returned,) = [part for part in parts if part.part_kind == "tool-return"]
        assert returned.content["page"].media_type == "text/x"
        assert returned.metadata == {"seen": [1, 2]}
        contents = [part.content for part in parts if part.part_kind == "user-prompt"]
        assert contents[-1] == ["see", BinaryContent(b"\x00\xff", media_type="x/y")]
    assert len(kept) == 2


async def test_a_run_of_other_deps_or_another_model_is_repeated_as_such(
    store: RedisStateStore,
) -> None:
    asked: dict[str, list[int]] = {"own": [], "given": [], "put in": []}
    models = {name: scripted([call("look")], name, seen=seen) for name, seen in asked.items()}
    calls: list[str] = []
    agent: Agent[Any, str] = durable_agent(models["own"], durability={"models": models})

    @agent.tool
    async def look(ctx: RunContext[Any]) -> str:
        calls.append(ctx.deps)
        return f"seen by {ctx.deps}"

    async def handler(ctx: TaskContext) -> Any:
        runs = [await agent.run("go", deps="ann"), await agent.run("go", model=models["given"])]
        with agent.override(model=models["put in"], deps="bob"):
            runs.append(await agent.run("go"))
        return [[run.output, returns(run.all_messages())["look"]] for run in runs]

    state = await run_to_the_end(store, twice(durable(handler)))
    assert state.result == [
        ["own", "seen by ann"],
        ["given", "seen by None"],
        ["put in", "seen by bob"],
    ]
    assert asked == {"own": [0, 1], "given": [0, 1], "put in": [0, 1]}
    assert calls == ["ann", None, "bob"]


async def test_outside_of_a_task_an_agent_runs_as_it_does_without() -> None:
    calls: list[int] = []
    agent = durable_agent(scripted([call("look")], "done"))
    agent.tool_plain(name="look")(says("seen", calls))
    result = await agent.run("go")
    assert (result.output, calls) == ("done", [1])
    assert set(pydantic_handlers(agent)) == {"clerk"}


def test_the_adapter_says_which_extra_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "redis_state.integrations.pydantic_ai"
    for module in [each for each in sys.modules if each.startswith(name)]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pydantic_ai.durable_exec", None)
    with pytest.raises(ImportError, match=r"pip install 'redis_state\[pydantic-ai\]'"):
        import_module(name)
