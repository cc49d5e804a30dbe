"""MCP servers of the tests, over HTTP and with users, and the SDK's client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import uvicorn
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context, MCPServer
from pydantic import AnyHttpUrl

from redis_state import RedisStateStore
from redis_state.http_client.requests.caller import tls_for
from redis_state.integrations.mcp import (
    RedisEventStore,
    RedisSubscriptionBus,
    RedisTasks,
    SteadyTransport,
)
from redis_state.testing import eventually
from redis_state.worker import TaskClient
from tests.support.mcp.tools import TOOLS
from tests.support.processes.pools import queue_of

_URL = AnyHttpUrl("http://127.0.0.1:1/")


class Users:
    """Takes the name of a user, with any ending behind a slash, for a token."""

    async def verify_token(self, token: str) -> AccessToken | None:
        """Verify a token."""
        name = token.partition("/")[0]
        return AccessToken(token=token, client_id="app", subject=name, scopes=[])


@asynccontextmanager
async def serving_mcp(
    store: RedisStateStore,
    *,
    port: int = 0,
    users: bool = False,
    lease_s: float = 15.0,
    idle_s: float | None = None,
    **options: Any,
) -> AsyncGenerator[int]:
    """Serve the tools on a port."""
    async with (
        TaskClient(store, queue=queue_of(store.settings)) as client,
        RedisSubscriptionBus(store) as bus,
        RedisEventStore(store, lease_s=lease_s, **options) as events,
    ):
        auth: dict[str, Any] = {}
        if users:
            settings = AuthSettings(
                issuer_url=_URL, resource_server_url=_URL, validate_token_resource=False
            )
            auth = {"auth": settings, "token_verifier": Users()}
        server = MCPServer(
            "tests",
            extensions=[RedisTasks(client, TOOLS, poll_s=0.03)],
            subscriptions=bus,
            log_level="CRITICAL",
            **auth,
        )
        _add_local_tools(server)
        app = server.streamable_http_app(event_store=events, retry_interval=50)
        manager = server.session_manager
        manager.session_idle_timeout = idle_s or manager.session_idle_timeout
        events.attach(manager)
        async with serving_app(app, port) as bound:
            yield bound


@asynccontextmanager
async def serving_app(app: Any, port: int = 0) -> AsyncGenerator[int]:
    """Serve an application on a port."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
        serving = uvicorn.Server(config)
        task = asyncio.create_task(serving._serve([listening]))
        try:
            await eventually(lambda: serving.started, "the MCP server to start")
            yield listening.getsockname()[1]
        finally:
            serving.should_exit = True
            await task


def _add_local_tools(server: MCPServer) -> None:
    @server.tool()
    async def count(ctx: Context, upto: int, pause_s: float = 0.0) -> str:
        """Report each number to the client."""
        for number in range(upto):
            await ctx.report_progress(number, upto, f"number {number} \u00e9\n")
            await asyncio.sleep(pause_s)
        return "counted"

    @server.tool()
    async def change(ctx: Context, uri: str) -> str:
        """Tell all clients that a resource has changed."""
        await ctx.notify_resource_updated(uri)
        return "told"


@asynccontextmanager
async def mcp_client(
    port: int, *, user: str | None = None, **options: Any
) -> AsyncGenerator[Client]:
    """Connect the SDK's client."""
    headers = {} if user is None else {"Authorization": f"Bearer {user}"}
    url = f"http://127.0.0.1:{port}/mcp"
    steady = SteadyTransport(httpx2.AsyncHTTPTransport(verify=tls_for(url)))
    async with httpx2.AsyncClient(headers=headers, timeout=30, transport=steady) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, **options) as client:
            yield client
