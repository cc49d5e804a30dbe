"""All kinds of readers over HTTP while the links of the store, over TLS, die without a word."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

import httpx
import websockets
from websockets.asyncio.client import connect

from redis_state import RedisStateStore, Settings
from redis_state.gateway import create_gateway
from redis_state.gateway.streaming.hub import Hub
from redis_state.http_client import HttpTaskClient
from redis_state.models import StateUpdate, UpdateType
from redis_state.models.streams import BEGINNING, ProducerBatch
from redis_state.testing import eventually
from tests.support.http.asgi_servers import PLAIN, serving_asgi
from tests.support.http.event_streams import EventParser
from tests.support.http.gateway import tokens
from tests.support.servers.proxies.dying_links import over_tls, while_links_die

OF_A_KIND, SESSIONS, ROWS = 8, 4, 60
PATIENCE_S = 240.0
TEXT = "text/plain"
_LINKS = ("Proxy.", "ReconnectingConnection.")
_LETTERS = "x\u00e9"


@dataclass(frozen=True, slots=True)
class Reader:
    """Where a reader reads: it reads until it has all rows, over as many connections as needed."""

    port: int
    name: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {tokens.mint(self.name, ['read:*'])}"}

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            verify=PLAIN,
            base_url=f"http://127.0.0.1:{self.port}",
            headers=self.headers,
            timeout=60,
        )


async def by_events(reader: Reader, name: str) -> list[int]:
    """Follow a session by server-sent events; come again behind the last event."""
    seen, cursor = list[int](), "0"
    url = f"/v1/sessions/{name}/events"
    async with reader.http() as http:
        while len(seen) < ROWS:
            parser = EventParser()
            async with http.stream("GET", url, headers={"last-event-id": cursor}) as answered:
                if answered.status_code == 503:
                    continue
                assert answered.status_code == 200
                # A reader leaves now and then by itself.
                most = len(seen) + 17
                async for chunk in answered.aiter_bytes():
                    for event in parser.feed(chunk):
                        assert event.retry is not None or event.name == "PROGRESS"
                        if event.retry is None:
                            seen.append(event.content["n"])
                            cursor = str(event.cursor)
                    if len(seen) >= min(most, ROWS):
                        break
    return seen


async def by_socket(reader: Reader, name: str) -> list[int]:
    """Follow a session over WebSockets."""
    seen, cursor = list[int](), "0"
    while len(seen) < ROWS:
        url = f"ws://127.0.0.1:{reader.port}/v1/sessions/{name}/socket?after={cursor}"
        parser = EventParser()
        try:
            async with connect(url, additional_headers=reader.headers) as socket:
                while len(seen) < ROWS:
                    for event in parser.feed(str(await socket.recv()).encode()):
                        if event.retry is None:
                            seen.append(event.content["n"])
                            cursor = str(event.cursor)
        except websockets.InvalidStatus as refused:
            if refused.response.status_code != 503:
                raise
        except websockets.ConnectionClosed as closed:
            if closed.rcvd is None or closed.rcvd.code not in (1001, 1011):
                raise
    return seen


async def by_client(reader: Reader, name: str) -> list[int]:
    """Follow a session as the client does."""
    url = f"http://127.0.0.1:{reader.port}"
    async with (
        HttpTaskClient(url, tokens.mint(reader.name, ["read:*"])) as client,
        aclosing(client.watch_updates(name, after="0")) as entries,
    ):
        seen = list[int]()
        async for entry in entries:
            content: Any = entry.value.content
            seen.append(content["n"])
            if len(seen) == ROWS:
                break
    return seen


async def by_long_poll(reader: Reader, name: str) -> list[int]:
    """Read a durable stream by long polls."""
    data, offset = b"", BEGINNING
    async with reader.http() as http:
        while data.count(b"\n") < ROWS:
            query = {"offset": offset, "live": "long-poll"}
            answered = await http.get(f"/v1/stream/{name}", params=query)
            if answered.status_code != 503:
                assert answered.status_code in (200, 204), answered.text
                data, offset = data + answered.content, answered.headers["stream-next-offset"]
    return [int(line.split()[0]) for line in data.splitlines()]


async def by_stream_events(reader: Reader, name: str) -> list[int]:
    """Read a durable stream by server-sent events."""
    text, offset = "", BEGINNING
    async with reader.http() as http:
        while text.count("\n") < ROWS:
            query = {"offset": offset, "live": "sse"}
            async with http.stream("GET", f"/v1/stream/{name}", params=query) as answered:
                if answered.status_code == 503:
                    continue
                assert answered.status_code == 200
                async for kind, data in _stream_events(answered):
                    if kind == "data":
                        text += data
                    else:
                        offset = json.loads(data)["streamNextOffset"]
                    if kind == "control" and text.count("\n") >= ROWS:
                        break
    return [int(line.split()[0]) for line in text.splitlines()]


async def _stream_events(answered: httpx.Response) -> AsyncGenerator[tuple[str, str]]:
    kind, lines = "", list[str]()
    async for line in answered.aiter_lines():
        name, _, rest = line.partition(":")
        if name == "event":
            kind = rest.strip()
        elif name == "data":
            lines.append(rest)
        elif not line and lines:
            yield kind, "\n".join(lines)
            lines = []


KINDS: list[Callable[[Reader, str], Any]] = [
    by_events,
    by_socket,
    by_client,
    by_long_poll,
    by_stream_events,
]


async def write(store: RedisStateStore, name: str) -> None:
    """Write all rows of a session, and of the durable stream of its name."""
    for n in range(ROWS):
        await store.save_update(
            StateUpdate(
                session_id=name,
                task_id="t",
                update_id=f"u{n}",
                update_type=UpdateType.PROGRESS,
                content={"n": n, "text": "\u2028\u00e9" * 100},
            )
        )
        row = f"{n} {_LETTERS[n % 2] * 500}\n".encode()
        batch = ProducerBatch("p", 0, n)
        await store.streams.append(name, row, content_type=TEXT, batch=batch)


async def test_40_readers_of_5_kinds_skip_and_repeat_nothing_and_leave_nothing(
    settings: Settings, store: RedisStateStore, tmp_path: Path
) -> None:
    names = [f"s{number}" for number in range(SESSIONS)]
    for name in names:
        await store.streams.create(name, content_type=TEXT)
    ends = dict[str, list[int]]()
    async with over_tls(settings, tmp_path, dribbled=700) as (over, links):
        app = create_gateway(over, auth=tokens)
        async with serving_asgi(app, stop=app.end_streams) as port:
            await app.services()
            before = _tasks()

            async def read(kind: Callable[[Reader, str], Any], number: int) -> None:
                reader = Reader(port, f"{kind.__name__} {number}")
                async with asyncio.timeout(PATIENCE_S):
                    ends[reader.name] = await kind(reader, names[number % SESSIONS])

            readers = [
                asyncio.create_task(read(kind, number))
                for kind in KINDS
                for number in range(OF_A_KIND)
            ]
            writers = [asyncio.create_task(write(over, name)) for name in names]
            await while_links_die(links, [*readers, *writers], most=6)
            assert len(ends) == len(KINDS) * OF_A_KIND == 40
            for name, seen in ends.items():
                wrong = [pair for pair in pairwise(seen) if pair[1] != pair[0] + 1]
                assert seen == list(range(ROWS)), (name, wrong)
            await eventually(lambda: app._usage.streams == 0, "all streams are counted out")
            await eventually(lambda: _held(app) == 0, "what was watched is let go")
            await eventually(lambda: _tasks() == before, "no task is left")
        await app.aclose()


def _tasks() -> list[str]:
    """Name what runs, but for the links of the store: it keeps one to subscribe with."""
    running = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return sorted(each for each in running if not each.startswith(_LINKS))


def _held(app: Any) -> int:
    hubs = list(app._hubs)
    return sum(hub.watches + hub.clients if isinstance(hub, Hub) else hub.watched for hub in hubs)
