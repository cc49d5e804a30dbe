"""Model requests, tool calls and guardrails of the OpenAI Agents SDK as steps of a task."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from json import dumps
from typing import Any, cast

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("agents", reason="needs the openai-agents extra")

from agents import (
    Agent,
    ComputerTool,
    CustomTool,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    ModelSettings,
    OutputGuardrail,
    RunConfig,
    RunContextWrapper,
    Runner,
    ToolOutputImage,
    ToolOutputText,
    function_tool,
    handoff,
)
from agents.mcp import MCPServer
from agents.models.multi_provider import MultiProvider
from agents.retry import ModelRetryBackoffSettings, ModelRetrySettings, retry_policies
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner
from agents.tool_context import ToolContext
from httpx import Request
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as McpTool
from openai import APIConnectionError
from openai.types.responses import ResponseCustomToolCall
from pydantic import BaseModel, ConfigDict, Field

from redis_state import RedisStateStore
from redis_state.errors import InvalidField, TaskFailed
from redis_state.integrations.openai_agents import (
    branch,
    current_task,
    durable,
    openai_handler,
    openai_handlers,
)
from redis_state.integrations.openai_agents.runner import DurableRunner
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import RetryPolicy, TaskContext
from tests.support.agents.openai_agents import QUIET, agent_of, call, outputs, scripted
from tests.support.processes.pools import SESSION, becomes, pool
from tests.support.tasks.runs import begin_again, run_to_the_end

pytestmark = pytest.mark.worker


def replayed(agent: Agent[Any], done: list[Any], **terms: Any) -> Any:
    """Make a handler that runs an agent, pauses, and is replayed; ``done`` gets each result."""

    async def handler(ctx: TaskContext) -> Any:
        result = await Runner.run(agent, ctx.input, run_config=QUIET)
        done.append((result.to_input_list(), result.context_wrapper.usage.total_tokens))
        await ctx.pause(name="again")
        return result.last_agent.name

    return durable(handler, **terms)


async def approve(store: RedisStateStore, handler: Any, given: Any = "go") -> Any:
    """Run a handler that pauses once, and return its result."""
    async with pool(store, {"clerk": handler}) as client:
        task = await client.submit("clerk", given, session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        (pause,) = await client.pauses(SESSION)
        await client.approve(str(pause.pause_id))
        return await client.result(SESSION, task, timeout_s=60)


class Weather(BaseModel):
    """A result that is no JSON."""

    city: str


async def test_a_replay_makes_no_request_and_no_call_again_and_sees_the_same(
    store: RedisStateStore,
) -> None:
    calls: Counter[str] = Counter()
    effects: set[str] = set()
    results: dict[str, Any] = {
        "text": "seen",
        "json": {"a": [1, None, "ü"]},
        "pair": (1, 2),
        "model": Weather(city="Ulm"),
        "image": ToolOutputImage(image_url="https://example.org/a.png"),
        "parts": [ToolOutputText(text="one"), ToolOutputText(text="two")],
    }

    @function_tool(name_override="look")
    async def plainly(what: str) -> Any:
        await asyncio.sleep(0)
        if what == "error":
            raise ValueError("no such thing")
        return results[what]

    @function_tool
    async def look(ctx: ToolContext[Any], what: str) -> Any:
        calls[what] += 1
        effects.add(current_task().effect_id())
        return await plainly.on_invoke_tool(ctx, ctx.tool_arguments)

    @function_tool(output_type=Weather)
    async def forecast() -> Weather:
        calls["forecast"] += 1
        return Weather(city="Bonn")

    # Ids that a model makes up are any text.
    ids = {what: f"{what}/#1~\ud800{{}}é" * 9 for what in [*results, "error"]}
    turns = [*(call("look", {"what": what}, ids[what]) for what in ids), call("forecast")]
    model = scripted(turns, "done")
    agent = agent_of(model, tools=[look, forecast])
    done: list[Any] = []
    assert await approve(store, replayed(agent, done)) == "clerk"
    assert calls == dict.fromkeys([*ids, "forecast"], 1)
    assert len(effects) == len(ids)
    assert model.seen == [0, 1]
    first, second = done
    assert first == second
    found, tokens = first
    assert tokens == 30
    # What a model gets is what it gets without a task.
    again = agent_of(scripted(turns, "done"), tools=[plainly, forecast])
    plain = await Runner.run(again, "go", run_config=QUIET)
    assert found == plain.to_input_list()
    assert outputs(found)[ids["pair"]] == "(1, 2)"
    assert outputs(found)[ids["model"]] == "city='Ulm'"


async def test_handoffs_and_agents_as_tools_are_found_again_at_their_places(
    store: RedisStateStore,
) -> None:
    calls: Counter[str] = Counter()

    @function_tool
    def look() -> str:
        calls["look"] += 1
        return "seen"

    inner = scripted([call("look", call_id="inner look")], "inner done")
    expert = agent_of(inner, "expert", tools=[look])
    last = scripted([call("ask", {"input": "a"}, "a"), call("ask", {"input": "b"}, "b")], "done")
    boss = agent_of(last, "boss", tools=[expert.as_tool("ask", "Ask.")])
    first = scripted([call("look", call_id="first look")], [call("transfer_to_boss")])
    clerk = agent_of(first, tools=[look], handoffs=[handoff(boss)])
    boss.handoffs = [clerk]
    done: list[Any] = []
    assert await approve(store, replayed(clerk, done)) == "boss"
    assert done[0] == done[1]
    assert done[0][1] == 15 * 8
    assert (inner.seen, last.seen, first.seen) == ([0, 0, 1, 1], [0, 1], [0, 1])
    assert calls == {"look": 3}


async def test_a_guardrail_checks_once_and_a_tripped_one_trips_in_each_replay(
    store: RedisStateStore,
) -> None:
    checked: Counter[str] = Counter()
    judge = agent_of(scripted("fine"), "judge")

    async def ask(ctx: RunContextWrapper[Any], agent: Any, about: Any) -> GuardrailFunctionOutput:
        checked["in"] += 1
        found = await Runner.run(judge, str(about), run_config=QUIET)
        return GuardrailFunctionOutput(Weather(city=found.final_output), about == "bad")

    def look(ctx: RunContextWrapper[Any], agent: Any, about: Any) -> GuardrailFunctionOutput:
        checked["out"] += 1
        return GuardrailFunctionOutput(None, tripwire_triggered=False)

    agent = agent_of(
        scripted("done"),
        input_guardrails=[InputGuardrail(ask), InputGuardrail(ask)],
        output_guardrails=[OutputGuardrail(look)],
    )
    infos: list[Any] = []

    async def handler(ctx: TaskContext) -> Any:
        try:
            result = await Runner.run(agent, ctx.input, run_config=QUIET)
            infos.append([each.output.output_info for each in result.input_guardrail_results])
        except InputGuardrailTripwireTriggered as error:
            infos.append(error.guardrail_result.guardrail.get_name())
        await ctx.pause(name="again")

    await approve(store, durable(handler))
    assert checked == {"in": 2, "out": 1}
    assert infos == [[{"city": "fine"}, {"city": "fine"}]] * 2
    infos.clear()
    await approve(store, durable(handler), "bad")
    assert infos == ["ask", "ask"]


async def test_a_failed_request_takes_no_number_whoever_makes_it_again(
    store: RedisStateStore,
) -> None:
    tried: list[int] = []

    @function_tool(failure_error_function=None)
    def flaky() -> str:
        tried.append(1)
        if len(tried) < 2:
            raise ConnectionError
        return "seen"

    retrying = ModelSettings(
        retry=ModelRetrySettings(
            max_retries=2,
            policy=retry_policies.network_error(),
            backoff=ModelRetryBackoffSettings(initial_delay=0, jitter=False),
        )
    )
    policy = RetryPolicy(3, ConnectionError, wait_initial_s=0.01, wait_jitter_s=0)
    away = APIConnectionError(request=cast("Any", Request("POST", "http://model.invalid")))
    by_sdk = scripted([call("flaky")], "done", failing=1, error=away)
    by_us = scripted([call("flaky")], "done", failing=2)
    done: list[Any] = []
    agent = agent_of(by_us, tools=[flaky])
    await approve(store, replayed(agent, done, retry=policy, tools={"flaky": policy}))
    assert (by_us.seen, len(tried)) == ([0, 0, 0, 1], 2)
    assert done[0] == done[1]
    agent = agent_of(by_sdk, tools=[flaky], model_settings=retrying)
    done.clear()
    try:
        await approve(store, replayed(agent, done))
    except TaskFailed:
        pytest.fail("the SDK's own retries were refused")
    assert by_sdk.seen == [0, 0, 1]
    assert done[0] == done[1]


async def test_several_runs_of_a_task_need_names_only_at_once(store: RedisStateStore) -> None:
    model = scripted("done")
    agent = agent_of(model)

    async def together(ctx: TaskContext) -> Any:
        async def one(name: str) -> Any:
            with branch(name):
                return (await Runner.run(agent, name, run_config=QUIET)).final_output

        found = [await one("first"), *await asyncio.gather(one("a"), one("b"))]
        await ctx.pause(name="again")
        return found

    async def unnamed(ctx: TaskContext) -> Any:
        runs = [Runner.run(agent, name, run_config=QUIET) for name in "ab"]
        return [type(each).__name__ for each in await asyncio.gather(*runs, return_exceptions=True)]

    assert await approve(store, durable(together)) == ["done"] * 3
    assert len(model.seen) == 3
    async with pool(store, {"clerk": durable(unnamed)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        assert await client.result(SESSION, task, timeout_s=60) == ["RunResult", "InvalidField"]


async def test_a_streamed_run_in_a_task_is_durable_too(store: RedisStateStore) -> None:
    calls: list[int] = []

    @function_tool
    def look() -> str:
        calls.append(1)
        return "seen"

    model = scripted([call("look")], "all done")
    agent = agent_of(model, tools=[look])
    kinds: list[list[str]] = []

    async def handler(ctx: TaskContext) -> Any:
        result = Runner.run_streamed(agent, ctx.input, run_config=QUIET)
        kinds.append([event.type async for event in result.stream_events()])
        await ctx.pause(name="again")
        return result.final_output

    assert await approve(store, durable(handler)) == "all done"
    assert (model.seen, calls) == ([0, 1], [1])
    assert kinds[0] == kinds[1]


async def test_a_run_beside_a_streamed_one_of_the_same_agent_is_refused(
    store: RedisStateStore,
) -> None:
    model = scripted("done")
    agent = agent_of(model)

    async def handler(ctx: TaskContext) -> Any:
        found: list[str] = []
        for name in ("first", "second"):
            result = Runner.run_streamed(agent, name, run_config=QUIET)
            with pytest.raises(InvalidField, match="runs here already"):
                Runner.run_streamed(agent, "beside it", run_config=QUIET)
            with pytest.raises(InvalidField, match="runs here already"):
                await Runner.run(agent, "beside it", run_config=QUIET)
            with branch(f"beside the {name}"):
                await Runner.run(agent, "in a branch", run_config=QUIET)
            assert [event async for event in result.stream_events()]
            found.append(str(result.final_output))
        await ctx.pause(name="again")
        return found

    assert await approve(store, durable(handler)) == ["done", "done"]
    asked = sorted(str(items[0]["content"]) for items in model.inputs)
    assert asked == ["first", "in a branch", "in a branch", "second"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("how", ["cancelled", "out of time"])
async def test_a_run_follows_a_streamed_one_that_was_cancelled(
    store: RedisStateStore, how: str, *, streams: bool
) -> None:
    limits: list[asyncio.Timeout] = []

    async def before(_: int) -> None:
        if how == "out of time" and model.inputs[-1][0]["content"] == "first":
            limits[0].reschedule(0)
            await asyncio.Event().wait()

    model = scripted("done", before=before)
    agent = agent_of(model)

    async def handler(ctx: TaskContext) -> Any:
        first = Runner.run_streamed(agent, "first", run_config=QUIET)
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                async for _ in first.stream_events():
                    if how == "cancelled":
                        first.cancel()
                        break
        assert limits[0].expired() == (how == "out of time")
        if not streams:
            return (await Runner.run(agent, "second", run_config=QUIET)).final_output
        second = Runner.run_streamed(agent, "second", run_config=QUIET)
        assert [event async for event in second.stream_events()]
        return second.final_output

    async with pool(store, {"clerk": durable(handler)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        assert await client.result(SESSION, task, timeout_s=60) == "done"


async def test_the_provider_of_a_streamed_run_is_closed_at_its_end(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []
    close = MultiProvider.aclose

    async def closes(self: MultiProvider) -> None:
        closed.append(1)
        await close(self)

    monkeypatch.setattr(MultiProvider, "aclose", closes)

    async def handler(ctx: TaskContext) -> Any:
        config = {"tracing_disabled": True}
        result = Runner.run_streamed(agent_of(scripted("done")), "go", run_config=config)
        assert [event async for event in result.stream_events()]
        await eventually(lambda: closed == [1], "the provider that the run has made is closed")
        return result.final_output

    async with pool(store, {"clerk": durable(handler)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        assert await client.result(SESSION, task, timeout_s=60) == "done"


async def test_outside_of_a_task_the_sdk_runs_as_it_does_without_us(
    store: RedisStateStore,
) -> None:
    class Other(AgentRunner):
        """A runner of another library."""

    other = Other()
    before = get_default_agent_runner()
    set_default_agent_runner(other)
    try:
        model = scripted("done")
        openai_handler(agent_of(model))
        assert isinstance(get_default_agent_runner(), DurableRunner)
        for _ in range(2):
            assert (await Runner.run(agent_of(model), "go", run_config=QUIET)).final_output
        streamed = Runner.run_streamed(agent_of(model), "go", run_config=QUIET)
        assert [event async for event in streamed.stream_events()]
        assert model.seen == [0, 0, 0]
    finally:
        set_default_agent_runner(before)


async def test_what_cannot_be_durable_is_refused_by_name(store: RedisStateStore) -> None:
    computer: ComputerTool[Any] = ComputerTool(computer=cast("Any", object()))
    async with pool(store, openai_handlers(agent_of(scripted("done"), tools=[computer]))) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        with pytest.raises(TaskFailed, match="outside of steps"):
            await client.result(SESSION, task, timeout_s=60)
        task = await client.submit("clerk", {"secret": "value"}, session_id=SESSION)
        with pytest.raises(TaskFailed, match="a text or items are needed, not dict"):
            await client.result(SESSION, task, timeout_s=60)
    agent = agent_of(scripted("done"))
    refused: list[tuple[str, Any]] = [
        ("agent", lambda: openai_handler("clerk")),  # type: ignore[arg-type]
        ("agent", lambda: openai_handler(Agent(name=""))),
        ("agents", lambda: openai_handlers(agent, agent)),
        ("context", lambda: openai_handler(agent, context=1)),  # type: ignore[arg-type]
        ("input", lambda: openai_handler(agent, input="go")),
        ("session", lambda: openai_handler(agent, history=True, session=None)),
        ("retry", lambda: openai_handler(agent, retry=3)),  # type: ignore[arg-type]
        ("tools", lambda: openai_handler(agent, tools={"a": True})),  # type: ignore[dict-item]
        ("pauses", lambda: openai_handler(agent, pauses={"key": "a"})),
        ("pauses", lambda: openai_handler(agent, pauses=3)),  # type: ignore[arg-type]
    ]
    for name, make in refused:
        with pytest.raises(InvalidField) as caught:
            make()
        assert caught.value.field == name


class Files(MCPServer):
    """An MCP server of this process, which counts the calls of its tool."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    @property
    def name(self) -> str:
        """Its name."""
        return "files"

    async def connect(self) -> None:
        """Do nothing: it is here."""

    async def cleanup(self) -> None:
        """Do nothing."""

    async def list_tools(self, *_: Any, **__: Any) -> list[McpTool]:
        """List its tool."""
        schema = {"type": "object", "properties": {"path": {"type": "string"}}}
        return [McpTool(name="read", input_schema=schema)]

    async def call_tool(self, *arguments: Any, **_: Any) -> CallToolResult:
        """Read a file."""
        self.calls.append(arguments[:2])
        return CallToolResult(content=[TextContent(type="text", text="content")])

    async def list_prompts(self) -> Any:
        """There are none."""

    async def get_prompt(self, *_: Any, **__: Any) -> Any:
        """There are none."""


