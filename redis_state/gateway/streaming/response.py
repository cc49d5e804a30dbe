"""A stream of events as an ASGI response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]

HEADERS: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    # No proxy may keep, compress or collect what is sent.
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)


class EventStream:
    """Send chunks of server-sent events until they end or the client disconnects.

    The first chunk is awaited before the response starts: an error until then is raised, for the
    application to answer. Each chunk waits until the server has taken the one before. ``chunks`` is
    closed in every case, if it can be.
    """

    def __init__(
        self, chunks: AsyncIterator[bytes], *, headers: Iterable[Header] = HEADERS
    ) -> None:
        self._chunks = chunks
        self._headers = list(headers)

    async def __call__(self, _scope: Message, receive: Receive, send: Send) -> None:
        """Respond."""
        listener: asyncio.Task[None] | None = None
        connected = asyncio.timeout(None)
        try:
            async with connected:
                first = await anext(self._chunks, b"")
                listener = asyncio.create_task(_listen(receive, connected))
                await self._send(first, send)
        except TimeoutError:
            if not connected.expired():
                raise
        finally:
            if listener is not None:
                listener.cancel()
            close = getattr(self._chunks, "aclose", None)
            if close is not None:
                await close()

    async def _send(self, first: bytes, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for chunk in self._chunks:
            try:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except OSError:  # some servers say so that the client is gone
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def read_after(scope: Message) -> str | None:
    """Return what a client reads on after: ``Last-Event-ID``, else ``after`` of the query.

    A browser that connects again sends the header beside the first request's query.
    """
    for name, value in scope["headers"]:
        if name == b"last-event-id" and value:
            return str(value.decode("latin-1"))
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    given = query.get("after")
    return given[-1] if given else None


async def _listen(receive: Receive, connected: asyncio.Timeout) -> None:
    """End the response when its client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    connected.reschedule(0.0)
