"""An agent that fails: what its task becomes, and what a retry of the task executes."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.agents import (
    AgentLoop,
    AgentSession,
    ExecutionStatus,
    FrozenMap,
    InferenceResponse,
    ScriptedDriver,
    SessionRuntime,
    SessionStore,
    ToolCall,
    Turn,
)
from redis_state.errors import PauseTimeout
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.agents import AgentFailed, agent_handler
from redis_state.worker.tasks.execution.exits import TaskHandedBack
from tests.integration.agents.test_agent_worker import DEFINITION, LOOK, Gate, state_of
from tests.support.agents.sessions import STEPS
from tests.support.processes.pools import (
    SESSION,
    becomes,
    pool,
)


@pytest.mark.parametrize("on_failure", ["result", "fail"])
async def test_an_agent_that_failed_is_a_result_or_a_failure(
    on_failure: Literal["result", "fail"], store: RedisStateStore
) -> None:
    loop = AgentLoop(ScriptedDriver(RuntimeError("s3cr3t")))
    handler = agent_handler(loop, definition=DEFINITION, on_failure=on_failure)
    async with pool(store, {"agent": handler}) as client:
        task = await client.submit("agent", "go", session_id=SESSION)
        ended: Any = await client.wait(SESSION, task, timeout_s=60)
        if on_failure == "result":
            assert (ended.status, ended.result["status"]) == (TaskStatus.COMPLETE, "failed")
        else:
            assert ended.status is TaskStatus.FAILED
            assert ended.error == "AgentFailed: after 1 steps, in session s"
    assert (await state_of(store)).status is ExecutionStatus.FAILED


class Listener:
    """A driver that raises what it is given, one a call, and then answers with what it has seen."""

    def __init__(self, *raised: Exception | ToolCall | None) -> None:
        self.raised = list(raised)
        self.seen: list[list[str]] = []

    async def respond(self, turn: Turn) -> InferenceResponse:
        self.seen.append([message.text for message in turn.messages])
        match self.raised.pop(0) if self.raised else None:
            case Exception() as error:
                raise error
            case ToolCall() as call:
                return InferenceResponse(tool_calls=(call,), finish_reason="tool_calls")
            case _:
                return InferenceResponse(content=f"answer {len(self.seen)}", finish_reason="stop")


async def failed(client: TaskClient, task: str) -> None:
    assert (await client.wait(SESSION, task, timeout_s=60)).status is TaskStatus.FAILED


async def test_a_retry_executes_the_failed_turn_again(store: RedisStateStore) -> None:
    down = RuntimeError("overloaded")
    driver = Listener(ToolCall(name="look", arguments=FrozenMap(n=1)), down, down)
    handler = agent_handler(
        AgentLoop(driver, tools=[LOOK]), definition=DEFINITION, on_failure="fail"
    )
    async with pool(store, {"agent": handler}) as client:
        task = await client.submit("agent", "go", session_id=SESSION)
        for _ in range(2):
            await failed(client, task)
            await client.retry(SESSION, task)
        result: Any = (await client.wait(SESSION, task, timeout_s=60)).result
        assert (result["status"], result["response"], result["steps"]) == (
            *("completed", "answer 4"),
            1,
        )
        # The message is there once, and no step of what failed is seen.
        assert [driver.seen[number] for number in (0, 2, 3)] == [["go"]] * 3
        assert (await state_of(store)).execution_count == 3


async def test_a_retry_after_another_turn_adds_its_message_again(store: RedisStateStore) -> None:
    driver = Listener(RuntimeError("overloaded"))
    handler = agent_handler(AgentLoop(driver), definition=DEFINITION, on_failure="fail")
    async with pool(store, {"agent": handler}) as client:
        task = await client.submit("agent", "first", session_id=SESSION)
        await failed(client, task)
        other = await client.submit("agent", "second", session_id=SESSION)
        await client.wait(SESSION, other, timeout_s=60)
        await client.retry(SESSION, task)
        result: Any = (await client.wait(SESSION, task, timeout_s=60)).result
    assert result["response"] == "answer 3"
    assert driver.seen[-1] == ["first", "second", "answer 2", "first"]


async def test_a_retry_of_a_turn_that_was_answered_and_failed_adds_its_message_again(
    store: RedisStateStore,
) -> None:
    driver = Listener(ToolCall(name="missing"), None)
    handler = agent_handler(AgentLoop(driver), definition=DEFINITION, on_failure="fail")
    async with pool(store, {"agent": handler}) as client:
        task = await client.submit("agent", "go", session_id=SESSION)
        await failed(client, task)
        await client.retry(SESSION, task)
        result: Any = (await client.wait(SESSION, task, timeout_s=60)).result
    assert result["response"] == "answer 3"
    assert driver.seen[-1] == ["go", "answer 2", "go"]


async def test_a_retry_of_a_cancelled_turn_executes_it_again(store: RedisStateStore) -> None:
    gate = Gate()
    handler = agent_handler(gate.loop(), definition=DEFINITION)
    async with pool(store, {"agent": handler}) as client:
        task = await client.submit("agent", "go", session_id=SESSION)
        await gate.reached(1)
        await client.cancel(SESSION, task)
        gate.let(1)
        await becomes(client, task, TaskStatus.CANCELLED)
        assert (await state_of(store)).status is ExecutionStatus.STOPPED
        gate.let(STEPS)
        await client.retry(SESSION, task)
        result: Any = (await client.wait(SESSION, task, timeout_s=60)).result
    assert (result["status"], result["steps"]) == ("completed", STEPS)


async def test_a_retry_resumes_an_execution_that_was_only_interrupted(
    store: RedisStateStore,
) -> None:
    # Neither is a failure of the agent.
    away = PauseTimeout("a")
    driver = Listener(away, RuntimeError("overloaded"), away)
    options: dict[str, Any] = {"on_failure": "fail", "busy_timeout_s": 3600}
    handler = agent_handler(AgentLoop(driver), definition=DEFINITION, **options)
    async with pool(store, {"agent": handler}) as client:
        task = await client.submit("agent", "go", session_id=SESSION)
        await failed(client, task)
        first = await state_of(store)
        assert first.status is ExecutionStatus.IN_PROGRESS
        await client.retry(SESSION, task)
        await failed(client, task)
        resumed = (await state_of(store)).execution
        assert first.execution is not None
        assert resumed is not None
        assert (resumed.execution_id, resumed.status) == (
            first.execution.execution_id,
            ExecutionStatus.FAILED,
        )
        await client.retry(SESSION, task)
        await failed(client, task)
        assert (await state_of(store)).status is ExecutionStatus.IN_PROGRESS
        # Another task finds that the task of this execution is over, and does not step back for it.
        other = await client.submit("agent", "second", session_id=SESSION)
        assert (await client.wait(SESSION, other, timeout_s=60)).status is TaskStatus.COMPLETE
    assert driver.seen[-1] == ["go", "second"]


async def test_a_retry_that_is_taken_over_does_not_repeat_what_it_has_executed(
    store: RedisStateStore,
) -> None:
    driver = Listener(PauseTimeout("a"), RuntimeError("overloaded"))
    inner = agent_handler(AgentLoop(driver), definition=DEFINITION, on_failure="fail")
    died: list[int] = []

    async def handler(ctx: TaskContext) -> Any:
        try:
            return await inner(ctx)
        except AgentFailed:
            if died:
                raise
            died.append(ctx.attempt)
            # As after a death: what was executed is saved, and the task has no end yet.
            raise TaskHandedBack("a death") from None

    async with pool(store, {"agent": handler}) as client:
        task = await client.submit("agent", "go", session_id=SESSION)
        await failed(client, task)
        await client.retry(SESSION, task)
        await failed(client, task)
        assert died
        assert (await state_of(store)).execution_count == 1
        assert len(driver.seen) == 2


async def test_a_retry_that_is_cancelled_at_once_stops_what_was_interrupted(
    store: RedisStateStore,
) -> None:
    driver = Listener(PauseTimeout("a"))
    inner = agent_handler(AgentLoop(driver), definition=DEFINITION)
    retried = asyncio.Event()

    async def handler(ctx: TaskContext) -> Any:
        if ctx.retries:
            retried.set()
            await eventually(lambda: ctx.inbox.cancelled, "the cancel has come")
        return await inner(ctx)

    async with pool(store, {"agent": handler}) as client:
        task = await client.submit("agent", "go", session_id=SESSION)
        await failed(client, task)
        await client.retry(SESSION, task)
        await retried.wait()
        await client.cancel(SESSION, task)
        await becomes(client, task, TaskStatus.CANCELLED)
        assert (await state_of(store)).status is ExecutionStatus.STOPPED
        assert len(driver.seen) == 1


async def test_a_retry_finds_a_session_that_was_missing_before(store: RedisStateStore) -> None:
    handler = agent_handler(AgentLoop(Listener()))
    async with pool(store, {"agent": handler}) as client:
        task = await client.submit("agent", {"message": "go", "session": "s"}, session_id=SESSION)
        for _ in range(3):
            await failed(client, task)
            await client.retry(SESSION, task)
        await failed(client, task)
        await SessionRuntime(SessionStore(store)).create(
            AgentSession.fresh(DEFINITION, session_id="s")
        )
        await client.retry(SESSION, task)
        assert (await client.wait(SESSION, task, timeout_s=60)).status is TaskStatus.COMPLETE
