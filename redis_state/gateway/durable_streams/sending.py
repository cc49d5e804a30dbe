"""Answers that wait: events as they come, and long polls whose client may leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final, Self, TypeVar, cast

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from redis_state.gateway.answers import HttpProblem
from redis_state.gateway.streaming.response import EventStream, Header

T = TypeVar("T")

_HEADERS: Final[tuple[Header, ...]] = (
    # Without a charset: clients of the protocol compare it.
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_ENCODED: Final[Header] = (b"stream-sse-data-encoding", b"base64")


class StreamEvents(Response, AsyncIterator[bytes]):
    """Events of a stream whose first one was read."""

    def __init__(
        self, first: bytes, rest: AsyncGenerator[bytes], stack: AsyncExitStack, *, encoded: bool
    ) -> None:
        super().__init__()
        self._first = first
        self._rest = rest
        self._stack = stack
        self._own = (*_HEADERS, _ENCODED) if encoded else _HEADERS

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        first, self._first = self._first, b""
        return first or await anext(self._rest)

    async def aclose(self) -> None:
        """Leave the stream, and count it out."""
        await self._stack.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        await EventStream(self, headers=self._own)(scope, receive, send)


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
