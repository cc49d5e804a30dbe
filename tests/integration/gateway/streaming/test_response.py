"""Streams over HTTP and WebSockets: heads, errors, clients that leave and that never read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import websockets
from websockets.asyncio.client import connect

from redis_state import RedisStateStore
from redis_state.errors import InvalidField, TaskUnknown
from redis_state.gateway.streaming.events import HEARTBEAT
from redis_state.gateway.streaming.hub import Hub
from redis_state.gateway.streaming.response import EventStream, read_after
from redis_state.gateway.streaming.websocket import EventSocket
from redis_state.models import StateUpdate, UpdateType
from redis_state.testing import eventually
from tests.support.http.asgi_servers import SocketClient, serving_asgi
from tests.support.http.event_streams import EventParser

SLOW, QUICK, ROWS, ROW_BYTES = 20, 2, 600, 1000


class App:
    """A gateway of one route: the session is the path."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.streams: list[Any] = []
        self.open = 0
        self.steered: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.open += 1
        try:
            chunks = self.hub.frames(scope["path"][1:], after=read_after(scope))
            self.streams.append(chunks)
            if scope["type"] == "websocket":
                await EventSocket(chunks, {"steer": self.steer})(scope, receive, send)
            else:
                await EventStream(chunks)(scope, receive, send)
        except InvalidField:
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self.open -= 1

    async def steer(self, command: dict[str, Any]) -> Any:
        if command["task_id"] == "unknown":
            raise TaskUnknown("unknown")
        self.steered.append(command)
        return {"event_id": "e1"}


@asynccontextmanager
async def gateway(store: RedisStateStore, **options: Any) -> AsyncGenerator[tuple[App, int]]:
    async with Hub(store, **options) as hub:
        app = App(hub)
        async with serving_asgi(app, stop=hub.end_streams) as port:
            yield app, port


async def save(store: RedisStateStore, n: int, text: str = "") -> None:
    await store.save_update(
        StateUpdate(
            session_id="s",
            task_id="t",
            update_type=UpdateType.PROGRESS,
            content={"n": n, "text": text},
        )
    )


async def test_a_stream_has_its_head_and_reads_on_by_the_last_event_id(
    store: RedisStateStore,
) -> None:
    for n in range(3):
        await save(store, n)
    async with gateway(store) as (app, port):
        client = await SocketClient.get(port, "s", query="?after=0")
        assert client.status == 200
        assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert client.headers["cache-control"] == "no-store, no-transform"
        assert client.headers["x-accel-buffering"] == "no"
        seen = await client.until(
            lambda event: event.name == "PROGRESS" and event.content["n"] == 2
        )
        assert [event.content["n"] for event in seen] == [0, 1, 2]
        client.abort()
        await eventually(lambda: app.open == 0, "the disconnect to be noticed")
        # A browser sends both: where it is counts, not where it began.
        again = await SocketClient.get(port, "s", query="?after=0", cursor=seen[1].cursor)
        (event,) = await again.until(lambda event: event.name == "PROGRESS")
        assert event.content["n"] == 2
        again.abort()


@pytest.mark.parametrize("given", ["?after=x", "?after=", "?after=1-2-3"])
async def test_a_malformed_cursor_is_answered_before_the_stream(
    store: RedisStateStore, given: str
) -> None:
    async with gateway(store) as (app, port):
        client = await SocketClient.get(port, "s", query=given)
        assert client.status == 400
        client.abort()
        assert app.hub.watches == 0


async def test_the_end_of_the_server_is_told_to_every_client(store: RedisStateStore) -> None:
    async with gateway(store) as (app, port):
        clients = [await SocketClient.get(port, "s") for _ in range(10)]
        await eventually(lambda: app.hub.clients == 10, "all to be attached")
        app.hub.end_streams()
        for client in clients:
            retries: list[int | None] = []
            while (found := await client.events()) is not None:
                retries += [event.retry for event in found]
            assert len(retries) == 2
            client.abort()


async def test_clients_that_never_read_hold_little_and_nobody_up(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str | None] = []
    read_updates = RedisStateStore.read_updates

    async def counted(self: RedisStateStore, session_id: str, **options: Any) -> Any:
        reads.append(options["after"])
        return await read_updates(self, session_id, **options)

    monkeypatch.setattr(RedisStateStore, "read_updates", counted)
    async with gateway(store) as (app, port):
        slow = [
            await SocketClient.get(port, "s", query="?after=0", window=4096) for _ in range(SLOW)
        ]
        quick = [await SocketClient.get(port, "s", query="?after=0") for _ in range(QUICK)]
        await eventually(lambda: app.hub.clients == SLOW + QUICK, "all to be attached")
        last = [
            asyncio.create_task(
                client.until(
                    lambda event: event.name == "PROGRESS" and event.content["n"] == ROWS - 1
                )
            )
            for client in quick
        ]
        for n in range(ROWS):
            await save(store, n, "x" * ROW_BYTES)
        for each in await asyncio.gather(*last):
            assert [event.content["n"] for event in each] == list(range(ROWS))
        # The session's newest frames, and for each client no more than a page of the log.
        assert app.hub.held <= 256
        assert max(stream.held for stream in app.streams) <= 256
        assert sum(stream.held for stream in app.streams) * ROW_BYTES <= SLOW * (1 << 20)
        # Who begins to read again gets all of it, from the log.
        before = len(reads)
        seen = await slow[0].until(lambda e: e.name == "PROGRESS" and e.content["n"] == ROWS - 1)
        assert [event.content["n"] for event in seen] == list(range(ROWS))
        assert len(reads) > before
        for client in (*slow, *quick):
            client.abort()
        await eventually(lambda: app.hub.clients == 0, "all to be gone")


async def test_a_web_socket_has_the_same_events_and_acknowledges_commands(
    store: RedisStateStore,
) -> None:
    async with gateway(store, heartbeat_s=0.1) as (app, port):
        parser, events = EventParser(), list[Any]()

        async def next_of(socket: Any, name: str) -> Any:
            while not (found := [event for event in events if event.name == name]):
                text = await socket.recv()
                if text.encode() != HEARTBEAT:
                    events.extend(parser.feed(text.encode()))
            events.remove(found[0])
            return found[0]

        async with connect(f"ws://127.0.0.1:{port}/s?after=0") as socket:
            await save(store, 1, "a\nb")
            assert (await next_of(socket, "PROGRESS")).content == {"n": 1, "text": "a\nb"}
            commands: list[tuple[Any, str | None]] = [
                ({"id": "1", "type": "steer", "task_id": "t"}, None),
                ({"id": "2", "type": "steer", "task_id": "unknown"}, "not_found"),
                ({"id": "3", "type": "nope"}, "invalid_field"),
                ({"type": "steer"}, "invalid_field"),
                (["steer"], "invalid_field"),
                ("\x00", "invalid_field"),
            ]
            for command, error in commands:
                await socket.send(json.dumps(command) if command != "\x00" else "\x00")
                ack = (await next_of(socket, "ack")).data
                assert ack["ok"] is (error is None)
                assert ack.get("error", {}).get("code") == error
                assert ack["id"] == (
                    cast("Any", command).get("id") if isinstance(command, dict) else None
                )
            assert app.steered == [{"id": "1", "task_id": "t"}]
            await socket.send("x" * ((64 << 10) + 1))
            with pytest.raises(websockets.ConnectionClosed):
                await next_of(socket, "never")
        await eventually(lambda: app.open == 0, "the socket to be left")
