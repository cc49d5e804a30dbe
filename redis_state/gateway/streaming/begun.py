"""Answers of streams whose first chunk was read, so that an error until then has its own answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Any, Protocol, Self

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from redis_state.gateway.streaming.response import HEADERS, EventStream, Header


class Closing(Protocol):
    """What is to be closed."""

    def aclose(self) -> Coroutine[Any, Any, None]:
        """Close it."""
        ...


class ClosingChunks(Closing, Protocol):
    """Chunks that are to be closed."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def __anext__(self) -> Coroutine[Any, Any, bytes]: ...


class BegunStream(AsyncIterator[bytes]):
    """Chunks whose first one was read. What they hold is closed behind them."""

    __slots__ = ("_first", "_held", "_rest", "is_empty")

    def __init__(self, first: bytes, rest: ClosingChunks, held: Closing) -> None:
        self._first = first
        self._rest = rest
        self._held = held
        self.is_empty: bool = not first

    @classmethod
    async def begin(cls, chunks: ClosingChunks, stack: AsyncExitStack) -> Self:
        """Read the first chunk, and take over what ``stack`` has. Errors: those of the chunks."""
        stack.push_async_callback(chunks.aclose)
        return cls(await anext(chunks, b""), chunks, stack.pop_all())

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, bytes]:
        # Not a coroutine itself: each client that waits would hold one more.
        return self._taken() if self._first else self._rest.__anext__()

    async def aclose(self) -> None:
        """Leave what is streamed, and count the stream out."""
        try:
            await self._rest.aclose()
        finally:
            await self._held.aclose()

    async def _taken(self) -> bytes:
        first, self._first = self._first, b""
        return first


class Streamed(Response):
    """An answer that is written as its chunks come. HEAD has its headers alone."""

    raw_headers: list[Header]

    def __init__(self, chunks: ClosingChunks, headers: Iterable[Header] = HEADERS) -> None:
        super().__init__()
        self._chunks = chunks
        self._own = tuple(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if scope["method"] == "HEAD":
            await self._chunks.aclose()
            self.raw_headers = list(self._own)
            await super().__call__(scope, receive, send)
            return
        await EventStream(self._chunks, headers=self._own)(scope, receive, send)
