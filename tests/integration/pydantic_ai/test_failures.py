"""Failures that something handles, and agents in steps of the handler: a replay is the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("pydantic_ai", reason="needs the pydantic-ai extra")

from pydantic_ai.capabilities import Hooks, ModelFallback
from pydantic_ai.exceptions import ModelHTTPError, ModelUnavailableError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from redis_state import RedisStateStore
from redis_state.integrations.pydantic_ai import durable, pydantic_handler
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import RetryPolicy, StepPolicy, TaskContext, retried
from tests.integration.pydantic_ai.test_units import twice
from tests.support.agents.pydantic_ai import call, durable_agent, says, scripted
from tests.support.processes.pools import SESSION, becomes, pool
from tests.support.tasks.runs import begin_again, run_to_the_end

pytestmark = pytest.mark.worker


def away(
    asked: list[str], again: ModelResponse, *, times: int = 2, body: str = ""
) -> FunctionModel:
    """Make a model that is away so many times, and then answers."""

    def write(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
        asked.append("first")
        if len(asked) <= times:
            raise ModelHTTPError.for_category(
                ModelUnavailableError, status_code=503, model_name="first", body=body
            )
        return again

    return FunctionModel(write, model_name="first")


@pytest.mark.parametrize("kind", [ModelHTTPError, ModelUnavailableError])
async def test_a_model_that_another_one_stood_in_for_is_not_asked_again(
    store: RedisStateStore, kind: type[Exception]
) -> None:
    asked: list[str] = []
    paid: list[int] = []
    second = scripted([call("pay")], "second")
    agent = durable_agent(
        away(asked, ModelResponse(parts=[call("pay", call_id="another")])),
        durability={"models": {"second": second}},
        capabilities=[ModelFallback(second, fallback_on=(kind,))],
    )
    agent.tool_plain(name="pay")(says("paid", paid))

    async def handler(_: TaskContext) -> Any:
        result = await agent.run("go")
        return [result.output, result.usage.requests]

    ended = await run_to_the_end(store, durable(twice(handler)))
    assert ended.result == ["second", 2]
    # In each of two steps of the run once.
    assert (len(asked), len(paid)) == (2, 1)


async def test_a_handler_takes_the_path_of_a_failed_run_again(store: RedisStateStore) -> None:
    asked: list[str] = []
    statuses: list[int] = []
    first = durable_agent(away(asked, ModelResponse(parts=[TextPart("first")])), "first")
    second = durable_agent(scripted("second"), "second")

    async def handler(_: TaskContext) -> Any:
        for _try in range(2):
            try:
                return (await first.run("go")).output
            except ModelHTTPError as error:
                statuses.append(error.status_code)
        return (await second.run("go")).output

    ended = await run_to_the_end(store, durable(twice(handler)))
    assert (ended.result, len(asked), statuses) == ("second", 2, [503] * 4)


async def test_a_tool_whose_failure_a_hook_handled_is_not_called_again(
    store: RedisStateStore,
) -> None:
    calls: list[int] = []
    hooks: Hooks[Any] = Hooks()

    @hooks.on.tool_execute_error
    async def handled(*_: Any, error: Exception, **__: Any) -> Any:
        return f"it failed: {error}"

    agent = durable_agent(scripted([call("pay")], "done"), capabilities=[hooks])

    @agent.tool_plain
    async def pay() -> str:
        calls.append(1)
        raise ConnectionError("nobody answers")

    async def handler(_: TaskContext) -> Any:
        return (await agent.run("go")).output

    ended = await run_to_the_end(store, durable(twice(handler)))
    assert (ended.result, len(calls)) == ("done", 1)


async def test_an_agent_in_a_step_of_the_handler_counts_for_itself(
    store: RedisStateStore,
) -> None:
    seen: list[int] = []
    tried: list[int] = []
    agent = durable_agent(scripted("done", seen=seen))

    async def draft() -> str:
        output: str = (await agent.run("draft")).output
        tried.append(1)
        if len(tried) == 1:
            raise ConnectionError
        return output

    async def handler(ctx: TaskContext) -> Any:
        soon = RetryPolicy(2, wait_initial_s=0, wait_jitter_s=0)
        found = [await ctx.step("draft", retried(draft, soon)), (await agent.run("go")).output]
        if ctx.attempt == 1:
            begin_again()
        return found

    strict = StepPolicy(on_changed="fail")
    ended = await run_to_the_end(store, durable(handler), steps=strict)
    assert ended.result == ["done", "done"], ended.error
    # The second attempt at the step gets the record of the first one's request.
    assert (len(seen), len(tried)) == (2, 2)


async def test_a_retry_makes_the_request_again_that_failed_the_task_beside_another_agent(
    store: RedisStateStore,
) -> None:
    asked: list[str] = []
    answer = ModelResponse(parts=[TextPart("done")])
    first = durable_agent(away(asked, answer, times=1, body="long" * 200), "first")
    second = durable_agent(scripted([call("look")], [call("look", call_id="2")], "done"), "second")

    @second.tool_plain
    async def look() -> str:
        await eventually(lambda: bool(asked), "the other agent has failed")
        return "seen"

    async def handler(_: TaskContext) -> Any:
        beside = asyncio.create_task(second.run("go"))
        try:
            return (await first.run("go")).output
        finally:
            # Its checkpoints have the failure recorded.
            await beside

    async with pool(store, {"h": durable(handler)}) as client:
        task = await client.submit("h", session_id=SESSION)
        await becomes(client, task, TaskStatus.FAILED)
        await client.retry(SESSION, task)
        assert await client.result(SESSION, task, timeout_s=60) == "done"
    assert len(asked) == 2


async def test_an_agent_in_a_tool_pays_what_was_approved_although_its_first_model_is_back(
    store: RedisStateStore,
) -> None:
    asked: list[str] = []
    paid: list[int] = []
    second = scripted([call("pay")], "second")
    expert = durable_agent(
        away(asked, ModelResponse(parts=[TextPart("first")]), times=1),
        "expert",
        durability={"models": {"second": second}},
        capabilities=[ModelFallback(second)],
    )
    expert.tool_plain(name="pay", requires_approval=True)(says("paid", paid))
    boss = durable_agent(scripted([call("ask")], "done"), "boss")

    @boss.tool_plain
    async def ask() -> str:
        output: str = (await expert.run("go")).output
        return output

    async with pool(store, {"h": pydantic_handler(boss)}) as client:
        task = await client.submit("h", "go", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        (pause,) = await client.pauses(SESSION)
        await client.approve(str(pause.pause_id))
        assert await client.result(SESSION, task, timeout_s=60) == "done"
    assert (len(paid), len(asked)) == (1, 2)
