"""Functions of a host that fail while a stream is open: its authenticator, and ``visible=``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

import httpx
import websockets
from starlette.requests import HTTPConnection
from websockets.asyncio.client import connect

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable
from redis_state.gateway import (
    Gateway,
    GatewayLimits,
    Principal,
    Unauthenticated,
    calls,
    create_gateway,
)
from redis_state.gateway import app as gateway_app
from redis_state.gateway.durable_streams import feeds, frames
from redis_state.gateway.streaming import events
from redis_state.gateway.streaming.begun import BegunStream, Streamed
from redis_state.gateway.streaming.hub import Hub
from redis_state.gateway.streaming.websocket import EventSocket
from redis_state.models import StateUpdate, UpdateType
from redis_state.testing import eventually
from tests.support.http.asgi_servers import PLAIN, SocketClient, serving_asgi
from tests.support.http.event_streams import PATIENCE_S, Event, EventParser, Events
from tests.support.http.gateway import tokens

SECRET_TEXT = "4111 1111 1111 1111"
PATHS = ("/v1/sessions/s/events", "/v1/sessions/s/socket", "/v1/stream/d")


class Host:
    """An authenticator that fails, or knows nobody, when it is set to."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.principal: Principal | None = Principal("ann", frozenset({"admin:*"}))  # type: ignore[arg-type]
        # How often it was asked while it failed.
        self.failed: Counter[str] = Counter()

    async def authenticate(self, connection: HTTPConnection) -> Principal | None:
        if self.error is not None:
            self.failed[connection.url.path] += 1
            raise self.error
        return self.principal


def row(n: int) -> StateUpdate:
    kind = UpdateType.PROGRESS
    return StateUpdate(
        session_id="s", task_id="t", update_id=f"u{n}", update_type=kind, content={"n": n}
    )


@dataclass(frozen=True, slots=True)
class Opened:
    """One stream of each kind."""

    events: SocketClient
    socket: Any
    durable: asyncio.Task[httpx.Response]

    async def rest(self) -> tuple[list[Event], list[Event], int, str]:
        """Return the last events of each, and the code with which the socket was closed."""
        found, parser, down = list[Event](), EventParser(), list[Event]()
        async with asyncio.timeout(PATIENCE_S):
            while (more := await self.events.events()) is not None:
                found += more
            try:
                while True:
                    down += parser.feed((await self.socket.recv()).encode())
            except websockets.ConnectionClosed:
                pass
            return found, down, self.socket.close_code, (await self.durable).text


