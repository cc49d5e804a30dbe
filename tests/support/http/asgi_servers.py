"""An HTTP server in the test's own loop, and clients of it that are no more than sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Self
from urllib.parse import quote

import uvicorn

from redis_state.http_client.requests.caller import tls_for
from redis_state.testing import eventually
from tests.support.http.event_streams import PATIENCE_S, Event, EventParser

# Given as ``verify`` to a client of http://, which else reads all certificate authorities.
PLAIN: Any = tls_for("http://here")


@asynccontextmanager
async def serving_asgi(app: Any, *, stop: Callable[[], None]) -> AsyncGenerator[int]:
    """Serve an application on a port; ``stop`` ends its streams, or the server would wait."""
    with socket.socket() as listening:
        # A client that does not read is noticed soon: the system takes little for it.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app,
            log_level="warning",
            lifespan="off",
            timeout_graceful_shutdown=5,
            ws="websockets-sansio",
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve([listening]))
        try:
            await eventually(lambda: server.started, "the HTTP server to start")
            yield listening.getsockname()[1]
        finally:
            stop()
            server.should_exit = True
            await serving


class SocketClient:
    """One streaming GET over a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.parser = EventParser()
        self.status = 0
        self.headers: dict[str, str] = {}
        self._reader = reader
        self._writer = writer

    @classmethod
    async def get(
        cls,
        port: int,
        session: str,
        *,
        query: str = "",
        cursor: str | None = None,
        window: int | None = None,
        token: str | None = None,
    ) -> Self:
        """Send a request, and read the head of its response.

        With a token it is one to a gateway; else the session is the path.
        """
        sock = socket.socket()
        if window is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        sock.settimeout(0)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except BaseException:
            sock.close()
            raise
        reader, writer = await asyncio.open_connection(sock=sock, limit=window or 1 << 16)
        path = f"/{quote(session, safe='')}"
        if token is not None:
            path = f"/v1/sessions{path}/events"
        head = f"GET {path}{query} HTTP/1.1\r\nHost: x\r\n"
        if token is not None:
            head += f"Authorization: Bearer {token}\r\n"
        if cursor is not None:
            head += f"Last-Event-ID: {cursor}\r\n"
        writer.write(f"{head}\r\n".encode())
        client = cls(reader, writer)
        try:
            async with asyncio.timeout(PATIENCE_S):
                raw = (await reader.readuntil(b"\r\n\r\n")).decode()
        except BaseException:
            client.abort()
            raise
        first, *lines = raw.split("\r\n")
        client.status = int(first.split()[1])
        pairs = (line.partition(": ") for line in lines if line)
        client.headers = {name.lower(): value for name, _, value in pairs}
        return client

    async def events(self) -> list[Event] | None:
        """Return the events of the next chunk; None once the response has ended."""
        try:
            size = int(await self._reader.readline() or b"0", 16)
            body = await self._reader.readexactly(size + 2)
        except (OSError, asyncio.IncompleteReadError):
            return None
        return self.parser.feed(body[:-2]) if size else None

    async def until(self, wanted: Callable[[Event], bool]) -> list[Event]:
        """Return what comes up to an event."""
        seen: list[Event] = []
        async with asyncio.timeout(PATIENCE_S):
            while not any(map(wanted, seen)):
                found = await self.events()
                assert found is not None, "the response ended"
                seen += found
        return [event for event in seen if event.retry is None]

    def abort(self) -> None:
        """Go without a word."""
        with suppress(OSError):
            self._writer.transport.abort()
