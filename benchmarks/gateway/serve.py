"""One process of a gateway: ``gateway``, ``hub``, or ``sse``: sse-starlette, a watch a client."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import secrets
import socket
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import uvicorn

from benchmarks.store.listeners import NAMESPACE
from redis_state import RedisStateStore
from redis_state.gateway import AnyOf, ApiKeys, BrowserTokens, create_gateway, make_api_key
from redis_state.gateway.streaming.hub import Hub
from redis_state.gateway.streaming.response import EventStream, read_after

_PAGE_BYTES = resource.getpagesize()
# As far as a distant client takes it. On one machine the system would take a megabyte for each.
_SEND_BUFFER = 1 << 16


class Served:
    """An application, what its clients have to know, and the hub behind it."""

    def __init__(self, app: Any, hub: Hub | None = None, **said: str) -> None:
        self.app = app
        self.said = said
        self._hub = hub
        self._asking_s = 0.0

    def used(self) -> dict[str, float]:
        """Say what the process has used. The CPU is without that of asking."""
        began = time.process_time()
        gc.collect()
        statm = Path("/proc/self/statm").read_text(encoding="ascii").split()
        tasks = len(asyncio.all_tasks())
        now = time.process_time()
        self._asking_s += now - began
        cpu = now - self._asking_s
        return {"rss": int(statm[1]) * _PAGE_BYTES, "cpu": cpu, "tasks": tasks, **self._facts()}

    def _facts(self) -> dict[str, int]:
        hub = self._hub
        if hub is None:  # nothing is known of the peer
            return {}
        return {"held": hub.held, "watches": hub.watches, "clients": hub.clients}


@asynccontextmanager
async def _gateway(store: RedisStateStore) -> AsyncGenerator[Served]:
    """Serve the whole gateway: its routes, rights and limits, and the console."""
    secret = secrets.token_urlsafe(32)
    key, kept = make_api_key("bench", ["read:*"])
    app = create_gateway(store, auth=AnyOf(ApiKeys([kept]), BrowserTokens(secret)), console=True)
    services = await app.services()
    try:
        yield Served(app, services.hub, key=key, secret=secret)
    finally:
        app.end_streams()
        await app.aclose()


@asynccontextmanager
async def _hub(store: RedisStateStore) -> AsyncGenerator[Served]:
    """Serve a hub's streams alone, without routes and rights: the session is the path."""
    async with Hub(store) as hub:

        async def respond(scope: Any, receive: Any, send: Any) -> None:
            chunks = hub.frames(scope["path"][1:], after=read_after(scope))
            await EventStream(chunks)(scope, receive, send)

        yield Served(respond, hub)


@asynccontextmanager
async def _sse(store: RedisStateStore) -> AsyncGenerator[Served]:
    """Serve what is written without a hub: sse-starlette over a watch for each client."""
    from sse_starlette import EventSourceResponse, ServerSentEvent  # noqa: PLC0415 - the peer

    async def respond(scope: Any, receive: Any, send: Any) -> None:
        session = scope["path"][1:]
        after = await store.update_cursor(session)

        async def events() -> AsyncGenerator[ServerSentEvent, None]:
            async with aclosing(store.watch_updates(session, after=after)) as watch:
                async for entry in watch:
                    update = entry.value
                    name = update.update_type.value
                    yield ServerSentEvent(update.model_dump_json(), event=name, id=entry.cursor)

        await EventSourceResponse(events())(scope, receive, send)

    yield Served(respond)


def _served(kind: str, store: RedisStateStore) -> AbstractAsyncContextManager[Served]:
    return {"gateway": _gateway, "hub": _hub, "sse": _sse}[kind](store)


async def _main(kind: str, url: str) -> None:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        listening.bind(("127.0.0.1", 0))
        listening.listen(4096)
        async with (
            RedisStateStore.from_url(url, namespace=NAMESPACE) as store,
            _served(kind, store) as served,
        ):
            config = uvicorn.Config(served.app, log_level="critical", lifespan="off")
            server = uvicorn.Server(config)
            serving = asyncio.create_task(cast("Any", server)._serve([listening]))  # noqa: SLF001 - our loop
            said = {"port": listening.getsockname()[1], **served.said}
            print(json.dumps(said), flush=True)
            while await asyncio.to_thread(sys.stdin.readline):
                print(json.dumps(served.used()), flush=True)
            serving.cancel()


if __name__ == "__main__":
    import uvloop

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(_main(*sys.argv[1:]))
