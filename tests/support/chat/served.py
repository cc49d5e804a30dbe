"""A gateway for chats on a port of this machine, as a client that may do all calls it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from redis_state import RedisStateStore
from redis_state.gateway import create_gateway
from redis_state.worker import TaskClient
from tests.support.http.asgi_servers import PLAIN, serving_asgi
from tests.support.http.gateway import tokens
from tests.support.processes.pools import agent, client_of, queue_of, serving

SCOPES = ("read:*", "submit:*", "resolve:*", "steer:*")


@asynccontextmanager
async def over_http(
    store: RedisStateStore, queue: str | None = None
) -> AsyncGenerator[httpx.AsyncClient]:
    """Serve the chats of a store; submit to its own queue, or to another one."""
    app = create_gateway(store, auth=tokens, queue=queue or queue_of(store.settings))
    headers = {"authorization": f"Bearer {tokens.mint('ann', SCOPES)}"}
    async with (
        serving_asgi(app, stop=app.end_streams) as port,
        httpx.AsyncClient(
            verify=PLAIN, base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60
        ) as http,
    ):
        yield http
    await app.aclose()


@asynccontextmanager
async def served(
    store: RedisStateStore, handlers: dict[str, Any]
) -> AsyncGenerator[tuple[TaskClient, httpx.AsyncClient]]:
    """Serve the chats of a store, and run their tasks."""
    async with (
        serving(agent(store.settings, handlers)),
        client_of(store) as tasks,
        over_http(store) as http,
    ):
        yield tasks, http
