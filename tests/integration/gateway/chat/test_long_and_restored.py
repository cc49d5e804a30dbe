"""Chats that are longer than the gateway shows, and those whose server went back in history."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("ag_ui", reason="needs ag-ui-protocol")

import httpx

from redis_state import RedisStateStore
from redis_state.gateway import GatewayLimits, create_gateway
from redis_state.gateway.chat.parts import TextBegan, TextDropped
from redis_state.gateway.chat.shown import MOST_SHOWN
from redis_state.gateway.chat.task_parts import TaskParts
from redis_state.models import StateUpdate, UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from tests.support.chat.ag_ui import AgUiClient, run_input
from tests.support.http.asgi_servers import PLAIN, serving_asgi
from tests.support.http.gateway import Served, caller, paused, tokens
from tests.support.processes.pools import agent, client_of, queue_of, serving
from tests.support.servers.changes.rollback import rolling_back

LONG = "x" * 2_000
ASKED = ["tool-input-start", "tool-input-available", "tool-approval-request"]


def row(kind: UpdateType, content: Any, **more: Any) -> StateUpdate:
    return StateUpdate(session_id="s", task_id="t", update_type=kind, content=content, **more)


def piece(text_id: str, number: int = 1, text: str = "x") -> StateUpdate:
    content = {"text": text, "text_id": text_id, "generation": "g", "part": number}
    return row(UpdateType.RESULT, content)


def chunks_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


async def ask(ctx: TaskContext) -> Any:
    """Ask, and go on."""
    return {"decided": (await ctx.approval("refund?")).approved}


def test_texts_that_are_kept_but_too_old_to_be_shown_are_not_taken_back() -> None:
    shown, kept = TaskParts("t", keeps_texts=False), TaskParts("t")
    for number in range(3 * MOST_SHOWN):
        for each in (piece(f"{number}"), piece(f"{number}", 2, "yz")):
            shown.feed(each)
            kept.feed(each)
            if number < 3 * MOST_SHOWN - 1:
                kept.pass_by()
    shown.feed(piece("lost"))
    changes = shown.go_back(kept)
    dropped = [each.text_id for each in changes if isinstance(each, TextDropped)]
    assert dropped == ["t:lost:g"]
    assert not [each for each in changes if isinstance(each, TextBegan)]


def test_a_text_that_is_partly_too_old_is_as_long_as_it_is() -> None:
    shown, kept = TaskParts("t", keeps_texts=False), TaskParts("t")
    for number in (1, 2, 3):
        shown.feed(piece("a", number))
        kept.feed(piece("a", number))
        if number == 1:
            kept.pass_by()
    assert shown.go_back(kept) == []


def test_a_text_that_was_too_old_for_who_joined_begins_before_it_goes_on() -> None:
    shown, kept = TaskParts("t", keeps_texts=False), TaskParts("t")
    for each in (piece("old"), piece("kept")):
        shown.feed(each)
        kept.feed(each)
        if each.content["text_id"] == "old":
            shown.pass_by()
    # Its text is not given out of its order, and the one that was written again is.
    again = piece("kept")
    again.content["generation"] = "h"
    shown.feed(again)
    changes = shown.go_back(kept)
    assert [each.text_id for each in changes if isinstance(each, TextBegan)] == ["t:kept:g"]
    (began, *_) = shown.feed(piece("old", 2))
    assert isinstance(began, TextBegan)


def test_calls_that_never_return_cost_no_more_than_others() -> None:
    parts, began = TaskParts("t", keeps_texts=False), time.process_time()
    for _ in range(10 * MOST_SHOWN):
        parts.feed(row(UpdateType.TOOL_CALL, {"tool": "note", "arguments": 1, "result": None}))
    assert len(parts.shown) <= 2 * MOST_SHOWN
    assert time.process_time() - began < 2


def test_a_state_of_many_names_costs_its_length_and_is_nobody_elses_object() -> None:
    given = {"mine": 1}
    parts, began = TaskParts("t", given, keeps_texts=False), time.process_time()
    for number in range(20_000):
        content = {"notice": "value", "key": f"{number}", "value": number}
        parts.feed(row(UpdateType.NOTIFICATION, content))
    # To copy it at each change is 200 million names.
    assert time.process_time() - began < 2
    assert len(parts.state) == 20_001
    assert given == {"mine": 1}


@pytest.mark.parametrize("odd", [[1], {"a": 1}, None, 7])
async def test_messages_with_ids_of_any_kind_break_no_run(chat: Served, odd: Any) -> None:
    body = run_input("s", "t") | {"messages": [{"id": odd, "role": "user", "content": "hi"}]}
    async with chat.caller("ann", "read:*", "submit:*") as http:
        for _ in range(2):
            ran = await http.post("/v1/ag-ui/talk", json=body)
            assert (ran.status_code, "RUN_FINISHED" in ran.text) == (200, True)
        # Who connects needs messages that its client takes.
        late = await AgUiClient(http).connect("s", "t")
    assert [each["id"] for each in late.of("MESSAGES_SNAPSHOT")[0]["messages"] if "id" in each]


@pytest.mark.parametrize("approved", [True, False])
async def test_the_end_of_an_old_pause_comes_behind_its_tool(
    store: RedisStateStore, *, approved: bool
) -> None:
    limits = GatewayLimits(chat_bytes=16_384)
    app = create_gateway(store, auth=tokens, limits=limits, queue=queue_of(store.settings))
    async with client_of(store) as tasks:
        await tasks.submit("none", None, session_id="s", task_id="t")
        for name in ("early", "late"):
            asked = {"pause": name, "pause_id": f"s:{name}", "reason": "why", "payload": {"n": 1}}
            await store.save_update(row(UpdateType.CHECKPOINT, asked))
        ended = {"status": "RUNNING", "approved": approved, "actor": "bob"}
        await store.save_update(row(UpdateType.STATUS_CHANGE, ended | {"pause": "early"}))
        for number in range(50):
            await store.save_update(piece(f"{number}", text=LONG))
        await store.save_update(row(UpdateType.STATUS_CHANGE, ended | {"pause": "late"}))
        await tasks.cancel("s", "t")
        async with caller(app, "ann", "read:*") as http:
            answer = await http.get("/v1/ai-sdk/none/s/stream", params={"task": "t"})
    chunks = chunks_of(answer.text)
    about = [each["type"] for each in chunks if each.get("toolCallId") == "s:late"]
    end = "tool-output-available" if approved else "tool-output-denied"
    assert about == [*ASKED, end]
    assert not [each for each in chunks if each.get("toolCallId") == "s:early"]
    await app.aclose()


async def test_a_pause_that_is_open_again_after_a_restore_is_asked_again() -> None:
    async with rolling_back() as server, RedisStateStore.from_url(server.url) as store:
        app = create_gateway(store, auth=tokens, queue=queue_of(store.settings))
        token = tokens.mint("ann", ("read:*", "submit:*", "resolve:*"))
        async with (
            client_of(store) as tasks,
            serving_asgi(app, stop=app.end_streams) as port,
            httpx.AsyncClient(
                verify=PLAIN,
                base_url=f"http://127.0.0.1:{port}",
                headers={"authorization": f"Bearer {token}"},
                timeout=60,
            ) as http,
        ):
            async with serving(agent(store.settings, {"ask": ask})):
                await tasks.submit("ask", None, session_id="s", task_id="t")
                pause = await paused(Served(app, tasks, store), "s", "t")
            await server.mark()
            await tasks.resolve(pause, approved=True, actor="bob")
            ann, lines = AgUiClient(http), list[str]()

            async def resume() -> None:
                url = "/v1/ai-sdk/ask/s/stream"
                async with http.stream("GET", url, params={"task": "t"}) as answer:
                    async for line in answer.aiter_lines():
                        lines.append(line)

            reading: list[asyncio.Task[Any]] = [
                asyncio.create_task(ann.connect("s", "t")),
                asyncio.create_task(resume()),
            ]
            await eventually(lambda: ann.events and lines, "both have joined")
            assert '"resolved"' in "".join(lines)
            await server.go_back()
            # The session's next row is none of the task.
            other = row(UpdateType.RESULT, "beside it").model_copy(update={"task_id": "u"})
            await store.save_update(other)
            async with asyncio.timeout(30):
                await asyncio.gather(*reading)
            (interrupt,) = ann.events[-1]["outcome"]["interrupts"]
            assert interrupt["id"] == pause
            chunks = chunks_of("\n".join(lines))
            about = [each["type"] for each in chunks if each.get("toolCallId") == pause]
            assert about == [*ASKED, "tool-output-available", *ASKED]
            assert chunks[-1] == {"type": "finish"}
            shown = [each["data"]["state"] for each in chunks if each["type"] == "data-pause"]
            assert shown == ["open", "resolved", "open"]
            # It is decided as if it had not been.
            entry = {"interruptId": pause, "status": "resolved", "payload": {"approved": True}}
            async with serving(agent(store.settings, {"ask": ask})):
                await ann.run("ask", run_input("s", "r2", resume=[entry]))
            assert ann.events[-1]["outcome"] == {"type": "success"}
        await app.aclose()
