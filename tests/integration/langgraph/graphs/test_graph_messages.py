"""The text of a graph's models in its session's log: joined, in order, and each once."""

from __future__ import annotations

import asyncio
import json
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from langchain_core.messages import AIMessageChunk
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from redis_state import RedisStateStore, Settings
from redis_state.integrations.langgraph import graph_handler
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskHandedBack
from redis_state.worker.tasks.waitpoints.pause_model import token_of
from tests.support.agents.chat_models import ScriptedChat, called, tokens
from tests.support.agents.graphs import config_of
from tests.support.processes import children
from tests.support.processes.pools import SESSION, becomes, client_of, open_token, pool, queue_of
from tests.support.servers.faults import start_process

MESSAGES: Any = ["messages", "updates"]
INPUT = {"messages": [{"role": "user", "content": "go", "id": "u"}]}


async def events_of(store: RedisStateStore) -> list[Any]:
    rows = await store.list_updates(SESSION)
    return [row.content for row in rows if row.update_type.value == "PROGRESS"]


async def chunks_of(store: RedisStateStore, message_id: str | None = "m") -> list[Any]:
    """List the chunks of a message in the log, or of all messages."""
    found = [each["data"][0] for each in await events_of(store) if each["graph"] == "messages"]
    return [each for each in found if message_id in (None, each["id"])]


def text_of(chunks: list[Any]) -> str:
    return "".join(each["content"] for each in chunks)


async def is_shown(store: RedisStateStore, ending: str) -> None:
    """Wait until the text of the message in the log has an ending."""

    async def published() -> bool:
        return text_of(await chunks_of(store)).endswith(ending)

    await eventually(published, "what was written is in the log")