async def test_a_tool_of_an_mcp_server_is_called_once(store: RedisStateStore) -> None:
    server = Files()
    model = scripted([call("read", {"path": "a"}, "1"), call("read", {"path": "a"}, "2")], "done")
    agent = agent_of(model, "ü/#~", mcp_servers=[server])
    done: list[Any] = []
    assert await approve(store, replayed(agent, done)) == "ü/#~"
    assert server.calls == [("read", {"path": "a"})] * 2
    assert (model.seen, done[0]) == ([0, 1], done[1])
    assert "content" in str(outputs(done[0][0])["2"])


async def test_the_context_and_the_options_of_a_run_are_the_handlers(
    store: RedisStateStore,
) -> None:
    @function_tool
    def look(ctx: RunContextWrapper[dict[str, Any]]) -> str:
        return f"seen by {ctx.context['who']}"

    class Answer(BaseModel):
        """What the agent says."""

        text: str

    model = scripted([call("look")], lambda items: dumps({"text": outputs(items)["look"]}))
    agent = agent_of("by name", tools=[look], output_type=Answer)  # type: ignore[arg-type]

    async def context(ctx: TaskContext) -> dict[str, Any]:
        return {"who": ctx.task.session_id}

    config = RunConfig(model=model, tracing_disabled=True)
    handler = openai_handler(agent, context=context, run_config=config, max_turns=2)
    async with pool(store, {"clerk": handler}) as client:
        items = [{"role": "user", "content": "go"}]
        task = await client.submit("clerk", items, session_id=SESSION)
        found = await client.result(SESSION, task, timeout_s=60)
    assert found == {"text": f"seen by {SESSION}"}


