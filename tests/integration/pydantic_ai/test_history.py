"""What a session keeps of its agents' messages: how much, for whom, and whether it can be read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")
pytest.importorskip("pydantic_ai", reason="needs the pydantic-ai extra")

from pydantic_ai import DeferredToolRequests, ModelRetry, RunContext
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelMessage, ModelResponse, SystemPromptPart, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from redis_state import RedisStateStore
from redis_state.errors import InvalidField
from redis_state.integrations.pydantic_ai import durable, publish_events, pydantic_handler
from redis_state.integrations.pydantic_ai.history import History, newest_runs
from redis_state.models import TaskStatus
from redis_state.worker import RetryPolicy, TaskContext
from tests.integration.pydantic_ai.test_units import twice
from tests.support.agents.pydantic_ai import call, durable_agent, says, scripted
from tests.support.payloads import KEYS, dump, opened
from tests.support.processes.pools import SESSION, becomes, pool
from tests.support.tasks.runs import run_to_the_end

pytestmark = pytest.mark.worker

MARK = "marker-of-what-nobody-may-read"


def writes(text: str, seen: list[int] | None = None) -> FunctionModel:
    """Make a model that writes one text, and counts the messages that it gets."""

    def write(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        if seen is not None:
            seen.append(len(messages))
        return ModelResponse(parts=[TextPart(text)])

    return FunctionModel(write)


@pytest.mark.role("admin")
async def test_nothing_of_an_agent_is_clear_where_payloads_are_encrypted(
    store: RedisStateStore,
) -> None:
    calls: list[int] = []
    turns = [call("pay", {"q": f"{MARK} pay"}), call("bad", {"q": f"{MARK} bad"})]
    agent = durable_agent(
        scripted(turns, f"{MARK} output", f"{MARK} later"),
        durability={
            "event_stream_handler": publish_events,
            "tools": {"bad": RetryPolicy(attempts=2, wait_initial_s=0, wait_max_s=0)},
        },
    )

    @agent.tool
    async def pay(ctx: RunContext[None], q: str) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"why": f"{MARK} why"})
        return f"{MARK} {q}"

    @agent.tool_plain
    async def bad(q: str) -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError(f"{MARK} {q}")
        raise ModelRetry(f"{MARK} {q}")

    async with opened(store.settings, KEYS[0]) as sealed:
        handlers = {"a": pydantic_handler(agent, history=True)}
        async with pool(sealed, handlers) as client:
            task = await client.submit("a", f"{MARK} prompt", session_id=SESSION)
            await becomes(client, task, TaskStatus.PAUSED)
            shown = await dump(sealed)
            (pause,) = await client.pauses(SESSION)
            await client.approve(str(pause.pause_id), {"q": f"{MARK} other"})
            assert MARK in await client.result(SESSION, task, timeout_s=60)
            shown |= {f"{name} after": held for name, held in (await dump(sealed)).items()}
        key = History("clerk", 1).key(SESSION)
        found = await sealed.load_memory_state(key)
    assert found is not None
    assert [name for name, held in shown.items() if MARK.encode() in held] == []


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_session_drops_its_oldest_messages_before_they_are_too_large(
    store: RedisStateStore, *, encrypted: bool
) -> None:
    seen: list[int] = []
    agent = durable_agent(writes("x" * 3_000, seen))
    keys: list[str] = [*KEYS[:1]] if encrypted else list[str]()
    async with (
        opened(store.settings, *keys, max_payload_bytes=20_000) as small,
        pool(small, {"a": pydantic_handler(agent, history=True)}) as client,
    ):
        for number in range(4):
            task = await client.submit("a", f"prompt {number}", session_id=SESSION)
            await client.result(SESSION, task, timeout_s=60)
    assert seen == [1, 3, 5, 5]


async def test_messages_that_were_deleted_meanwhile_stay_away(store: RedisStateStore) -> None:
    seen: list[int] = []
    agent = durable_agent(writes("done", seen))
    key = store.base.keys.memory(History("clerk", 1).key(SESSION))

    @agent.output_validator
    async def check(output: str) -> str:
        if len(seen) == 2:
            assert await store.transport.sender.send("DEL", key, repeatable=True) == 1
        return output

    async with pool(store, {"a": pydantic_handler(agent, history=True)}) as client:
        for number in range(3):
            task = await client.submit("a", f"prompt {number}", session_id=SESSION)
            assert await client.result(SESSION, task, timeout_s=60) == "done"
    assert seen == [1, 3, 3]


async def test_a_later_task_of_the_same_id_adds_its_messages_too(store: RedisStateStore) -> None:
    seen: list[int] = []
    agent = durable_agent(writes("done", seen))
    async with pool(store, {"a": pydantic_handler(agent, history=True)}) as client:
        for _ in range(3):
            task = await client.submit("a", "report", session_id=SESSION, task_id="weekly")
            assert await client.result(SESSION, task, timeout_s=60) == "done"
            await store.tasks.clear(SESSION, task)
    assert seen == [1, 3, 5]


def test_a_run_that_is_too_large_is_not_kept() -> None:
    messages = [{"run_id": run, "text": "x" * 100} for run in "aab"]
    assert [each["run_id"] for each in newest_runs(messages, 9, 350)] == ["b"]
    assert newest_runs(messages, 9, 50) == []


async def test_a_session_that_is_forgotten_for_the_size_of_one_run_is_told_of(
    store: RedisStateStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    agent = durable_agent(writes("done", seen))
    monkeypatch.setattr("redis_state.integrations.pydantic_ai.history.MOST_BYTES", 2_000)
    async with pool(store, {"a": pydantic_handler(agent, history=True)}) as client:
        for prompt in ("report", "x" * 4_000, "report"):
            task = await client.submit("a", prompt, session_id=SESSION)
            assert await client.result(SESSION, task, timeout_s=60) == "done"
    assert seen == [1, 3, 1]
    lines = [each.getMessage() for each in caplog.records if "forgets" in each.getMessage()]
    assert len(lines) == 1
    assert "'clerk'" in lines[0]
    assert "xxx" not in lines[0]


async def test_an_agent_keeps_its_system_prompt_however_long_the_session_is(
    store: RedisStateStore,
) -> None:
    seen: list[list[Any]] = []

    def write(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        seen.append([part.content for part in parts if isinstance(part, SystemPromptPart)])
        return ModelResponse(parts=[TextPart("done")])

    agent = durable_agent(FunctionModel(write), system_prompt="be kind")
    handler = pydantic_handler(agent, history=True, max_messages=2)
    async with pool(store, {"a": handler}) as client:
        for number in range(4):
            task = await client.submit("a", f"prompt {number}", session_id=SESSION)
            assert await client.result(SESSION, task, timeout_s=60) == "done"
    assert seen == [["be kind"]] * 4


def test_a_system_prompt_counts_as_what_it_is() -> None:
    prompt = {"part_kind": "system-prompt", "content": "x" * 100}
    messages = [{"run_id": run, "kind": "request", "parts": list[Any]()} for run in "ab"]
    messages[0]["parts"] = [prompt]
    (kept,) = newest_runs(messages, 1)
    assert (kept["run_id"], kept["parts"]) == ("b", [prompt])
    assert newest_runs(messages, 1, 150) == []
    response = {"run_id": "b", "kind": "response", "parts": list[Any]()}
    assert newest_runs([messages[0], response], 1) == [
        {"kind": "request", "parts": [prompt]},
        response,
    ]


def test_no_agent_has_the_messages_of_another() -> None:
    assert History("a:b", 3).key("c") != History("a", 3).key("b:c")
    assert History("a/b", 3).key("c") != History("a", 3).key("b/c")


async def test_concurrent_runs_of_one_run_id_are_refused(store: RedisStateStore) -> None:
    agent = durable_agent(scripted("done"))

    async def handler(ctx: TaskContext) -> None:
        await agent.run("1", run_id="x")
        await agent.run("2", run_id="x")
        with pytest.raises(InvalidField, match="run_id"):
            await asyncio.gather(agent.run("3", run_id="x"), agent.run("4", run_id="x"))

    state = await run_to_the_end(store, durable(handler))
    assert state.status is TaskStatus.COMPLETE


async def test_what_a_validator_sends_back_is_not_asked_again_in_a_replay(
    store: RedisStateStore,
) -> None:
    seen: list[int] = []
    agent = durable_agent(writes("done", seen), retries=3)

    @agent.output_validator
    async def check(ctx: RunContext[None], output: str) -> str:
        if ctx.retry < 2:
            raise ModelRetry("again")
        return output

    async def handler(ctx: TaskContext) -> str:
        return str((await agent.run("go")).output)

    state = await run_to_the_end(store, twice(durable(handler)))
    assert (state.result, seen) == ("done", [1, 3, 5])


async def test_a_session_goes_on_behind_calls_that_nobody_has_answered(
    store: RedisStateStore,
) -> None:
    agent = durable_agent(
        scripted([call("pay")]),
        durability={"pauses": False},
        output_type=[str, DeferredToolRequests],
    )
    agent.tool_plain(name="pay", requires_approval=True)(says("paid"))
    async with pool(store, {"a": pydantic_handler(agent, history=True)}) as client:
        for _ in range(2):
            task = await client.submit("a", "pay", session_id=SESSION)
            result = await client.result(SESSION, task, timeout_s=60)
            assert [each["tool_call_id"] for each in result["approvals"]] == ["pay"]
