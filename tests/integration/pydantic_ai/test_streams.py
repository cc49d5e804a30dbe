"""What agents of pydantic-ai publish, how they are cancelled, and what a session keeps of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("pydantic_ai", reason="needs the pydantic-ai extra")

from pydantic_ai import Agent
from pydantic_ai.messages import (
    FunctionToolResultEvent,
    ModelMessage,
    ModelResponse,
    TextPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, FunctionModel

from redis_state import RedisStateStore
from redis_state.integrations.pydantic_ai import (
    RedisStateDurability,
    current_task,
    durable,
    publish_events,
    pydantic_handler,
)
from redis_state.integrations.pydantic_ai.history import newest_runs
from redis_state.models import TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskContext, TextReader
from tests.support.agents.pydantic_ai import call, durable_agent, says, scripted
from tests.support.processes.pools import SESSION, becomes, pool, updates_of
from tests.support.tasks.runs import TASK, begin_again, run_to_the_end

pytestmark = pytest.mark.worker

PUBLISHING: dict[str, Any] = {"event_stream_handler": publish_events}


async def test_text_and_tools_are_published_once_whatever_the_runs(store: RedisStateStore) -> None:
    seen: list[int] = []
    runs: list[int] = []
    tools = [call("look", {"n": n}, f"call-{n}") for n in range(3)]
    inner = durable_agent(scripted("from inside"), "inner", durability=PUBLISHING)
    agent = durable_agent(scripted(tools, "the words of a model", seen=seen), durability=PUBLISHING)

    @agent.tool_plain
    async def look(n: int) -> Any:
        # The last call is the first to end, in the first run only.
        await asyncio.sleep(0.01 * (3 - n) * (len(runs) == 1))
        if n == 0:
            return (await inner.run("go")).output
        return "x" * 10_000

    async def handler(ctx: TaskContext) -> Any:
        runs.append(1)
        output = (await agent.run("go")).output
        if len(runs) < 3:
            begin_again()
        return output

    state = await run_to_the_end(store, durable(handler))
    assert state.result == "the words of a model "
    updates = await updates_of(store, TASK)
    texts = TextReader()
    for update in updates:
        texts.feed(update)
    shown = list(texts.texts.values())
    assert [text.text for text in shown] == ["from inside ", "the words of a model "]
    assert all(text.ended and text.complete for text in shown)
    contents = [each.content for each in updates if each.update_type is UpdateType.TOOL_CALL]
    begun = [each["tool_call_id"] for each in contents if "arguments" in each]
    ended = [each for each in contents if "result" in each]
    assert begun == [f"call-{n}" for n in range(3)]
    assert [each["tool_call_id"] for each in ended] == begun
    assert {each["outcome"] for each in ended} == {"success"}
    assert max(len(each["result"]) for each in ended) < 5_000
    assert len(runs) == 3
    # A row for each word would be more.
    assert sum("text_id" in each.content for each in updates if each.content) <= 4


async def test_thoughts_are_published_as_such_and_a_request_that_is_made_again_begins_anew(
    store: RedisStateStore,
) -> None:
    runs: list[int] = []

    async def think(_: list[ModelMessage], __: AgentInfo) -> AsyncIterator[Any]:
        runs.append(1)
        yield {0: DeltaThinkingPart(content="hm")}
        yield f"answer {len(runs)}"
        if len(runs) == 1:
            scope = current_task()
            await eventually(lambda: _published(scope), "something is published")
            begin_again()

    async def _published(ctx: TaskContext) -> bool:
        found = await updates_of(ctx.store, TASK)
        return any("answer" in str(each.content) for each in found)

    agent = durable_agent(FunctionModel(stream_function=think), durability=PUBLISHING)

    async def handler(ctx: TaskContext) -> Any:
        return (await agent.run("go")).output

    assert (await run_to_the_end(store, durable(handler))).result == "answer 2"
    texts = TextReader()
    for update in await updates_of(store, TASK):
        texts.feed(update)
    kinds = {each.update_type for each in await updates_of(store, TASK) if "text" in each.content}
    assert kinds == {UpdateType.THINKING, UpdateType.RESULT}
    assert [text.text for text in texts.texts.values()] == ["hm", "answer 2"]


async def test_a_handler_of_ones_own_gets_each_event_once(store: RedisStateStore) -> None:
    seen: list[str] = []
    runs: list[int] = []

    async def handle(_: Any, events: Any) -> None:
        results = [event async for event in events if isinstance(event, FunctionToolResultEvent)]
        seen.extend(event.part.tool_call_id for event in results)

    agent = durable_agent(
        scripted([call("look", None, "1"), call("look", None, "2")], "done"),
        durability={"event_stream_handler": handle},
    )
    agent.tool_plain(name="look")(says("seen"))

    async def handler(ctx: TaskContext) -> Any:
        runs.append(1)
        output = (await agent.run("go")).output
        if len(runs) == 1:
            begin_again()
        return output

    await run_to_the_end(store, durable(handler))
    assert (seen, len(runs)) == (["1", "2"], 2)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_cancel_stops_a_request_of_a_model(
    store: RedisStateStore, *, hard: bool, streams: bool
) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def write(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
        await wait()
        raise AssertionError

    async def stream(_: list[ModelMessage], __: AgentInfo) -> AsyncIterator[str]:
        yield "some text"
        await wait()

    agent = durable_agent(
        FunctionModel(write, stream_function=stream), durability=PUBLISHING if streams else {}
    )

    async def handler(ctx: TaskContext) -> Any:
        try:
            return (await agent.run("go")).output
        except Exception as error:  # noqa: BLE001 - what a cancel must pass
            return repr(error)

    async with pool(store, {"a": durable(handler)}) as client:
        task = await client.submit("a", "go", session_id=SESSION)
        await began.wait()
        assert await client.cancel(SESSION, task, reason="enough", hard=hard)
        state = await becomes(client, task, TaskStatus.CANCELLED)
        assert state.error in (None, "enough")
    assert stopped.is_set()


async def test_a_session_goes_on_with_its_messages(store: RedisStateStore) -> None:
    def recall(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        prompts = [
            str(part.content)
            for message in messages
            for part in message.parts
            if part.part_kind == "user-prompt"
        ]
        return ModelResponse(parts=[TextPart(" ".join(prompts))])

    agent = Agent(FunctionModel(recall), name="é / clerk", capabilities=[RedisStateDurability()])
    runs: list[str] = []
    kept = pydantic_handler(agent, history=True, max_messages=4)

    async def replayed(ctx: TaskContext) -> Any:
        runs.append(ctx.task.task_id)
        result = await kept(ctx)
        if len(runs) == 3:
            begin_again()
        return result

    async with pool(store, {"a": replayed}) as client:

        async def say(prompt: Any, session_id: str = SESSION) -> Any:
            task = await client.submit("a", prompt, session_id=session_id)
            return await client.result(session_id, task, timeout_s=60)

        assert await say("one") == "one"
        assert await say("two") == "one two"
        assert await say("else", "another") == "else"
        # Of 4 messages, two of each task.
        assert await say({"prompt": "three"}) == "one two three"
        assert await say("four") == "two three four"
        together = await asyncio.gather(say("five"), say("six"))
        assert all(each.startswith("three four") for each in together)
        assert (await say("seven")).split()[:-1] in (["five", "six"], ["six", "five"])
        given = [{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "mine"}]}]
        assert await say({"prompt": "eight", "message_history": given}) == "mine eight"
        nothing: dict[str, Any] = {}
        wrongs: tuple[Any, ...] = (
            7,
            {"prompt": 7},
            {"prompt": "x", "secret": 1},
            {"prompt": "x", "message_history": [nothing]},
        )
        for wrong in wrongs:
            task = await client.submit("a", wrong, session_id=SESSION)
            state = await becomes(client, task, TaskStatus.FAILED)
            assert str(state.error).startswith("InvalidField")
            assert "secret" not in str(state.error)


def test_whole_runs_are_dropped_from_a_history() -> None:
    messages = [{"run_id": run, "n": n} for n, run in enumerate("aaabbc")]
    assert [each["n"] for each in newest_runs(messages, 5)] == [3, 4, 5]
    assert [each["n"] for each in newest_runs(messages, 2)] == [5]
    assert newest_runs(messages[:3], 1) == messages[:3]
