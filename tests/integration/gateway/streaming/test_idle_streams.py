"""What a stream holds while nothing comes: a gateway has thousands of them."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any
from weakref import ref

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from redis_state import RedisStateStore
from redis_state.gateway import Principal, create_gateway
from redis_state.gateway.calls import ApiCall
from redis_state.gateway.requests.queries import EventsQuery
from redis_state.gateway.streaming.begun import Streamed
from redis_state.gateway.streaming.hub import Hub
from redis_state.gateway.streaming.response import EventStream, OutsideStreams
from redis_state.gateway.streaming.websocket import EventSocket
from redis_state.testing import eventually
from tests.support.http.gateway import Served, tokens
from tests.support.http.streams import Reader

EVENTS = "/v1/sessions/s/events"
OF_A_REQUEST = {ApiCall, EventsQuery, HTTPConnection, Principal, Request, Response, Streamed}
SITE = "https://app.example.com"


def kept() -> Counter[str]:
    """Count what there is of requests."""
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in OF_A_REQUEST)


def waiting_in(task: asyncio.Task[Any]) -> list[str]:
    """Name the coroutines that a task is in, the outermost first."""
    names: list[str] = []
    coroutine: Any = task.get_coro()
    while hasattr(coroutine, "cr_await"):
        names.append(coroutine.__qualname__)
        coroutine = coroutine.cr_await
    return names


async def test_an_open_stream_keeps_nothing_of_the_request_that_began_it(served: Served) -> None:
    token = tokens.mint("ann", ["read:session:s"])
    async with Reader(served.app, EVENTS, token, query="after=$"):
        pass  # whatever the first request makes for all that follow
    before = kept()
    async with Reader(served.app, EVENTS, token, query="after=$") as reader:
        hub: Hub = (await served.app.services()).hub
        await eventually(lambda: any(f.waiting for f in hub._feeds.values()), "the client waits")
        assert kept() - before == Counter()
        assert reader.task is not None
        inside = waiting_in(reader.task)
    assert inside[inside.index("OutsideStreams.__call__") :] == [
        "OutsideStreams.__call__",
        "EventStream.send_body",
        "ClientStream.__anext__",
        "ClientStream._next",
        "ClientStream._wait",
    ]


async def test_the_head_of_a_stream_goes_through_all_layers(store: RedisStateStore) -> None:
    app = create_gateway(store, auth=tokens, cors=[SITE])
    token = tokens.mint("ann", ["read:session:s"])
    async with Reader(app, EVENTS, token, headers=[(b"origin", SITE.encode())]) as reader:
        await eventually(lambda: reader.body, "the stream begins")
        assert reader.headers[b"access-control-allow-origin"] == SITE.encode()
        assert reader.headers[b"content-type"].startswith(b"text/event-stream")
    await app.aclose()


async def test_a_layer_that_was_added_lasts_as_long_as_the_stream(store: RedisStateStore) -> None:
    returned: list[str] = []

    class Added:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self._app(scope, receive, send)
            returned.append(scope["path"])

    app = create_gateway(store, auth=tokens)
    app.add_middleware(Added)
    async with Reader(app, EVENTS, tokens.mint("ann", ["read:session:s"])) as reader:
        await eventually(lambda: reader.body, "the stream begins")
        assert returned == []
    assert returned == [EVENTS]
    await app.aclose()


class Chunk(bytearray):
    """What can be referred to weakly, as bytes cannot."""


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_client_that_waits_keeps_nothing_of_what_it_was_sent(kind: str) -> None:
    made: list[ref[Chunk]] = []
    sent = 0
    gone = asyncio.Event()

    def chunk() -> Any:
        found = Chunk(b"a page of the log")
        made.append(ref(found))
        return found

    async def chunks() -> AsyncGenerator[bytes]:
        yield chunk()
        yield chunk()
        await gone.wait()

    async def receive() -> dict[str, Any]:
        if kind == "websocket" and not sent:
            return {"type": "websocket.connect"}
        await gone.wait()
        return {"type": f"{kind}.disconnect"}

    async def send(message: Any) -> None:
        nonlocal sent
        sent += 1

    serve: Any = EventSocket(chunks(), {}) if kind == "websocket" else EventStream(chunks())
    task = asyncio.create_task(serve({}, receive, send))
    await eventually(lambda: sent == 3, "the head and both chunks are sent")
    assert [each() for each in made] == [None, None]
    gone.set()
    await task


async def test_a_stream_is_closed_if_a_layer_fails_behind_its_head() -> None:
    closed: list[str] = []

    async def chunks() -> AsyncGenerator[bytes]:
        try:
            yield b": first\n\n"
        finally:
            closed.append("closed")

    async def failing(scope: Any, receive: Any, send: Any) -> None:
        await EventStream(chunks())(scope, receive, send)
        raise RuntimeError("the layer's own reason")

    async def send(message: Any) -> None:
        assert message["type"] == "http.response.start"

    never: Any = asyncio.Event().wait
    with pytest.raises(RuntimeError, match="the layer's own reason"):
        await OutsideStreams(failing)({"type": "http"}, never, send)
    assert closed == ["closed"]
