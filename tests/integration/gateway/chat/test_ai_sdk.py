"""The AI SDK's message stream over HTTP: send, resume from the begin, approve, and a real stop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

import httpx

from redis_state.testing import eventually
from redis_state.worker.tasks.operate.copies import Copies
from tests.support.http.asgi_servers import PLAIN, serving_asgi
from tests.support.http.event_streams import PATIENCE_S
from tests.support.http.gateway import Served, tokens
from tests.support.scripts.replies import ask

ALL = ("read:*", "submit:*", "resolve:*", "steer:*")


@asynccontextmanager
async def client(chat: Served, *scopes: str) -> AsyncGenerator[httpx.AsyncClient]:
    """Reach the gateway over a real server."""
    headers = {"authorization": f"Bearer {tokens.mint('ann', scopes or ALL)}"}
    async with (
        serving_asgi(chat.app, stop=chat.app.end_streams) as port,
        httpx.AsyncClient(
            verify=PLAIN, base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30
        ) as http,
    ):
        yield http


def sent(chat_id: str, text: str = "hi", message: str = "m1") -> dict[str, Any]:
    """Write what the AI SDK's transport sends."""
    parts = [{"type": "text", "text": text}]
    messages = [{"id": message, "role": "user", "parts": parts}]
    return {"id": chat_id, "messages": messages, "trigger": "submit-message"}


@asynccontextmanager
async def streamed(
    http: httpx.AsyncClient, method: str, url: str, **options: Any
) -> AsyncGenerator[AsyncIterator[dict[str, Any]]]:
    """Read chunks; the last one is DONE."""
    async with asyncio.timeout(PATIENCE_S), http.stream(method, url, **options) as response:
        if response.status_code != 200:
            await response.aread()
            raise AssertionError(f"{response.status_code}: {response.text}")
        assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
        yield _chunks(response)


async def _chunks(response: httpx.Response) -> AsyncGenerator[dict[str, Any]]:
    async for line in response.aiter_lines():
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            yield {"type": "DONE"}
        elif data != line:
            yield json.loads(data)


async def read(
    http: httpx.AsyncClient, method: str, url: str, **options: Any
) -> list[dict[str, Any]]:
    async with streamed(http, method, url, **options) as chunks:
        return [each async for each in chunks]


def kinds(chunks: list[dict[str, Any]]) -> list[str]:
    return [each["type"] for each in chunks]


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(each["delta"] for each in chunks if each["type"] == "text-delta")


async def test_a_message_under_a_key_is_the_task_of_what_was_sent_under_it(chat: Served) -> None:
    async with client(chat) as http:
        key = {"idempotency-key": "k"}
        first = await read(http, "POST", "/v1/ai-sdk/talk", json=sent("s"), headers=key)
        again = await read(http, "POST", "/v1/ai-sdk/talk", json=sent("s"), headers=key)
        assert text_of(again) == text_of(first) == "Hello"
        for handler, body in (("talk", sent("s", "bye")), ("say", sent("s"))):
            refused = await http.post(f"/v1/ai-sdk/{handler}", json=body, headers=key)
            assert refused.status_code == 409
            assert refused.json()["error"]["code"] == "key_reused"
        assert len(await chat.store.list_tasks("s")) == 1


async def test_a_message_has_its_parts_and_an_end(chat: Served) -> None:
    async with client(chat) as http:
        chunks = await read(http, "POST", "/v1/ai-sdk/talk", json=sent("s"))
        (task,) = await chat.store.list_tasks("s")
        assert chunks[0] == {"type": "start", "messageId": task.task_id}
        assert kinds(chunks) == [
            *("start", "data-progress"),
            *("reasoning-start", "reasoning-delta", "reasoning-end"),
            *("text-start", "text-delta", "text-delta", "text-end", "data-progress"),
            *("tool-input-start", "tool-input-available", "tool-output-available"),
            *("data-value", "data-value", "data-progress", "finish", "DONE"),
        ]
        assert text_of(chunks) == "Hello"
        # The same message again is the same task, and another one is not.
        again = await read(http, "POST", "/v1/ai-sdk/talk", json=sent("s"))
        assert again[0] == chunks[0]
        assert text_of(again) == "Hello"
        assert len(await chat.store.list_tasks("s")) == 1
        other = await read(http, "POST", "/v1/ai-sdk/say?input=text", json=sent("s", "hi", "m2"))
        assert other[-1] == {"type": "DONE"}
        assert len(await chat.store.list_tasks("s")) == 2


