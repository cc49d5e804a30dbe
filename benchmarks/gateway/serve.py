"""One process of a gateway: ``hub``, ``console``, or ``sse``: sse-starlette, a watch a client."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar, cast

import uvicorn

from benchmarks.store.listeners import NAMESPACE
from redis_state import RedisStateStore
from redis_state.gateway import ApiKeys, create_gateway
from redis_state.gateway.auth.api_keys import make_api_key
from redis_state.gateway.streaming.hub import Hub
from redis_state.gateway.streaming.response import EventStream, read_after

_PAGE_BYTES = resource.getpagesize()


class HubServer:
    """Our streams: the session is the path."""

    said: ClassVar[dict[str, str]] = {}

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def facts(self) -> dict[str, int]:
        """Say what is kept for the clients."""
        return {"held": self._hub.held, "watches": self._hub.watches, "clients": self._hub.clients}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Respond."""
        chunks = self._hub.frames(scope["path"][1:], after=read_after(scope))
        await EventStream(chunks)(scope, receive, send)


class PeerServer:
    """What is written without a hub: a response of sse-starlette over a watch of its own."""

    said: ClassVar[dict[str, str]] = {}

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store

    def facts(self) -> dict[str, int]:
        """Say what is kept for the clients: nothing is known of it."""
        return {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Respond."""
        from sse_starlette import EventSourceResponse, ServerSentEvent  # noqa: PLC0415 - the peer

        session = scope["path"][1:]
        after = await self._store.update_cursor(session)

        async def events() -> AsyncGenerator[ServerSentEvent, None]:
            async with aclosing(self._store.watch_updates(session, after=after)) as watch:
                async for entry in watch:
                    update = entry.value
                    name = update.update_type.value
                    yield ServerSentEvent(update.model_dump_json(), event=name, id=entry.cursor)

        await EventSourceResponse(events())(scope, receive, send)


class ConsoleServer:
    """The whole gateway with its console."""

    def __init__(self, store: RedisStateStore) -> None:
        key, kept = make_api_key("bench", ["read:*"])
        self.said: dict[str, str] = {"key": key}
        self._gateway = create_gateway(store, auth=ApiKeys([kept]), console=True)

    def facts(self) -> dict[str, int]:
        """Say what is kept for the clients: it has no events."""
        return {}

    async def aclose(self) -> None:
        """End what is open."""
        self._gateway.end_streams()
        await self._gateway.aclose()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Respond."""
        await self._gateway(scope, receive, send)


def _used(facts: dict[str, int]) -> dict[str, float]:
    gc.collect()
    used = resource.getrusage(resource.RUSAGE_SELF)
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    tasks = len(asyncio.all_tasks())
    return {"rss": resident, "cpu": used.ru_utime + used.ru_stime, "tasks": tasks, **facts}


def _application(
    kind: str, store: RedisStateStore, hub: Hub
) -> HubServer | PeerServer | ConsoleServer:
    if kind == "console":
        return ConsoleServer(store)
    return HubServer(hub) if kind == "hub" else PeerServer(store)


async def _main(kind: str, url: str) -> None:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", 0))
        listening.listen(4096)
        async with RedisStateStore.from_url(url, namespace=NAMESPACE) as store, Hub(store) as hub:
            app = _application(kind, store, hub)
            config = uvicorn.Config(app, log_level="critical", lifespan="off")
            server = uvicorn.Server(config)
            serving = asyncio.create_task(cast("Any", server)._serve([listening]))  # noqa: SLF001 - our loop
            said = {"port": listening.getsockname()[1], **app.said}
            print(json.dumps(said), flush=True)
            while await asyncio.to_thread(sys.stdin.readline):
                print(json.dumps(_used(app.facts())), flush=True)
            hub.end_streams()
            if isinstance(app, ConsoleServer):
                await app.aclose()
            serving.cancel()


if __name__ == "__main__":
    import uvloop

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(_main(*sys.argv[1:]))
