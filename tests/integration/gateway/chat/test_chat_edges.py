"""Chats at their edges: ids of any text, filters, other sessions, clients that leave."""

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
from redis_state.gateway import GatewayLimits, Principal, create_gateway
from redis_state.gateway.chat.ai_sdk.chunks import JoinedChunks
from redis_state.gateway.chat.parts import TextDropped
from redis_state.gateway.chat.shown import MOST_SHOWN, ShownCall, ShownMessage
from redis_state.gateway.chat.task_parts import TaskParts
from redis_state.models import StateUpdate, UpdateType
from redis_state.testing import eventually
from tests.support.chat.ag_ui import AgUiClient, run_input
from tests.support.chat.chats import HANDLERS
from tests.support.http.asgi_servers import PLAIN, serving_asgi
from tests.support.http.gateway import Served, at, caller, paused, tokens
from tests.support.processes.pools import agent, client_of, queue_of, serving

ALL = ("read:*", "submit:*", "resolve:*", "steer:*")
IDS = (
    "a/b",
    "..",
    "é\x00",
    "x\n\nid: 1-1\ndata: {}\n\n",
    "%2F",
    '"',
    " ",
    "\u2028",
    "{}",
    "\ud800",
)


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_ids_of_any_text_name_a_run(chat: Served) -> None:
    async with chat.caller("ann", *ALL) as ann:
        for name in IDS:
            body = json.dumps(run_input(name, name, "hi")).encode()
            ran = await ann.post(
                "/v1/ag-ui/say", content=body, headers={"content-type": "application/json"}
            )
            assert ran.status_code == 200, (name, ran.text)
            events = events_of(ran.text)
            assert (events[0]["threadId"], events[0]["runId"]) == (name, name)
            assert events[-1]["result"] == "you said hi"
            joined = await ann.get(at(name, name, "ag-ui"))
            assert [each["type"] for each in events_of(joined.text)][:1] == ["RUN_STARTED"]


async def test_ids_of_any_text_name_a_chat_and_its_messages(chat: Served) -> None:
    headers = {"content-type": "application/json"}
    async with chat.caller("ann", *ALL) as ann:
        for name in IDS:
            body = json.dumps(_sent(name, name)).encode()
            ran = [
                await ann.post("/v1/ai-sdk/talk", content=body, headers=headers) for _ in range(2)
            ]
            assert [each.status_code for each in ran] == [200, 200], (name, ran[0].text)
            assert all('"type":"finish"' in each.text for each in ran)
            (task,) = await chat.store.list_tasks(name)
            assert task.session_id == name
        for wrong in ("", "x" * 1_001):
            assert (await ann.post("/v1/ai-sdk/say", json=_sent(wrong))).status_code == 422
            asked = run_input(wrong, "r", "hi")
            assert (await ann.post("/v1/ag-ui/say", json=asked)).status_code == 422


async def test_half_of_a_surrogate_pair_names_an_interrupt_that_is_not_there(
    chat: Served,
) -> None:
    entry = {"interruptId": "\ud800", "status": "cancelled"}
    body = json.dumps(run_input("s", "r", resume=[entry])).encode()
    async with chat.caller("ann", *ALL) as ann:
        ran = await ann.post(
            "/v1/ag-ui/approve", content=body, headers={"content-type": "application/json"}
        )
        assert ran.status_code == 404, ran.text


async def test_a_filter_that_shows_texts_only_hides_no_end_of_a_run(
    store: RedisStateStore,
) -> None:
    def texts(_: Principal, update: StateUpdate) -> StateUpdate | None:
        return update if update.update_type is UpdateType.RESULT else None

    app = create_gateway(store, auth=tokens, queue=queue_of(store.settings), visible=texts)
    async with serving(agent(store.settings, HANDLERS)), client_of(store) as tasks:
        chat = Served(app, tasks, store)
        async with chat.caller("ann", *ALL) as ann, asyncio.timeout(10):
            ran = await ann.post("/v1/ag-ui/approve", json=run_input("s", "t"))
            outcome = events_of(ran.text)[-1]["outcome"]
            assert outcome["type"] == "interrupt"
            entry = {"interruptId": outcome["interrupts"][0]["id"], "status": "cancelled"}
            ran = await ann.post("/v1/ag-ui/approve", json=run_input("s", "r", resume=[entry]))
            assert events_of(ran.text)[-1]["outcome"] == {"type": "success"}
        await app.aclose()


