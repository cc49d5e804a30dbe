"""Clients of a gateway in a process of their own: plain sockets, which note what came late.

Each sends what a browser sends. Of the whole gateway each has a token of its own, for its session.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import sys
import time
from functools import partial
from typing import cast

from redis_state.gateway import BrowserTokens

_OPENED = b"HTTP/1.1 200 "
_AT = b'"at":'
_TOGETHER = 50
_PATIENCE_S = 30.0
_BROWSER = """\
Host: gateway.example.com
Connection: keep-alive
Pragma: no-cache
Cache-Control: no-cache
sec-ch-ua-platform: "Linux"
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
Chrome/140.0.0.0 Safari/537.36
Accept: text/event-stream
sec-ch-ua: "Chromium";v="140", "Not=A?Brand";v="24", "Google Chrome";v="140"
sec-ch-ua-mobile: ?0
Origin: https://app.example.com
Sec-Fetch-Site: same-site
Sec-Fetch-Mode: cors
Sec-Fetch-Dest: empty
Referer: https://app.example.com/
Accept-Encoding: gzip, deflate, br, zstd
Accept-Language: en-GB,en;q=0.9
""".replace("\n", "\r\n")


class Clients:
    """Open sockets, and the delays of what they got."""

    def __init__(self, port: int, secret: str = "") -> None:
        self.delays: list[float] = []
        self.opened = 0
        self.refused = ""
        self._port = port
        self._tokens = BrowserTokens(secret) if secret else None
        self._callers = 0
        self._open: list[asyncio.BaseTransport] = []
        self._silent: list[socket.socket] = []

    async def connect(self, count: int, sessions: int, prefix: str) -> None:
        """Open streams, a few at once, and wait until each has begun."""
        loop = asyncio.get_running_loop()
        first = self.opened
        for start in range(0, count, _TOGETHER):
            some = range(start, min(start + _TOGETHER, count))
            made = await asyncio.gather(
                *(
                    loop.create_connection(
                        partial(_Client, self, self._request(f"{prefix}{n % sessions}")),
                        "127.0.0.1",
                        self._port,
                    )
                    for n in some
                )
            )
            self._open += [transport for transport, _ in made]
            await self._until_opened(first + some.stop)

    def connect_silent(self, count: int, session: str) -> None:
        """Open streams that are never read, with a small window. With none, close all of them."""
        if not count:
            for sock in self._silent:
                sock.close()
            self._silent = []
        for _ in range(count):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", self._port))
            sock.sendall(self._request(session, query=""))
            self._silent.append(sock)

    async def heard(self, expected: int) -> dict[str, float]:
        """Wait for so many events, and say how late they were."""
        began = time.monotonic()
        while (  # noqa: ASYNC110 - an event for each of so many would be measured too
            len(self.delays) < expected and time.monotonic() < began + _PATIENCE_S
        ):
            await asyncio.sleep(0.02)
        delays, self.delays = sorted(self.delays), []
        if not delays:
            return {"heard": 0}
        places = {"p50_ms": 0.5, "p99_ms": 0.99, "most_ms": 1.0}
        last = len(delays) - 1
        late = {name: delays[min(last, int(at * len(delays)))] * 1e3 for name, at in places.items()}
        return {"heard": len(delays), **late}

    async def close(self) -> None:
        """Leave all."""
        for transport in self._open:
            transport.close()
        for sock in self._silent:
            sock.close()
        self._open, self._silent = [], []
        await asyncio.sleep(0.1)

    def _request(self, session: str, query: str = "?after=$") -> bytes:
        """Write the request of one more client."""
        if self._tokens is None:
            return f"GET /{session}{query} HTTP/1.1\r\n{_BROWSER}\r\n".encode()
        self._callers += 1
        token = self._tokens.mint(f"user-{self._callers}", [f"read:session:{session}"])
        path = f"/v1/sessions/{session}/events{query}"
        head = f"GET {path} HTTP/1.1\r\n{_BROWSER}Authorization: Bearer {token}\r\n"
        return f"{head}\r\n".encode()

    async def _until_opened(self, count: int) -> None:
        give_up_at = time.monotonic() + _PATIENCE_S
        while self.opened < count or self.refused:
            if self.refused:
                raise ConnectionError(self.refused)
            if time.monotonic() > give_up_at:
                raise TimeoutError("the streams did not begin")
            await asyncio.sleep(0.002)


class _Client(asyncio.Protocol):
    def __init__(self, clients: Clients, request: bytes) -> None:
        self._clients = clients
        self._request = request
        self._begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        cast("asyncio.WriteTransport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            self._clients.opened += 1
            if not data.startswith(_OPENED):
                self._clients.refused = data.partition(b"\r")[0].decode("latin-1")
        at = data.find(_AT)
        while at >= 0:
            now = time.monotonic()
            end = min(place for place in (data.find(b",", at), data.find(b"}", at)) if place > 0)
            self._clients.delays.append(now - float(data[at + len(_AT) : end]))
            at = data.find(_AT, end)


async def _main(port: str, secret: str = "") -> None:
    clients = Clients(int(port), secret)
    print("{}", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        reply: dict[str, float] = {}
        match json.loads(line):
            case {"connect": count, "sessions": sessions, "prefix": prefix}:
                await clients.connect(count, sessions, prefix)
            case {"silent": count, "session": session}:
                clients.connect_silent(count, session)
            case {"heard": expected}:
                reply = await clients.heard(expected)
            case _:
                await clients.close()
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    import uvloop

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(_main(*sys.argv[1:]))
