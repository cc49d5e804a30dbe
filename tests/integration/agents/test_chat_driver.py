from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("httpx", reason="needs the http extra")

from pydantic import SecretStr

from redis_state import RedisStateStore
from redis_state.agents import (
    AgentContext,
    AgentDefinition,
    AgentLoop,
    AgentSession,
    AgentState,
    ExecutionStatus,
    FrozenMap,
    LlmConfig,
    ResponseFormat,
    SessionRuntime,
    SessionStore,
    Tool,
    Turn,
    Usage,
    run_session,
)
from redis_state.agents.runtime.openai import ChatDriver, ModelError
from tests.support.agents.chat_endpoint import Answer, Hangup, Refusal, Trickle, answer, endpoint

KEY = SecretStr("s3cr3t-key")
SCHEMA = FrozenMap({"type": "object", "properties": {"city": {"type": "string"}}})
WEATHER = Tool("weather", lambda run: {"in": run.arguments["city"]}, "Tells it.", SCHEMA)


def turn(state: AgentState | None = None, *tools: Tool) -> Turn:
    requested = state or AgentState().with_user_message("hello")
    return Turn(0, "00000003-0000-4000-8000-000000000001", requested, requested.messages, tools)


async def test_an_agent_asks_its_model_runs_its_tools_and_answers(store: RedisStateStore) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 30,
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 20},
    }
    calls = answer(None, ("weather", '{"city": "Bonn"}'), ("weather", '{"city": "Ulm"}'))
    runtime = SessionRuntime(SessionStore(store))
    definition = AgentDefinition(name="w", system_prompt="Be brief.")
    await runtime.create(AgentSession.fresh(definition, session_id="a"))
    async with (
        endpoint(calls, answer("It rains.", usage=usage)) as served,
        ChatDriver(
            "small", api_url=served.url, api_key=KEY, options={"temperature": 0.5}
        ) as driver,
    ):
        loop = AgentLoop(driver, tools=[WEATHER])
        session = await run_session(runtime, "a", loop, message="Bonn or Ulm?")
    state = session.state
    assert state.status is ExecutionStatus.COMPLETED
    assert state.final_response == "It rains.\n"
    assert state.usage == Usage(input=12 + 40, output=3 + 10, cache_read=60, reasoning=20)
    assert state.usage.total == 15 + 130
    assert [run.value for run in state.steps[0].tool_executions] == [{"in": "Bonn"}, {"in": "Ulm"}]
    first, second = served.requested
    assert first.path == "/v1/chat/completions"
    assert first.headers["authorization"] == "Bearer s3cr3t-key"
    assert (first.body["model"], first.body["temperature"]) == ("small", 0.5)
    assert first.body["stream"] is False
    function = {"name": "weather", "description": "Tells it.", "parameters": dict(SCHEMA)}
    assert first.body["tools"] == [{"type": "function", "function": function}]
    assert first.body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Bonn or Ulm?"},
    ]
    requested, *results = second.body["messages"][2:]
    assert (requested["role"], requested["content"]) == ("assistant", None)
    assert [
        (call["id"], call["type"], json.loads(call["function"]["arguments"]))
        for call in requested["tool_calls"]
    ] == [("call-0", "function", {"city": "Bonn"}), ("call-1", "function", {"city": "Ulm"})]
    assert results == [
        {"role": "tool", "content": '{"in":"Bonn"}', "tool_call_id": "call-0"},
        {"role": "tool", "content": '{"in":"Ulm"}', "tool_call_id": "call-1"},
    ]
    stored = await store.base.fetch(store.base.keys.agent_session("a"))
    assert b"s3cr3t" not in b"".join(stored)


async def test_what_the_session_says_of_its_model_counts_before_what_the_driver_does() -> None:
    form = ResponseFormat(type="json_schema", name="it", schema_=SCHEMA, strict=True)
    async with endpoint(answer("{}")) as served:
        config = LlmConfig(
            api_url=served.url,
            api_key="its-own",
            endpoint="/ask",
            model="large",
            max_tokens=7,
            query_params=FrozenMap(version="2"),
            options=FrozenMap(temperature=1),
        )
        context = AgentContext(response_format=form)
        async with ChatDriver("small", api_key=KEY, options={"temperature": 0, "n": 1}) as driver:
            await driver.respond(turn(AgentState(llm_config=config, context=context)))
    [requested] = served.requested
    assert requested.path == "/v1/ask?version=2"
    assert requested.headers["authorization"] == "Bearer its-own"
    assert requested.body == {
        "temperature": 1,
        "n": 1,
        "model": "large",
        "messages": [],
        "stream": False,
        "max_tokens": 7,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "it", "schema": dict(SCHEMA), "strict": True},
        },
    }


async def test_a_key_among_the_parameters_is_sent_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    params = FrozenMap({"key": "s3cr3t", "old-key": "[redacted]", "api-token": "fernet:x", "v": 2})
    with caplog.at_level(logging.INFO):
        async with endpoint(answer("{}")) as served, ChatDriver("small") as driver:
            config = LlmConfig(api_url=served.url, query_params=params)
            await driver.respond(turn(AgentState(llm_config=config)))
    [requested] = served.requested
    assert requested.path == "/v1/chat/completions?key=s3cr3t&v=2"
    lines = [record.getMessage() for record in caplog.records if record.name == "httpx"]
    assert len(lines) == 1
    assert "/v1/chat/completions" in lines[0]
    assert "s3cr3t" not in caplog.text


