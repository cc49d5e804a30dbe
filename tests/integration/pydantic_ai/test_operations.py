"""Operations of capabilities, compaction, and responses that a provider works on, are units too."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("pydantic_ai", reason="needs the pydantic-ai extra")

from pydantic_ai import ModelRetry, RunContext
from pydantic_ai.capabilities import AbstractCapability, durable_operation
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.models.function import AgentInfo, FunctionModel

from redis_state import RedisStateStore
from redis_state.integrations.pydantic_ai import durable, pydantic_handler
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from tests.support.agents.pydantic_ai import call, durable_agent, says, scripted
from tests.support.processes.pools import SESSION, becomes, pool
from tests.support.tasks.runs import begin_again, run_to_the_end

pytestmark = pytest.mark.worker


class Audit(AbstractCapability[Any]):
    """Records what the agent does by an operation, from hooks that run in every run."""

    id = "audit"

    def __init__(self) -> None:
        self.done: list[str] = []
        self.numbers: list[int] = []

    @durable_operation("record")
    async def record(self, ctx: RunContext[Any], what: str) -> int:
        """Record it somewhere outside, and return its number there."""
        self.done.append(what)
        return len(self.done)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Record the request, twice."""
        for number in range(2):
            self.numbers.append(await self.record(ctx, f"request {ctx.run_step}.{number}"))
        return request_context


class Compacting(AbstractCapability[Any]):
    """Lets the model compact the messages before each request but the first."""

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Replace what the model sees."""
        if ctx.run_step > 1:
            await request_context.model.compact_messages(request_context, instructions="short")
        return request_context


class Provider(FunctionModel):
    """A model whose provider works in the background, and is asked again after a delay."""

    def __init__(self, *, delay_s: float, pending: int = 1) -> None:
        super().__init__(self._respond)
        self.delay_s = delay_s
        self.calls: Counter[str] = Counter()
        self.waits = 0
        self._left = pending

    def _respond(self, messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        self.calls["request"] += 1
        self._left -= 1
        state: Any = "complete" if self._left < 0 else "suspended"
        return ModelResponse([TextPart(state)], state=state, provider_response_id="job")

    def continuation_delay(self, response: ModelResponse) -> float | None:
        self.waits += 1
        return self.delay_s

    async def cancel_suspended_response(self, response: ModelResponse) -> None:
        self.calls["cancel"] += 1

    async def compact_messages(
        self, request_context: ModelRequestContext, *, instructions: str | None = None
    ) -> ModelResponse:
        self.calls["compact"] += 1
        return ModelResponse([TextPart(f"{instructions}")])


async def test_an_operation_of_a_capability_is_done_once(store: RedisStateStore) -> None:
    audit = Audit()
    agent = durable_agent(scripted([call("look")], "done"), capabilities=[audit])
    agent.tool_plain(name="look")(says("seen"))
    runs: list[int] = []

    async def handler(_: TaskContext) -> str:
        result = await agent.run("go")
        runs.append(1)
        if len(runs) == 1:
            begin_again()
        return str(result.output)

    state = await run_to_the_end(store, durable(handler))
    assert (state.status, state.result, len(runs)) == (TaskStatus.COMPLETE, "done", 2)
    assert audit.done == ["request 1.0", "request 1.1", "request 2.0", "request 2.1"]
    assert audit.numbers == [1, 2, 3, 4] * 2


async def test_messages_are_compacted_once(store: RedisStateStore) -> None:
    model = Provider(delay_s=0.0, pending=0)
    agent = durable_agent(model, capabilities=[Compacting()], retries=3)
    runs: list[int] = []

    @agent.output_validator
    def twice(ctx: RunContext[Any], output: str) -> str:
        if ctx.run_step == 1:
            raise ModelRetry("again")
        return output

    async def handler(_: TaskContext) -> str:
        result = await agent.run("go")
        runs.append(1)
        if len(runs) == 1:
            begin_again()
        return str(result.output)

    state = await run_to_the_end(store, durable(handler))
    assert (state.status, len(runs)) == (TaskStatus.COMPLETE, 2)
    assert model.calls == {"request": 2, "compact": 1}


async def test_a_later_run_does_not_wait_again_for_a_provider(store: RedisStateStore) -> None:
    model = Provider(delay_s=0.01, pending=2)
    agent = durable_agent(model)
    runs: list[int] = []

    async def handler(_: TaskContext) -> str:
        result = await agent.run("go")
        runs.append(1)
        if len(runs) == 1:
            model.delay_s = 3600.0
            begin_again()
        return str(result.output)

    state = await run_to_the_end(store, durable(handler))
    assert (state.result, len(runs)) == ("complete", 2)
    assert model.calls == {"request": 3}


async def test_what_a_provider_works_on_outlives_a_worker_that_stops(
    store: RedisStateStore,
) -> None:
    model = Provider(delay_s=3600.0)
    handlers = {"clerk": pydantic_handler(durable_agent(model))}
    async with pool(store, handlers) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        await eventually(lambda: model.waits, "the provider works on it")
    model.delay_s = 0.01
    async with pool(store, handlers) as client:
        assert await client.result(SESSION, task, timeout_s=30) == "complete"
    assert model.calls == {"request": 2}


@pytest.mark.parametrize("hard", [False, True])
async def test_what_a_provider_works_on_is_given_up_with_its_task(
    store: RedisStateStore, *, hard: bool
) -> None:
    model = Provider(delay_s=3600.0)
    async with pool(store, {"clerk": pydantic_handler(durable_agent(model))}) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        await eventually(lambda: model.waits, "the provider works on it")
        await client.cancel(SESSION, task, reason="enough", hard=hard)
        await becomes(client, task, TaskStatus.CANCELLED)
    assert model.calls == {"request": 1, "cancel": 1}
