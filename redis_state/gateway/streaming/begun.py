"""Answers of streams whose first chunk was read, so that an error until then has its own answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Any, Protocol, Self

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from redis_state.gateway.streaming.response import HEADERS, EventStream, Header


class ClosingChunks(Protocol):
    """Chunks that are to be closed."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def __anext__(self) -> Coroutine[Any, Any, bytes]: ...

    def aclose(self) -> Coroutine[Any, Any, None]:
        """Leave what is streamed."""
        ...


class BegunStream(AsyncIterator[bytes]):
    """Chunks whose first one was read. What ``stack`` has ends with them."""

    def __init__(self, first: bytes, rest: ClosingChunks, stack: AsyncExitStack) -> None:
        self._first = first
        self._rest = rest
        self._stack = stack
        self.is_empty: bool = not first

    @classmethod
    async def begin(cls, chunks: ClosingChunks, stack: AsyncExitStack) -> Self:
        """Read the first chunk, and take over what ``stack`` has. Errors: those of the chunks."""
        stack.push_async_callback(chunks.aclose)
        return cls(await anext(chunks, b""), chunks, stack.pop_all())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        first, self._first = self._first, b""
        return first or await anext(self._rest)

    async def aclose(self) -> None:
        """Leave what is streamed, and count the stream out."""
        await self._stack.aclose()


class Streamed(Response):
    """An answer that is written as its chunks come. HEAD has its headers alone."""

    raw_headers: list[Header]

    def __init__(self, chunks: ClosingChunks, headers: Iterable[Header] = HEADERS) -> None:
        super().__init__()
        self._chunks = chunks
        self._own = list(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if scope["method"] == "HEAD":
            await self._chunks.aclose()
            self.raw_headers = self._own
            await super().__call__(scope, receive, send)
            return
        await EventStream(self._chunks, headers=self._own)(scope, receive, send)