async def test_a_filter_cuts_pauses_results_and_errors_too(store: RedisStateStore) -> None:
    def cut(_: Principal, update: StateUpdate) -> StateUpdate | None:
        match update.update_type, update.content:
            case UpdateType.CHECKPOINT, {"payload": {"who": _}}:
                return update.model_copy(update={"content": update.content | {"payload": "cut"}})
            case ((UpdateType.CHECKPOINT | UpdateType.RESULT), _):
                return None
            case UpdateType.STATUS_CHANGE, {"error": _}:
                return update.model_copy(update={"content": {"status": "FAILED"}})
            case _:
                return update

    app = create_gateway(store, auth=tokens, queue=queue_of(store.settings), visible=cut)
    async with serving(agent(store.settings, HANDLERS)), client_of(store) as tasks:
        chat = Served(app, tasks, store)
        async with chat.caller("ann", *ALL) as ann, asyncio.timeout(60):
            ran = await ann.post("/v1/ag-ui/approve", json=run_input("s", "t"))
            (interrupt,) = events_of(ran.text)[-1]["outcome"]["interrupts"]
            assert interrupt["metadata"]["payload"] == "cut"
            assert "bob" not in ran.text
            hidden = await ann.post("/v1/ag-ui/blurt", json=run_input("h", "t"))
            (interrupt,) = events_of(hidden.text)[-1]["outcome"]["interrupts"]
            assert interrupt["metadata"]["payload"] is None
            assert "none" not in hidden.text
            said = await ann.post("/v1/ag-ui/talk", json=run_input("r", "t"))
            assert "result" not in events_of(said.text)[-1]
            failed = await ann.post("/v1/ag-ui/fail", json=run_input("f", "t"))
            assert events_of(failed.text)[-1]["type"] == "RUN_ERROR"
            assert "no luck" not in failed.text
            message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "x"}]}
            sent = {"id": "f2", "messages": [message]}
            failed = await ann.post("/v1/ai-sdk/fail", json=sent)
            assert "errorText" in failed.text
            assert "no luck" not in failed.text
        await app.aclose()