@asynccontextmanager
async def opened(app: Gateway, store: RedisStateStore) -> AsyncGenerator[Opened]:
    await store.streams.create("d", content_type="text/plain")
    async with (
        serving_asgi(app, stop=app.end_streams) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=PLAIN) as http,
        connect(f"ws://127.0.0.1:{port}{PATHS[1]}?after=$") as socket,
    ):
        events = await SocketClient.get(port, "s", query="?after=$", token="any")
        assert events.status == 200
        asked = {"offset": "-1", "live": "sse"}
        durable = asyncio.create_task(http.get(PATHS[2], params=asked, timeout=PATIENCE_S))
        services = await app.services()
        await eventually(
            lambda: sum(each.clients for each in services.feeds._feeds.values()) == 1,
            "the durable stream is read",
        )
        try:
            yield Opened(events, socket, durable)
        finally:
            events.abort()
            durable.cancel()
            await asyncio.wait({durable})
    await app.aclose()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """Make an authenticator that is asked often."""
    monkeypatch.setattr(gateway_app, "Hub", partial(Hub, heartbeat_s=0.05))
    for module in (frames, feeds):
        monkeypatch.setattr(module, "HEARTBEAT_S", 0.05)
    return Host()


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (Unauthenticated("the issuer cannot be reached", passing=True), 0),
        (BackendUnavailable("users", "it restarts"), 0),
        (LookupError(SECRET_TEXT), 3),
    ],
)
async def test_streams_stay_while_the_authenticator_cannot_say(
    error: Exception,
    lines: int,
    store: RedisStateStore,
    host: Host,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = create_gateway(store, auth=host, limits=GatewayLimits(events_s=3_600.0))
    async with opened(app, store) as streams:
        host.error = error
        await eventually(lambda: all(host.failed[path] > 3 for path in PATHS), "each is asked for")
        await store.save_update(row(1))
        await streams.events.until(lambda event: event.name == "PROGRESS")
        assert not streams.durable.done()
        # It answers again, and says No: that counts at once.
        host.error, host.principal = None, None
        found, down, code, _ = await streams.rest()
    assert [event.name for event in found][-1] == "expired"
    assert [event.name for event in down if event.retry is None] == ["PROGRESS", "expired"]
    assert code == 1008
    assert sum("LookupError" in line for line in caplog.messages) == lines
    assert SECRET_TEXT not in caplog.text


async def test_streams_end_when_it_could_not_say_for_long(
    store: RedisStateStore, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LONGEST_UNKNOWN_S", 0.2)
    app = create_gateway(store, auth=host, limits=GatewayLimits(events_s=3_600.0))
    async with opened(app, store) as streams:
        host.error = Unauthenticated("the issuer cannot be reached", passing=True)
        found, down, code, _ = await streams.rest()
        assert all(host.failed[path] > 1 for path in PATHS)
    for each in (found, down):
        assert "expired" not in [event.name for event in each]
        assert each[-1].retry is not None
    assert code == 1001


async def test_a_row_that_cannot_be_shown_ends_the_stream_behind_the_rows_before_it(
    store: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    def visible(_: Principal, update: StateUpdate) -> StateUpdate | None:
        if update.content["n"] == 3:
            raise LookupError(SECRET_TEXT)
        return update

    token = tokens.mint("ann", ["read:session:s"])
    app = create_gateway(store, auth=tokens, visible=visible)
    async with serving_asgi(app, stop=app.end_streams) as port:
        waits = await SocketClient.get(port, "s", query="?after=$", token=token)
        for n in (1, 2, 3, 4):
            await store.save_update(row(n))
        # One that waited has the rows of the feed, and one that comes those of the log.
        for client in (waits, await SocketClient.get(port, "s", token=token)):
            found = await rest_of(client)
            rows = [event.content["n"] for event in found if event.name == "PROGRESS"]
            assert rows == [1, 2]
            # Later than after a broken connection: the row would fail again.
            assert found[-1].retry is not None
            assert found[-1].retry >= 5_000
            client.abort()
    await app.aclose()
    assert sum("visible= of an open stream: LookupError" in line for line in caplog.messages) == 2
    assert "in visible" in caplog.text
    assert SECRET_TEXT not in caplog.text


async def rest_of(client: SocketClient) -> list[Event]:
    """Return the events up to the end of the response."""
    found = list[Event]()
    async with asyncio.timeout(PATIENCE_S):
        while (more := await client.events()) is not None:
            found += more
    return found


@pytest.mark.parametrize("failing", [1, 3])
async def test_no_place_is_sent_behind_a_row_of_the_log_that_cannot_be_shown(
    failing: int, store: RedisStateStore
) -> None:
    def visible(update: StateUpdate) -> StateUpdate | None:
        if update.content["n"] == failing:
            raise LookupError(SECRET_TEXT)
        return update if update.content["n"] > failing else None

    for n in (1, 2, 3, 4):
        await store.save_update(row(n))
    async with Hub(store, heartbeat_s=0.05) as hub:
        found = await Events(hub.frames("s", visible=visible)).rest()
    assert [(event.cursor, event.retry is None) for event in found] == [(None, False)] * 2


async def test_no_row_of_the_feed_comes_behind_one_of_the_log_that_cannot_be_shown(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def visible(update: StateUpdate) -> StateUpdate | None:
        if update.content["n"] == 1:
            raise LookupError(SECRET_TEXT)
        return update

    read: Callable[..., Any] = RedisStateStore.read_updates
    await store.save_update(row(1))
    async with Hub(store) as hub, Events(hub.frames("s", after="$")) as waits:
        await waits.opened()

        async def slowly(*args: Any, **options: Any) -> Any:
            page = await read(*args, **options)
            # The feed has it before the client has the page.
            await store.save_update(row(2))
            await waits.take(1)
            return page

        monkeypatch.setattr(RedisStateStore, "read_updates", slowly)
        async with Events(hub.frames("s", visible=visible)) as client:
            found = await client.rest()
    assert [(event.name, event.retry is None) for event in found] == [("message", False)] * 2


async def _failing() -> AsyncGenerator[bytes]:
    yield events.come_back()
    raise LookupError(SECRET_TEXT)


async def _nothing() -> None:
    return None


class _Held:
    async def aclose(self) -> None:
        await _nothing()


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_whatever_a_stream_raises_is_logged_without_its_text(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    chunks = _failing()
    first = await anext(chunks)
    begun = BegunStream(first, chunks, _Held())
    sent = list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    received = [{"type": "websocket.connect"}]

    async def receive() -> Any:
        if received and kind == "websocket":
            return received.pop()
        return await asyncio.Event().wait()

    serve: Any = Streamed(begun) if kind == "http" else EventSocket(begun, {})
    await serve({"type": kind, "method": "GET"}, receive, send)
    said = [each.get("body") or str(each.get("text", "")).encode() for each in sent]
    retries = [int(each.split()[1]) for each in said if each.startswith(b"retry: ")]
    assert (len(retries), retries[-1] >= 5_000) == (2, True)
    if kind == "http":
        assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    else:
        assert sent[-1] == {"type": "websocket.close", "code": 1011}
    assert "LookupError" in caplog.text
    assert SECRET_TEXT not in caplog.text