def summed(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    return reduce(add, chunks)


def calling(arguments: str, **more: Any) -> AIMessageChunk:
    """Return a chunk of a tool's call."""
    chunk: Any = {"args": arguments, "name": None, "id": None, "index": 0, **more}
    return AIMessageChunk(content="", id="m", tool_call_chunks=[chunk])


def parts(chunk: AIMessageChunk) -> dict[str, Any]:
    """Return what a chunk has beside its id."""
    return chunk.model_dump(exclude={"id"})


ANSWER = [
    AIMessageChunk(content="", id="m", response_metadata={"model_name": "scripted"}),
    *tokens(40),
    calling("", name="pay", id="c"),
    calling('{"amount"'),
    calling(": 5}"),
    *tokens(40, of="u"),
    AIMessageChunk(
        content="",
        id="m",
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    ),
    AIMessageChunk(content="", id="m", chunk_position="last"),
]
BLOCKS = [
    AIMessageChunk(content=[{"type": "text", "text": f"b{number} ", "index": at}], id="m")
    for at in (0, 1)
    for number in range(20)
]


@pytest.mark.parametrize("answer", [ANSWER, BLOCKS], ids=["texts and a call", "blocks"])
async def test_texts_are_joined_and_all_else_stays_as_it_is(
    store: RedisStateStore, answer: list[AIMessageChunk]
) -> None:
    build = called(*answer)
    async with pool(store, {"g": graph_handler(build, stream_mode=MESSAGES)}) as client:
        task = await client.submit("g", INPUT, session_id=SESSION)
        await client.result(SESSION, task)
    events = await events_of(store)
    # A graph that streams to its caller yields each token.
    stream = build(InMemorySaver()).astream(INPUT, config_of("t"), stream_mode="messages")
    yielded = [chunk async for chunk, _ in stream]
    # LangChain's own last chunk has an id of its own, if the model gives none.
    found = [AIMessageChunk(**each) for each in await chunks_of(store, None)]
    assert len(yielded) >= len(answer)
    assert summed(found).model_dump() == summed(yielded).model_dump()
    # Behind the text before it, and before the text behind it.
    assert [each["graph"] for each in events][-1] == "updates"
    others = [number for number, chunk in enumerate(found) if not chunk.text]
    texts = [text for text in (chunk.text for chunk in found) if text]
    assert len(texts) < len([chunk for chunk in answer if chunk.text]) / 2
    assert all(" u0" not in text and " b0" not in text for text in texts)
    wanted = [each for each in yielded if not each.text]
    assert [parts(found[number]) for number in others] == [parts(each) for each in wanted]
    assert {each["data"][1]["langgraph_node"] for each in events[:-1]} == {"call"}


async def test_models_side_by_side_and_events_of_nodes_keep_their_texts_apart(
    store: RedisStateStore,
) -> None:
    models = {
        name: ScriptedChat(chunks=tokens(30, of=name, message_id=name)) for name in ("a", "b")
    }

    async def call(name: str) -> Any:
        answer = await models[name].ainvoke("go")
        get_stream_writer()({"done": name})
        return answer

    async def both(_: MessagesState) -> Any:
        return {"messages": await asyncio.gather(*map(call, models))}

    def build(saver: Any) -> Any:
        graph: Any = StateGraph(MessagesState)
        graph.add_node("both", both)
        graph.add_edge(START, "both")
        return graph.compile(checkpointer=saver)

    handler = graph_handler(build, stream_mode=["messages", "custom"])
    async with pool(store, {"g": handler}) as client:
        task = await client.submit("g", INPUT, session_id=SESSION)
        await client.result(SESSION, task)
    events = await events_of(store)
    for name in models:
        assert text_of(await chunks_of(store, name)) == "".join(
            chunk.text for chunk in tokens(30, of=name)
        )
        done = events.index({"graph": "custom", "namespace": [], "data": {"done": name}})
        behind = [each["data"][0] for each in events[done:] if each["graph"] == "messages"]
        assert not [each for each in behind if each["id"] == name and each["content"]]


@pytest.mark.parametrize("again", ["the same text", "another text", "a shorter one", "another id"])
async def test_a_message_that_is_written_again_is_not_published_twice(
    store: RedisStateStore, again: str
) -> None:
    first = tokens(12)
    second = {
        "the same text": first,
        "another text": tokens(12, of="u"),
        "a shorter one": tokens(2),
        "another id": tokens(12, message_id="n"),
    }[again]
    chunks = list(first)
    runs: list[int] = []

    async def before(number: int) -> None:
        if number == 0:
            runs.append(1)
        if number == 8 and len(runs) == 1:
            await is_shown(store, "t7 ")
            chunks[:] = second
            raise TaskHandedBack("the worker dies")

    model = ScriptedChat(chunks=(), before=before)

    async def call(_: MessagesState) -> Any:
        answer = await model.model_copy(update={"chunks": list(chunks)}).ainvoke("go")
        return {"messages": [answer]}

    def made(saver: Any) -> Any:
        graph: Any = StateGraph(MessagesState)
        graph.add_node("call", call)
        graph.add_edge(START, "call")
        return graph.compile(checkpointer=saver)

    async with pool(store, {"g": graph_handler(made, stream_mode=MESSAGES)}) as client:
        task = await client.submit("g", INPUT, session_id=SESSION)
        await client.result(SESSION, task)
    assert len(runs) == 2
    half = "".join(chunk.text for chunk in first[:8])
    whole = "".join(chunk.text for chunk in second)
    events = [each for each in await events_of(store) if each["graph"] == "messages"]
    resets = [number for number, each in enumerate(events) if each.get("reset")]
    found = await chunks_of(store)
    if again == "the same text":
        assert (text_of(found), resets) == (whole, [])
    elif again == "another id":
        assert (text_of(found), resets) == (half, [])
        assert text_of(await chunks_of(store, "n")) == whole
    else:
        # Not only behind the node's result.
        assert (await events_of(store))[-1]["graph"] == "updates"
        (reset,) = resets
        assert text_of([each["data"][0] for each in events[:reset]]) == half
        assert text_of([each["data"][0] for each in events[reset:]]) == whole


async def test_a_node_that_asks_again_and_again_leaves_what_its_model_has_written_last(
    store: RedisStateStore,
) -> None:
    parted = AIMessageChunk(content="", id="m", response_metadata={"model_name": "scripted"})

    def written(*texts: str) -> list[AIMessageChunk]:
        # Another chunk between two texts makes them two rows.
        chunks = [AIMessageChunk(content=text, id="m") for text in texts]
        return [chunks[0], *(each for chunk in chunks[1:] for each in (parted, chunk))]

    # The third is the first; the fourth is its first row.
    answers = [("Hello ", "world"), ("Bye",), ("Hello ", "world"), ("Hello ",)]
    runs: list[str] = []

    async def call(_: MessagesState) -> Any:
        chunks = written(*answers[len(runs)])
        runs.append("".join(answers[len(runs)]))
        answer = await ScriptedChat(chunks=chunks).ainvoke("go")
        for number in range(len(answers)):
            interrupt(number)
        return {"messages": [answer]}

    def made(saver: Any) -> Any:
        graph: Any = StateGraph(MessagesState)
        graph.add_node("call", call)
        graph.add_edge(START, "call")
        return graph.compile(checkpointer=saver)

    async with pool(store, {"g": graph_handler(made, stream_mode=["messages"])}) as client:
        task = await client.submit("g", INPUT, session_id=SESSION)
        for number in range(len(answers)):
            token = await open_token(store, task, after=number)
            shown = ""
            for each in await events_of(store):
                text = each["data"][0]["content"]
                shown = text if each.get("reset") else shown + text
            assert (len(runs), shown) == (number + 1, runs[-1])
            if number + 1 < len(answers):
                await client.resolve(token, approved=True, actor="ann")
        await client.cancel(SESSION, task, reason="enough")


async def test_a_node_that_ends_leaves_what_is_written_again_beside_it(
    store: RedisStateStore,
) -> None:
    chunks, going_on, runs = tokens(6), asyncio.Event(), list[int]()

    async def before(number: int) -> None:
        if number == 0:
            runs.append(1)
        if number == 4 and len(runs) == 1:
            await is_shown(store, "t3 ")
            raise TaskHandedBack("the worker dies")
        if number == 2 and len(runs) == 2:
            going_on.set()

            async def ended() -> bool:
                return "updates" in [each["graph"] for each in await events_of(store)]

            await eventually(ended, "the node beside it has ended")

    async def call(_: MessagesState) -> Any:
        return {"messages": [await ScriptedChat(chunks=chunks, before=before).ainvoke("go")]}

    async def beside(_: MessagesState) -> Any:
        await going_on.wait()
        return {"messages": []}

    def made(saver: Any) -> Any:
        graph: Any = StateGraph(MessagesState)
        for node in (call, beside):
            graph.add_node(node.__name__, node)
            graph.add_edge(START, node.__name__)
        return graph.compile(checkpointer=saver)

    async with pool(store, {"g": graph_handler(made, stream_mode=MESSAGES)}) as client:
        task = await client.submit("g", INPUT, session_id=SESSION)
        await client.result(SESSION, task)
    events = await events_of(store)
    assert not [each for each in events if each.get("reset")]
    assert text_of(await chunks_of(store)) == "".join(chunk.text for chunk in chunks)


async def test_a_token_of_a_pause_stands_in_one_row_whatever_comes_between(
    store: RedisStateStore,
) -> None:
    token = token_of(SESSION, "a secret", "pause:x#1")
    texts = [f"see {token[:-20]}", f"{token[-20:]} ok"]
    first, second = (AIMessageChunk(content=text, id="m") for text in texts)
    build = called(first, calling("", name="pay", id="c"), second)
    async with pool(store, {"g": graph_handler(build, stream_mode=MESSAGES)}) as client:
        task = await client.submit("g", INPUT, session_id=SESSION)
        await client.result(SESSION, task)
    found = await chunks_of(store)
    assert text_of(found) == "".join(texts)
    assert [token.rpartition(".")[2] in each["content"] for each in found].count(True) == 1


async def test_a_text_leaves_though_no_event_follows_and_a_cancel_ends_its_model(
    store: RedisStateStore,
) -> None:
    going_on, stopped = asyncio.Event(), asyncio.Event()

    async def before(number: int) -> None:
        try:
            if number == 5:
                await going_on.wait()
            # What is written next meets the cancel.
            await asyncio.sleep(0.05 if number > 5 else 0)
        except asyncio.CancelledError:
            stopped.set()
            raise

    handler = graph_handler(called(*tokens(600), before=before), stream_mode=MESSAGES)
    async with pool(store, {"g": handler}) as client:
        task = await client.submit("g", INPUT, session_id=SESSION)

        async def written() -> bool:
            return text_of(await chunks_of(store)) == "t0 t1 t2 t3 t4 "

        await eventually(written, "what the model has written is in the log")
        await client.cancel(SESSION, task, reason="enough")
        going_on.set()
        await becomes(client, task, TaskStatus.CANCELLED)
        await stopped.wait()


@pytest.mark.parametrize("message_id", ["m", None], ids=["its own id", "LangChain's id"])
async def test_a_process_that_is_killed_while_its_model_writes_leaves_no_text_twice(
    store: RedisStateStore, settings: Settings, tmp_path: Path, message_id: str | None
) -> None:
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "queue": queue_of(settings),
        "folder": str(tmp_path),
        "message_id": message_id,
    }
    workers = {
        name: await start_process("model_graph_worker", {**argument, "name": name}) for name in "ab"
    }
    whole = "".join(chunk.text for chunk in tokens(60))
    half = "".join(chunk.text for chunk in tokens(30))
    async with client_of(store) as client:
        task = await client.submit("graph", INPUT, session_id=SESSION)

        async def written() -> bool:
            return text_of(await chunks_of(store, None)) == half

        await eventually(written, "half of the text is in the log", timeout_s=60)
        (holder,) = json.loads((tmp_path / "held").read_text())
        await children.end(workers.pop(holder))
        result = await client.result(SESSION, task)
        for process in workers.values():
            await children.end(process)
    assert result["messages"][-1]["content"] == whole
    events = [each for each in await events_of(store) if each["graph"] == "messages"]
    assert not [each for each in events if each.get("reset")]
    found = await chunks_of(store, None)
    texts = {each["id"]: text_of([c for c in found if c["id"] == each["id"]]) for each in found}
    # LangChain ends with a chunk of its own, without text.
    assert [text for text in texts.values() if text] == ([whole] if message_id else [half, whole])
    assert len(found) < 40
