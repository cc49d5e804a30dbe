"""What agents of the OpenAI Agents SDK publish, and how they are cancelled and steered."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("agents", reason="needs the openai-agents extra")

from agents import Runner, Tool, function_tool
from agents.memory import OpenAIConversationsSession
from agents.sandbox import SandboxAgent
from openai import AsyncOpenAI

from redis_state import InvalidField, RedisStateStore
from redis_state.integrations.openai_agents import (
    RedisStateSession,
    current_task,
    durable,
    openai_handler,
)
from redis_state.models import SteeringEventType, TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import RetryPolicy, TaskContext, TextReader
from tests.support.agents.openai_agents import QUIET, Turn, agent_of, call, scripted
from tests.support.processes.pools import SESSION, becomes, pool, updates_of

pytestmark = pytest.mark.worker


def looking(steered: asyncio.Event) -> Tool:
    """Make a tool that ends once its task has been steered."""

    @function_tool
    async def look() -> str:
        await steered.wait()
        await current_task().inbox.catch_up()
        return "seen"

    return look


async def fail_later(number: int) -> None:
    """Fail each request of a model but the first."""
    if number:
        raise ConnectionError


async def test_text_and_tools_are_published_once_whatever_the_runs(
    store: RedisStateStore,
) -> None:
    runs: list[int] = []

    @function_tool
    async def look(n: int) -> str:
        # The last call is the first to end, in the first run only.
        await asyncio.sleep(0.01 * (3 - n) * (len(runs) == 1))
        return "x" * 10_000

    calls = [call("look", {"n": n}, f"call-{n}") for n in range(3)]
    model = scripted(calls, "the words of a model")
    agent = agent_of(model, tools=[look])

    async def handler(ctx: TaskContext) -> Any:
        runs.append(1)
        result = await Runner.run(agent, ctx.input, run_config=QUIET)
        await ctx.pause(name="again")
        return result.final_output

    async with pool(store, {"clerk": durable(handler, publish=True)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        (pause,) = await client.pauses(SESSION)
        await client.approve(str(pause.pause_id))
        assert await client.result(SESSION, task, timeout_s=60) == "the words of a model"
    assert (len(runs), model.seen) == (2, [0, 1])
    texts, updates = TextReader(), await updates_of(store, task)
    for update in updates:
        texts.feed(update)
    assert [text.text for text in texts.texts.values()] == ["the words of a model"]
    tools = [each.content for each in updates if each.update_type is UpdateType.TOOL_CALL]
    assert sorted(each["tool_call_id"] for each in tools if "arguments" in each) == [
        f"call-{n}" for n in range(3)
    ]
    assert [each["arguments"] for each in tools if each.get("arguments") == {"n": 1}]
    assert [len(each["result"]) for each in tools if "result" in each] == [4_096] * 3
    assert {each["agent"] for each in tools} == {"clerk"}


@pytest.mark.parametrize("during", ["request", "tool"])
async def test_a_cancel_stops_a_request_at_once_and_lets_a_tool_end(
    store: RedisStateStore, during: str
) -> None:
    begun, ended, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def before(_: int) -> None:
        if during == "request":
            begun.set()
            await asyncio.Event().wait()

    @function_tool
    async def slow() -> str:
        begun.set()
        await goes_on.wait()
        ended.set()
        return "slow"

    model = scripted([call("slow")], "done", before=before)
    handler = openai_handler(agent_of(model, tools=[slow]), run_config=QUIET)
    async with pool(store, {"clerk": handler}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        async with asyncio.timeout(30):
            await begun.wait()
        await client.cancel(SESSION, task)
        if during == "tool":
            goes_on.set()
        await becomes(client, task, TaskStatus.CANCELLED)
    assert ended.is_set() == (during == "tool")
    assert model.seen == [0]


@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_person_says_reaches_the_model_once_and_stays_in_the_session(
    store: RedisStateStore, *, fails: bool
) -> None:
    steered = asyncio.Event()
    failed: list[int] = []

    async def before(number: int) -> None:
        # The request that is the first with what the person says.
        if fails and number == 1 and not failed:
            failed.append(number)
            raise ConnectionError

    look = looking(steered)

    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    model = scripted([call("look")], [call("pay")], "done", before=before)
    agent = agent_of(model, tools=[look, pay])
    retry = RetryPolicy(attempts=2, on=ConnectionError)
    handler = openai_handler(agent, retry=retry, history=True, run_config=QUIET)
    async with pool(store, {"clerk": handler}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        await eventually(lambda: model.seen == [0], "the first request is made")
        kind = SteeringEventType.USER_MESSAGE
        await client.steer(SESSION, task, kind, {"text": "to Ann only"})
        steered.set()
        await becomes(client, task, TaskStatus.PAUSED)
        (pause,) = await client.pauses(SESSION)
        await client.approve(str(pause.pause_id))
        assert await client.result(SESSION, task, timeout_s=60) == "done"
    given = [[item.get("content") for item in items] for items in model.inputs]
    assert [each.count("to Ann only") for each in given] == [0, *(1 for _ in given[1:])]
    assert len(given) == 3 + fails == 3 + len(failed)
    assert given[-1].index("to Ann only") == given[1].index("to Ann only")
    items: Any = await RedisStateSession(SESSION, store=store).get_items()
    assert [item.get("content") for item in items].count("to Ann only") == 1


async def test_a_conversation_that_the_server_keeps_gets_what_a_person_says_once(
    store: RedisStateStore,
) -> None:
    steered = asyncio.Event()
    look = looking(steered)

    asked: list[Turn] = [[call("look", call_id="1")], [call("look", call_id="2")], "done"]
    turns = iter(asked)
    model = scripted(lambda _: next(turns))
    handler = openai_handler(
        agent_of(model, tools=[look]), conversation_id="conversation", run_config=QUIET
    )
    async with pool(store, {"clerk": handler}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        await eventually(lambda: model.seen == [0], "the first request is made")
        kind = SteeringEventType.USER_MESSAGE
        await client.steer(SESSION, task, kind, {"text": "to Ann only"})
        steered.set()
        assert await client.result(SESSION, task, timeout_s=60) == "done"
    given = [[item.get("content") for item in items] for items in model.inputs]
    assert [each.count("to Ann only") for each in given] == [0, 1, 0]


@pytest.mark.parametrize("streams", [False, True])
async def test_what_a_person_said_to_a_run_that_failed_reaches_the_next_one(
    store: RedisStateStore, *, streams: bool
) -> None:
    steered = asyncio.Event()
    look = looking(steered)

    first, second = scripted([call("look")], "never", before=fail_later), scripted("done")

    async def handler(ctx: TaskContext) -> Any:
        failing = agent_of(first, tools=[look])
        with suppress(ConnectionError):
            if streams:
                streamed = Runner.run_streamed(failing, ctx.input, run_config=QUIET)
                async for _ in streamed.stream_events():
                    pass
            else:
                await Runner.run(failing, ctx.input, run_config=QUIET)
        result = await Runner.run(agent_of(second, "b"), ctx.input, run_config=QUIET)
        return result.final_output

    async with pool(store, {"clerk": durable(handler, steering=True)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        await eventually(lambda: first.seen == [0], "the first request is made")
        kind = SteeringEventType.USER_MESSAGE
        await client.steer(SESSION, task, kind, {"text": "to Ann only"})
        steered.set()
        assert await client.result(SESSION, task, timeout_s=60) == "done"
    assert [item.get("content") for item in second.inputs[0]] == ["go", "to Ann only"]


@pytest.mark.parametrize("refused", ["by the SDK", "its session", "its agent", "streamed"])
async def test_what_a_person_said_reaches_the_run_behind_one_that_could_not_begin(
    store: RedisStateStore, refused: str
) -> None:
    steered = asyncio.Event()
    look = looking(steered)

    first, second = scripted([call("look")], "never", before=fail_later), scripted("done")
    sandboxed = SandboxAgent(name="c", model=second)

    async def begin(ctx: TaskContext) -> None:
        if refused == "by the SDK":
            wrong: Any = object()
            Runner.run_streamed(agent_of(second, "c"), ctx.input, hooks=wrong, run_config=QUIET)
        elif refused == "its session":
            nowhere = AsyncOpenAI(api_key="none", base_url="http://127.0.0.1:1")
            kept: Any = OpenAIConversationsSession(conversation_id="kept", openai_client=nowhere)
            await Runner.run(agent_of(second, "c"), ctx.input, session=kept, run_config=QUIET)
        elif refused == "its agent":
            await Runner.run(sandboxed, ctx.input, run_config=QUIET)
        else:
            Runner.run_streamed(sandboxed, ctx.input, run_config=QUIET)

    async def handler(ctx: TaskContext) -> Any:
        with suppress(ConnectionError):
            await Runner.run(agent_of(first, tools=[look]), ctx.input, run_config=QUIET)
        with pytest.raises((TypeError, InvalidField)):
            await begin(ctx)
        result = await Runner.run(agent_of(second, "b"), ctx.input, run_config=QUIET)
        return result.final_output

    async with pool(store, {"clerk": durable(handler, steering=True)}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        await eventually(lambda: first.seen == [0], "the first request is made")
        kind = SteeringEventType.USER_MESSAGE
        await client.steer(SESSION, task, kind, {"text": "to Ann only"})
        steered.set()
        assert await client.result(SESSION, task, timeout_s=60) == "done"
    assert [item.get("content") for item in second.inputs[0]] == ["go", "to Ann only"]
