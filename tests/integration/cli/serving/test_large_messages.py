"""Messages of a WebSocket that are too large, as the command serves it: a close with a code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

import websockets
from websockets.asyncio.client import connect

from redis_state import RedisStateStore
from redis_state.cli.servers.gateway import make_server
from redis_state.gateway import GatewayLimits
from redis_state.testing import eventually
from tests.support.http.gateway import Served, gateway_of, tokens

PATIENCE_S = 30.0
MiB = 1 << 20


@asynccontextmanager
async def served(
    store: RedisStateStore, limits: GatewayLimits
) -> AsyncGenerator[tuple[Served, str]]:
    """Serve a gateway as the command does; give it, and the URL of a socket."""
    async with gateway_of(store, handlers=["ask"], limits=limits) as opened:
        server = make_server(opened.app, port=0, log_level="warning", lifespan="off")
        serving = asyncio.create_task(server._serve())
        try:
            await eventually(lambda: server.started, "the server to start")
            port = server.servers[0].sockets[0].getsockname()[1]
            yield opened, f"ws://127.0.0.1:{port}/v1/sessions/s/socket?after=0"
        finally:
            server.should_exit = True
            await serving


async def code_of(socket: Any, message: str | Iterable[str]) -> int | None:
    """Send a message; return the code with which the server closes the socket."""
    try:
        await socket.send(message)
        while True:
            await socket.recv()
    except websockets.ConnectionClosed as closed:
        return None if closed.rcvd is None else closed.rcvd.code


def headers() -> dict[str, str]:
    return {"authorization": f"Bearer {tokens.mint('ann', ['read:*', 'steer:*'])}"}


@pytest.mark.parametrize("size", [100 << 10, MiB, 17 * MiB, 40 * MiB])
@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_a_message_that_is_too_large_closes_with_1009_however_large_it_is(
    store: RedisStateStore, size: int, compression: str | None
) -> None:
    async with (
        served(store, GatewayLimits()) as (opened, url),
        asyncio.timeout(PATIENCE_S),
        connect(url, additional_headers=headers(), compression=compression) as socket,
    ):
        assert await code_of(socket, "x" * size) == 1009
        # It concerns nobody else.
        async with connect(url, additional_headers=headers()) as other:
            await other.send(json.dumps({"id": "1", "type": "nothing"}))
            while "event: ack" not in str(await other.recv()):
                pass
        await eventually(lambda: opened.app._usage.streams == 0, "the streams are counted out")


async def test_many_small_parts_of_one_message_are_too_large_together(
    store: RedisStateStore,
) -> None:
    async with (
        served(store, GatewayLimits()) as (_, url),
        asyncio.timeout(PATIENCE_S),
        connect(url, additional_headers=headers()) as socket,
    ):
        parts = ("x" * 1_000 for _ in range(20_000))
        assert await code_of(socket, parts) == 1009


async def test_the_limit_of_a_message_is_that_of_a_body(store: RedisStateStore) -> None:
    limits = GatewayLimits(max_body_bytes=20 * MiB)
    async with (
        served(store, limits) as (_, url),
        asyncio.timeout(PATIENCE_S),
        connect(url, additional_headers=headers(), compression=None) as socket,
    ):
        message = {"id": "1", "type": "nothing", "body": "x" * (18 * MiB)}
        await socket.send(json.dumps(message))
        while "event: ack" not in (found := str(await socket.recv())):
            pass
        assert "invalid_field" in found