class Receipt(BaseModel):
    """The declared type of a result."""

    amount: int


@pytest.mark.parametrize("tool", ["typed", "slow", "custom", "agent"])
async def test_a_tool_of_whose_failure_the_sdk_made_a_text_is_not_called_again(
    store: RedisStateStore, tool: str
) -> None:
    calls: list[str] = []

    @function_tool(output_type=Receipt)
    def typed() -> Receipt:
        calls.append("typed")
        raise ValueError("no such card")

    @function_tool(timeout=0.05)
    async def slow() -> str:
        calls.append("slow")
        await asyncio.Event().wait()
        return "never"

    async def fail(_: Any, __: str) -> str:
        calls.append("custom")
        raise ConnectionError("nobody answers")

    def ask(items: list[dict[str, Any]]) -> Any:
        calls.append("agent")
        raise ConnectionError(f"after {len(items)}")

    expert = agent_of(scripted(ask), "expert")
    made = ResponseCustomToolCall(call_id="1", input="x", name="custom", type="custom_tool_call")
    tools = {
        "typed": (typed, call("typed", call_id="1")),
        "slow": (slow, call("slow", call_id="1")),
        "custom": (CustomTool("custom", "Try.", fail), made),
        "agent": (expert.as_tool("ask", "Ask."), call("ask", {"input": "go"}, "1")),
    }

    def turn(items: list[dict[str, Any]]) -> Any:
        found = [item["output"] for item in items if str(item.get("type")).endswith("_output")]
        return f"done: {found}" if found else [tools[tool][1]]

    clerk = agent_of(scripted(turn), tools=[tools[tool][0]])

    async def handler(ctx: TaskContext) -> Any:
        output = (await Runner.run(clerk, "go", run_config=QUIET)).final_output
        if ctx.attempt == 1:
            begin_again()
        return output

    ended = await run_to_the_end(store, durable(handler))
    assert str(ended.result).startswith("done: ["), ended.error
    assert calls == [tool]


