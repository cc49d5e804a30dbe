"""Serve a gateway until killed: one of several processes. Say ``port <n>`` first."""

from __future__ import annotations

import asyncio
import json
import socket
import sys

import uvicorn

from redis_state import RedisStateStore
from redis_state.gateway import BrowserTokens, create_gateway


async def main(url: str, namespace: str, port: int, secret: str) -> None:
    """Listen on the port, also after one that was killed."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(512)
    async with RedisStateStore.from_url(url, namespace=namespace) as store:
        app = create_gateway(store, auth=BrowserTokens(secret))
        print("port", port, flush=True)  # noqa: T201
        # What fails while the server is away is the test's business: the client comes back.
        config = uvicorn.Config(app, log_level="critical")
        await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