async def test_an_edited_message_is_another_task_under_the_same_id(chat: Served) -> None:
    async with client(chat) as http:
        first = await read(http, "POST", "/v1/ai-sdk/talk", json=sent("s", "one"))
        edited = sent("s", "TWO, edited") | {"messageId": "m1"}
        second = await read(http, "POST", "/v1/ai-sdk/talk", json=edited)
        again = await read(http, "POST", "/v1/ai-sdk/talk", json=edited)
        back = await read(http, "POST", "/v1/ai-sdk/talk", json=sent("s", "one"))
    assert first[0] == back[0] != second[0] == again[0]
    asked = {each.task_id: await _asked(chat, each.task_id) for each in await tasks_of(chat)}
    assert asked == {first[0]["messageId"]: "one", second[0]["messageId"]: "TWO, edited"}


async def test_an_answer_is_made_again_as_often_as_one_asks(
    chat: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = sent("s") | {"trigger": "regenerate-message"}
    async with client(chat) as http:
        made = [(await read(http, "POST", "/v1/ai-sdk/fail", json=asking))[0] for _ in range(6)]
        assert len({each["messageId"] for each in made}) == 6
        # Of an answer that is named, one more: a repetition gets it.
        named = asking | {"messageId": made[-1]["messageId"]}
        more = [(await read(http, "POST", "/v1/ai-sdk/fail", json=named))[0] for _ in range(2)]
        assert more[0] == more[1] not in made
        assert len(await tasks_of(chat)) == 7
        looks = 0
        look = chat.store.tasks.look

        async def counted(*names: Any, **options: Any) -> Any:
            nonlocal looks
            looks += 1
            return await look(*names, **options)

        monkeypatch.setattr(chat.store.tasks, "look", counted)
        await read(http, "POST", "/v1/ai-sdk/fail", json=asking)
        assert 5 <= looks <= 8


async def test_while_an_answer_is_made_again_a_repetition_joins_it(chat: Served) -> None:
    asking = sent("s") | {"trigger": "regenerate-message"}
    known = set[str]()
    async with client(chat) as http:
        for _ in range(2):
            async with (
                streamed(http, "POST", "/v1/ai-sdk/wait", json=asking) as chunks,
                streamed(http, "POST", "/v1/ai-sdk/wait", json=asking) as others,
            ):
                task = (await anext(chunks))["messageId"]
                assert (await anext(others))["messageId"] == task
                known.add(task)
                await chat.client.signal("s", task, "go")
                assert [each async for each in chunks][-1] == {"type": "DONE"}
    assert len(known) == len(await tasks_of(chat)) == 2


async def tasks_of(chat: Served) -> list[Any]:
    """List the chat's tasks."""
    return list(await chat.store.list_tasks("s"))


async def _asked(chat: Served, task_id: str) -> str:
    source = await Copies(chat.store).source("s", task_id)
    return str(source.task_input["messages"][-1]["parts"][0]["text"])


async def test_a_resumed_message_comes_whole_under_the_same_ids(chat: Served) -> None:
    async with client(chat) as http:
        assert (await http.get("/v1/ai-sdk/wait/s/stream")).status_code == 204
        first: list[dict[str, Any]] = []
        async with streamed(http, "POST", "/v1/ai-sdk/wait", json=sent("s")) as chunks:
            async for chunk in chunks:
                first.append(chunk)
                if chunk["type"] == "text-delta":
                    break
        async with streamed(http, "GET", "/v1/ai-sdk/wait/s/stream") as chunks:
            resumed = [await anext(chunks) for _ in range(3)]
            assert resumed == first
            await chat.client.signal("s", first[0]["messageId"], "go")
            resumed += [each async for each in chunks]
        assert text_of(resumed) == "one two"
        assert kinds(resumed)[-2:] == ["finish", "DONE"]
        assert (await http.get("/v1/ai-sdk/wait/s/stream")).status_code == 204


async def test_a_stop_reaches_the_task_also_beside_a_resumed_stream(chat: Served) -> None:
    async with client(chat) as http:
        async with streamed(http, "POST", "/v1/ai-sdk/wait", json=sent("s")) as chunks:
            task = (await anext(chunks))["messageId"]
            async for chunk in chunks:
                if chunk["type"] == "text-delta":
                    break
        async with streamed(http, "GET", "/v1/ai-sdk/wait/s/stream") as chunks:
            stopped = await http.post("/v1/ai-sdk/wait/s/stop")
            assert stopped.status_code == 202
            rest = [each async for each in chunks]
        assert kinds(rest)[-3:] == ["text-end", "abort", "DONE"]
        state = await chat.client.get("s", task)
        assert state is not None
        assert state.status.value == "CANCELLED"
        assert (await http.post("/v1/ai-sdk/wait/s/stop")).status_code == 204


async def test_a_newer_task_that_is_gone_hides_no_older_one_from_a_stop(chat: Served) -> None:
    base = chat.store.base
    async with client(chat) as http:
        async with streamed(http, "POST", "/v1/ai-sdk/wait", json=sent("s")) as chunks:
            task = (await anext(chunks))["messageId"]
            # The index still lists it, as after the server has evicted its record.
            await chat.client.submit(
                "wait", None, session_id="s", task_id="gone", delay=timedelta(seconds=60)
            )
            assert await ask(base.scripts, "DEL", base.keys.task("s", "gone")) == 1
            stopped = await http.post("/v1/ai-sdk/wait/s/stop")
            assert stopped.status_code == 202
            assert stopped.json()["task_id"] == task
            rest = [each async for each in chunks]
        assert kinds(rest)[-2:] == ["abort", "DONE"]


async def test_an_approval_in_the_last_message_decides_the_pause(chat: Served) -> None:
    async with client(chat) as http:
        chunks = await read(http, "POST", "/v1/ai-sdk/approve", json=sent("s"))
        assert kinds(chunks)[-2:] == ["finish", "DONE"]
        (asked,) = (each for each in chunks if each["type"] == "tool-approval-request")
        pause_id, task = asked["approvalId"], chunks[0]["messageId"]
        # A page that is loaded again sees what is asked.
        resumed = await read(http, "GET", "/v1/ai-sdk/approve/s/stream")
        assert asked in resumed
        plain = await read(http, "GET", "/v1/ai-sdk/approve/s/stream?approvals=data")
        assert "tool-approval-request" not in kinds(plain)
        assert "data-pause" in kinds(plain)

        part = {
            "type": "dynamic-tool",
            "toolName": "refund?",
            "toolCallId": pause_id,
            "state": "approval-responded",
            "approval": {"id": pause_id, "approved": True, "reason": "fine"},
        }
        body = sent("s")
        body["messages"].append({"id": task, "role": "assistant", "parts": [part]})
        rest = await read(http, "POST", "/v1/ai-sdk/approve", json=body)
        assert rest[0] == chunks[0]
        (output,) = (each for each in rest if each["type"] == "tool-output-available")
        assert output["output"] == {"approved": True, "by": "ann"}
        assert text_of(rest) == "ann: True, fine"
        # A repetition is answered with the same.
        again = await read(http, "POST", "/v1/ai-sdk/approve", json=body)
        assert text_of(again) == text_of(rest)
        part["approval"] = {"id": pause_id, "approved": False}
        late = await http.post("/v1/ai-sdk/approve", json=body)
        assert late.status_code == 409


async def test_a_text_that_is_written_again_is_marked_and_not_in_a_resumed_message(
    chat: Served,
) -> None:
    async with client(chat) as http:
        chunks = await read(http, "POST", "/v1/ai-sdk/again", json=sent("s"))
        (dropped,) = (each for each in chunks if each["type"] == "data-dropped")
        begun = [each["id"] for each in chunks if each["type"] == "text-start"]
        assert dropped["data"]["id"] == begun[0]
        resumed = await read(http, "POST", "/v1/ai-sdk/again", json=sent("s"))
        assert text_of(resumed) == "second try"
        assert "data-dropped" not in kinds(resumed)


async def test_a_task_that_fails_is_an_error(chat: Served) -> None:
    async with client(chat) as http:
        chunks = await read(http, "POST", "/v1/ai-sdk/fail", json=sent("s"))
    assert kinds(chunks)[-2:] == ["error", "DONE"]
    assert "no luck" in chunks[-2]["errorText"]


async def test_who_may_only_read_neither_sends_nor_stops(chat: Served) -> None:
    async with (
        client(chat) as http,
        streamed(http, "POST", "/v1/ai-sdk/wait", json=sent("s")) as chunks,
    ):
        task = (await anext(chunks))["messageId"]
    async with client(chat, "read:*") as http:
        sending = await http.post("/v1/ai-sdk/wait", json=sent("s", message="m2"))
        assert sending.status_code == 403
        assert (await http.post("/v1/ai-sdk/wait/s/stop")).status_code == 403
    async with client(chat, "submit:*") as http:
        assert (await http.get("/v1/ai-sdk/wait/s/stream")).status_code == 404

    async def runs() -> bool:
        state = await chat.client.get("s", task)
        return state is not None and state.status.value == "RUNNING"

    await eventually(runs, "the task runs")