class Named(BaseModel):
    """A result that is written by other names than it is made by."""

    amount: int = Field(serialization_alias="Amount")


class Strict(BaseModel):
    """A result that takes no text for a time, but from JSON."""

    model_config = ConfigDict(strict=True)

    at: datetime
    parts: tuple[int, ...]


STRICT = Strict(at=datetime(2026, 11, 27, tzinfo=UTC), parts=(1, 2))


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (Named(amount=5), '{"Amount":5}'),
        (STRICT, '{"at":"2026-11-27T00:00:00Z","parts":[1,2]}'),
    ],
)
async def test_a_typed_result_may_be_written_otherwise_than_it_is_made(
    store: RedisStateStore, made: BaseModel, shown: str
) -> None:
    @function_tool(output_type=type(made))
    def pay() -> Any:
        return made

    clerk = agent_of(scripted([call("pay")], "done"), tools=[pay])
    plain = outputs((await Runner.run(clerk, "go", run_config=QUIET)).to_input_list())

    async def handler(ctx: TaskContext) -> Any:
        result = await Runner.run(clerk, "go", run_config=QUIET)
        if ctx.attempt == 1:
            begin_again()
        return outputs(result.to_input_list())

    ended = await run_to_the_end(store, durable(handler))
    assert ended.result == plain == {"pay": shown}, ended.error
