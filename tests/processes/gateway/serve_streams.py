"""Serve streams of sessions until killed: one process of a gateway. Say ``port <n>`` first."""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

import uvicorn

from redis_state import RedisStateStore
from redis_state.gateway.streaming.hub import Hub
from redis_state.gateway.streaming.response import EventStream, read_after


class Streams:
    """The session is the path; the hub lives as long as the server."""

    def __init__(self, url: str, namespace: str) -> None:
        self._options = {"url": url, "namespace": namespace}
        self._hub: Hub | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Respond, or begin and end."""
        if scope["type"] == "lifespan":
            await receive()
            async with RedisStateStore.from_url(**self._options) as store, Hub(store) as self._hub:
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
        elif self._hub is not None:
            chunks = self._hub.frames(scope["path"][1:], after=read_after(scope))
            await EventStream(chunks)(scope, receive, send)


def main(url: str, namespace: str, port: int) -> None:
    """Listen on the port, also after one that was killed."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(512)
    print("port", port, flush=True)  # noqa: T201
    # What fails while the server is away is the test's business: the client comes back.
    config = uvicorn.Config(Streams(url, namespace), log_level="critical")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