@pytest.mark.parametrize("own", ["", "[redacted]", "fernet:abc"])
async def test_the_drivers_key_goes_to_no_address_that_a_session_names(own: str) -> None:
    async with endpoint(answer("a"), answer("b")) as served:
        config = LlmConfig(api_url=served.url, api_key=own)
        requested = turn(AgentState(llm_config=config))
        async with ChatDriver("m", api_key=KEY) as elsewhere:
            await elsewhere.respond(requested)
        async with ChatDriver("m", api_key=KEY, api_url=served.url + "/") as here:
            await here.respond(requested)
    first, second = served.requested
    assert "authorization" not in first.headers
    assert second.headers["authorization"] == "Bearer s3cr3t-key"


@pytest.mark.parametrize(
    "trouble",
    [
        Refusal(429, headers={"Retry-After": "0.01"}),
        Refusal(503, "<html>"),
        Hangup(),
        Refusal(200, "not JSON"),
        {"choices": []},
        answer(None, ("weather", "{not JSON")),
        answer(None, ("weather", "[1]")),
        answer(None, ("", "{}")),
    ],
    ids=lambda trouble: type(trouble).__name__,
)
async def test_what_may_pass_is_tried_again(trouble: Answer) -> None:
    async with (
        endpoint(trouble, trouble, answer("yes")) as served,
        ChatDriver("m", api_url=served.url, wait_s=0.001) as driver,
    ):
        assert (await driver.respond(turn())).content == "yes"
    assert len(served.requested) == 3
    assert served.requested[0].body == served.requested[2].body
    async with (
        endpoint(trouble, trouble) as served,
        ChatDriver("m", api_url=served.url, wait_s=0.001, attempts=2) as driver,
    ):
        with pytest.raises(ModelError) as given_up:
            await driver.respond(turn())
    assert len(served.requested) == 2
    assert "not JSON}" not in str(given_up.value)


async def test_an_answer_that_comes_byte_by_byte_and_never_ends_is_given_up() -> None:
    async with (
        # A slow machine may need longer than that for the second answer, too.
        endpoint(Trickle(), *(answer("yes") for _ in range(9))) as served,
        ChatDriver("m", api_url=served.url, wait_s=0.001, timeout_s=1.0, attempts=10) as driver,
    ):
        assert (await driver.respond(turn())).content == "yes"
    assert len(served.requested) >= 2
    async with (
        endpoint(Trickle()) as served,
        ChatDriver("m", api_url=served.url, attempts=1, timeout_s=0.5) as driver,
    ):
        with pytest.raises(ModelError, match="the model cannot be asked: TimeoutError"):
            await driver.respond(turn())


async def test_what_will_not_pass_is_told_at_once_without_what_was_said() -> None:
    body = {"error": {"message": "bad key s3cr3t-key", "type": "auth_error", "code": "s3-bad"}}
    async with (
        endpoint(Refusal(401, json.dumps(body))) as served,
        ChatDriver("m", api_url=served.url, api_key=KEY) as driver,
    ):
        with pytest.raises(ModelError) as refused:
            await driver.respond(turn())
        assert refused.value.status == 401
        assert str(refused.value) == "the model's server answers 401, auth_error"
        assert "s3cr3t" not in repr(driver)
    async with ChatDriver() as driver:
        with pytest.raises(ModelError, match="no model is named"):
            await driver.respond(turn())


async def test_a_model_that_cannot_be_asked_fails_the_execution(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}/v1"
    async with ChatDriver("m", api_url=url, attempts=1) as driver:
        states = [each async for each in AgentLoop(driver).states(AgentState())]
    assert states[-1].status is ExecutionStatus.FAILED
    assert [error.message for error in states[-1].errors] == [
        "the model cannot be asked: ConnectError"
    ]


def without(name: str) -> Callable[[dict[str, Any]], None]:
    def change(given: dict[str, Any]) -> None:
        given["choices"][0]["message"]["tool_calls"][0].pop(name)

    return change


def arguments(value: Any) -> Callable[[dict[str, Any]], None]:
    def change(given: dict[str, Any]) -> None:
        call = given["choices"][0]["message"]["tool_calls"][0]
        call["function"]["arguments"] = value

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (without("id"), {"city": "Bonn"}),
        (without("type"), {"city": "Bonn"}),
        (arguments(""), {}),
        (arguments(None), {}),
        (arguments({"city": "Ulm"}), {"city": "Ulm"}),
    ],
)
async def test_other_servers_ways_of_calling_are_read(
    change: Callable[[dict[str, Any]], None], expected: dict[str, Any]
) -> None:
    async def ask() -> Any:
        given = answer(None, ("weather", '{"city": "Bonn"}'))
        change(given)
        async with endpoint(given) as served, ChatDriver("m", api_url=served.url) as driver:
            return await driver.respond(turn())

    first, again = await _twice(ask)
    assert first.tool_calls[0].arguments == expected
    assert first.tool_calls[0].id
    assert first.tool_calls == again.tool_calls


async def _twice(work: Callable[[], Awaitable[Any]]) -> tuple[Any, Any]:
    return await work(), await work()


async def test_an_answer_in_parts_is_text_and_a_refusal_is_an_answer() -> None:
    parts = answer("x")
    parts["choices"][0]["message"]["content"] = [{"type": "text", "text": "in "}, {"text": "parts"}]
    refusal = answer(None)
    refusal["choices"][0]["message"]["refusal"] = "I would rather not."
    refusal["usage"] = None
    async with (
        endpoint(parts, refusal) as served,
        ChatDriver("m", api_url=served.url) as driver,
    ):
        assert (await driver.respond(turn())).content == "in parts"
        refused = await driver.respond(turn())
    assert (refused.content, refused.usage) == ("I would rather not.", Usage())
