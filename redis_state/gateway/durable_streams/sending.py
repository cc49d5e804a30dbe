"""Answers that wait: the headers of events, and long polls whose client may leave."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar, cast

from starlette.requests import HTTPConnection, Request

from redis_state.gateway.answers import HttpProblem
from redis_state.gateway.streaming.response import Header

T = TypeVar("T")

HEADERS: Final[tuple[Header, ...]] = (
    # Without a charset: clients of the protocol compare it.
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
ENCODED: Final[Header] = (b"stream-sse-data-encoding", b"base64")


async def while_connected(request: HTTPConnection, doing: Coroutine[Any, Any, T]) -> T:
    """Do something for a client, as long as it is connected. Errors: HttpProblem if it leaves."""
    task = asyncio.ensure_future(doing)
    left = asyncio.ensure_future(_has_left(cast("Request", request)))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            # Nobody reads this.
            raise HttpProblem(400, "disconnected", "the client has left")
        return task.result()
    finally:
        for each in (task, left):
            each.cancel()
        await asyncio.wait({task, left})


async def _has_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
