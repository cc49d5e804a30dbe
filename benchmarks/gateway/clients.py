"""Clients of a gateway in a process of their own: plain sockets, which note what came late."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import sys
import time
from functools import partial
from typing import cast

_AT = b'"at":'
_TOGETHER = 50
_PATIENCE_S = 30.0


class Clients:
    """Open sockets, and the delays of what they got."""

    def __init__(self, port: int) -> None:
        self.delays: list[float] = []
        self.opened = 0
        self._port = port
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
                        partial(_Client, self, f"{prefix}{n % sessions}"),
                        "127.0.0.1",
                        self._port,
                    )
                    for n in some
                )
            )
            self._open += [transport for transport, _ in made]
            await self._until_opened(first + some.stop)

    def connect_silent(self, count: int, session: str) -> None:
        """Open streams that are never read, with a small window."""
        for _ in range(count):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", self._port))
            sock.sendall(f"GET /{session} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
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

    async def _until_opened(self, count: int) -> None:
        give_up_at = time.monotonic() + _PATIENCE_S
        while self.opened < count:
            if time.monotonic() > give_up_at:
                raise TimeoutError("the streams did not begin")
            await asyncio.sleep(0.002)


class _Client(asyncio.Protocol):
    def __init__(self, clients: Clients, session: str) -> None:
        self._clients = clients
        self._session = session
        self._begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        request = f"GET /{self._session}?after=$ HTTP/1.1\r\nHost: x\r\n\r\n"
        # uvloop's transports are no subclass of asyncio's.
        cast("asyncio.WriteTransport", transport).write(request.encode())

    def data_received(self, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            self._clients.opened += 1
        at = data.find(_AT)
        while at >= 0:
            now = time.monotonic()
            end = min(place for place in (data.find(b",", at), data.find(b"}", at)) if place > 0)
            self._clients.delays.append(now - float(data[at + len(_AT) : end]))
            at = data.find(_AT, end)


async def _main(port: str) -> None:
    clients = Clients(int(port))
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