async def test_a_caller_of_one_session_answers_and_reads_no_other(chat: Served) -> None:
    await chat.client.submit("approve", None, session_id="theirs", task_id="t")
    pause = await paused(chat, "theirs", "t")
    entry = {"interruptId": pause, "status": "resolved", "payload": {"approved": True}}
    rights = ("read", "submit", "resolve", "steer")
    async with chat.caller("eve", *(f"{right}:session:own" for right in rights)) as eve:
        for thread, status in (("own", 404), ("theirs", 403)):
            body = run_input(thread, "r", resume=[entry])
            assert (await eve.post("/v1/ag-ui/approve", json=body)).status_code == status
            part: dict[str, Any] = {"state": "approval-responded", "toolCallId": pause}
            part["approval"] = {"id": pause, "approved": True}
            sent = {"id": thread, "messages": [{"id": "m", "role": "assistant", "parts": [part]}]}
            assert (await eve.post("/v1/ai-sdk/approve", json=sent)).status_code == status
        assert (await eve.post("/v1/ai-sdk/approve/theirs/stop")).status_code == 403
        assert (await eve.get("/v1/ai-sdk/approve/theirs/stream")).status_code == 404
        assert (await eve.post("/v1/ai-sdk/approve/own/stop")).status_code == 204
    # Who may decide by a tag or everywhere, and not read the session, gets no stream of it.
    async with chat.caller("eve", "resolve:*", "read:session:own") as eve:
        for thread, status in (("own", 422), ("theirs", 403)):
            body = run_input(thread, "r", resume=[entry])
            assert (await eve.post("/v1/ag-ui/approve", json=body)).status_code == status
    state = await chat.client.get("theirs", "t")
    assert state is not None
    assert state.status.value == "PAUSED"


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(chat: Served) -> None:
    token = tokens.mint("ann", ALL)
    services = await chat.app.services()
    async with serving_asgi(chat.app, stop=chat.app.end_streams) as port:
        for path, body in (
            ("/v1/ag-ui/wait", run_input("s", "t")),
            ("/v1/ai-sdk/wait", _sent("c")),
        ):
            data = json.dumps(body).encode()
            head = (
                f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
            ).encode()
            request = head + data
            for sent in (10, len(head), len(request) - 1, len(request)):
                for wanted in (0, 1, 20, 200, 280):
                    await _leave(port, request[:sent], wanted if sent == len(request) else 0)
        tasks = await chat.store.list_tasks("s") + await chat.store.list_tasks("c")
        assert len(tasks) == 2
        await eventually(lambda: not services.usage.streams, "each stream is counted out")
        await eventually(lambda: not services.hub.clients, "each client has left its session")
        for task in tasks:
            await chat.client.signal(task.session_id, task.task_id, "go")
        for task in tasks:
            state = await chat.client.wait(task.session_id, task.task_id, timeout_s=20)
            assert state.status.value == "COMPLETE"
        headers = {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(
            verify=PLAIN, base_url=f"http://127.0.0.1:{port}", headers=headers
        ) as http:
            late = await AgUiClient(http).connect("s", "t")
            assert list(late.text().values()) == ["one two"]


def test_a_long_text_costs_its_length_to_read() -> None:
    parts, began = TaskParts("t"), time.process_time()
    for number in range(1, 10_001):
        content = {"text": "x" * 200, "text_id": "a", "generation": "g", "part": number}
        parts.feed(
            StateUpdate(session_id="s", task_id="t", update_type=UpdateType.RESULT, content=content)
        )
    # To join the text at each row copies 20 GB.
    assert time.process_time() - began < 1.5
    (shown,) = parts.shown.values()
    assert isinstance(shown, ShownMessage)
    assert shown.text == "x" * 2_000_000


def test_a_long_message_costs_its_length_to_resume() -> None:
    said, began = JoinedChunks(), time.process_time()
    for _ in range(10_000):
        said.add([{"type": "text-delta", "id": "a", "delta": "x" * 1_000}])
    (chunk,) = said.chunks()
    # To join the text at each row copies 50 GB.
    assert time.process_time() - began < 1.5
    assert chunk == {"type": "text-delta", "id": "a", "delta": "x" * 10_000_000}


def test_a_message_that_keeps_no_texts_holds_what_they_are_called_alone() -> None:
    parts = TaskParts("t", keeps_texts=False)
    for number in range(1, 1_001):
        content = {"text": "x" * 200, "text_id": "a", "generation": "g", "part": number}
        parts.feed(
            StateUpdate(session_id="s", task_id="t", update_type=UpdateType.RESULT, content=content)
        )
    (shown,) = parts.shown.values()
    assert isinstance(shown, ShownMessage)
    assert (shown.size, shown.text) == (200_000, "")


def test_a_stream_that_goes_on_for_ever_knows_the_newest_only() -> None:
    parts = TaskParts("t", keeps_texts=False)
    for number in range(5_000):
        for kind, content in (
            (
                UpdateType.RESULT,
                {"text": "x", "text_id": f"{number}", "generation": "g", "part": 1},
            ),
            (UpdateType.RESULT, "a whole text"),
            (UpdateType.TOOL_CALL, {"tool": "search", "arguments": "x" * 99, "result": "y" * 99}),
            (UpdateType.CHECKPOINT, {"pause": "p", "pause_id": f"s:{number}", "payload": "z"}),
            (UpdateType.STATUS_CHANGE, {"status": "PAUSED"}),
            (
                UpdateType.STATUS_CHANGE,
                {"status": "RUNNING", "pause": "p", "approved": True, "actor": "a"},
            ),
        ):
            parts.feed(StateUpdate(session_id="s", task_id="t", update_type=kind, content=content))
    assert len(parts.shown) <= 2 * MOST_SHOWN
    assert len(parts.asked) <= 2 * MOST_SHOWN
    for each in parts.shown.values():
        if isinstance(each, ShownCall):
            assert each.returned is not None
            assert (each.arguments, each.returned.result) == (None, None)
        else:
            assert each.text == ""
    # What it knows it still takes back.
    content = {"text": "again", "text_id": "4999", "generation": "h", "part": 1}
    row = StateUpdate(session_id="s", task_id="t", update_type=UpdateType.RESULT, content=content)
    assert isinstance(parts.feed(row)[0], TextDropped)


async def test_who_joins_a_very_long_chat_gets_the_newest_and_a_resync(
    store: RedisStateStore,
) -> None:
    limits = GatewayLimits(chat_bytes=16_384)
    app = create_gateway(store, auth=tokens, limits=limits, queue=queue_of(store.settings))
    async with client_of(store) as tasks:
        await tasks.submit("none", None, session_id="s", task_id="t")
        rows: list[tuple[UpdateType, Any]] = [
            (UpdateType.NOTIFICATION, {"notice": "value", "key": "early", "value": 1})
        ]
        rows += [(UpdateType.RESULT, f"text {number} " + "x" * 500) for number in range(200)]
        for kind, content in rows:
            await store.save_update(
                StateUpdate(session_id="s", task_id="t", update_type=kind, content=content)
            )
        await tasks.cancel("s", "t")
        async with caller(app, "ann", "read:*") as http:
            message = (await http.get("/v1/ai-sdk/none/s/stream", params={"task": "t"})).text
            run = (await http.get("/v1/sessions/s/tasks/t/ag-ui")).text
        # The same without a bound that matters.
        whole = create_gateway(store, auth=tokens, queue=queue_of(store.settings))
        async with caller(whole, "ann", "read:*") as http:
            long = (await http.get("/v1/ai-sdk/none/s/stream", params={"task": "t"})).text
    for text in (message, run):
        assert len(text) < 3 * 16_384
        assert "text 199 " in text
        assert "text 0 " not in text
        assert "too_long" in text
        assert '"early"' in text
    assert "text 0 " in long
    assert "too_long" not in long
    for each in (app, whole):
        await each.aclose()


def _sent(chat_id: str, message: str = "m1") -> dict[str, Any]:
    parts = [{"type": "text", "text": "hi"}]
    return {"id": chat_id, "messages": [{"id": message, "role": "user", "parts": parts}]}


async def _leave(port: int, request: bytes, wanted: int) -> None:
    """Send a request or a part of it, read a part of the answer, and break the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    async with asyncio.timeout(20):
        await reader.readexactly(wanted)
    writer.transport.abort()
