"""A stream of events as an ASGI response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs

from redis_state.gateway.failures import log_failure
from redis_state.gateway.streaming.events import come_back_later
from redis_state.timeouts import timeout

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]

HEADERS: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    # No proxy may keep, compress or collect what is sent.
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)
_OUTSIDE: Final = "redis_state.outside"


class EventStream:
    """Send chunks of server-sent events until they end or the client disconnects.

    The first chunk is awaited before the response starts: an error until then is raised, for the
    application to answer. An error behind it is logged without its text, and ends the response with
    a ``retry``. Each chunk waits until the server has taken the one before. ``chunks`` is closed in
    every case, if it can be. Below `OutsideStreams`, this only starts the response.
    """

    __slots__ = ("_chunks", "_first", "_headers")

    def __init__(
        self, chunks: AsyncIterator[bytes], *, headers: Iterable[Header] = HEADERS
    ) -> None:
        self._chunks = chunks
        self._first = b""
        self._headers = headers

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Respond."""
        try:
            self._first = await anext(self._chunks, b"")
            # A layer may add to the headers.
            head = {"type": "http.response.start", "status": 200, "headers": list(self._headers)}
            await send(head)
        except BaseException:
            await self.aclose()
            raise
        outside: list[EventStream] | None = scope.get(_OUTSIDE)
        if outside is None:
            await self.send_body(receive, send)
        else:
            outside.append(self)

    async def send_body(self, receive: Receive, send: Send) -> None:
        """Send what follows the head."""
        listener: asyncio.Task[None] | None = None
        connected = timeout(None)
        try:
            async with connected:
                listener = asyncio.create_task(_listen(receive, connected))
                first, self._first = self._first, b""
                await send(_body(first))
                del first
                while True:
                    try:
                        chunk = await anext(self._chunks)
                    except StopAsyncIteration:
                        break
                    except Exception as error:  # noqa: BLE001 - the server would log its text
                        log_failure("an open stream", error)
                        with suppress(OSError):
                            await send(_body(come_back_later()))
                        break
                    try:
                        await send(_body(chunk))
                    except OSError:  # some servers say so that the client is gone
                        return
                    # Who waits for the next one holds none.
                    del chunk
                await send(_body(b"", more=False))
        except TimeoutError:
            if not connected.expired():
                raise
        finally:
            if listener is not None:
                listener.cancel()
            await self.aclose()

    async def aclose(self) -> None:
        """Close the chunks."""
        close = getattr(self._chunks, "aclose", None)
        if close is not None:
            await close()


class OutsideStreams:
    """A layer that sends what streams have behind their heads, once the layers below returned.

    A stream may last for hours. What the layers and the request's checks hold meanwhile would be
    kept for each client: more than the stream itself. The heads go through the layers below, which
    may change them.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun: list[EventStream] = []
        scope[_OUTSIDE] = begun
        try:
            await self._app(scope, receive, send)
        except BaseException:
            for stream in begun:
                await stream.aclose()
            raise
        if begun:
            await begun.pop().send_body(receive, send)


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


def _body(chunk: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": more}


async def _listen(receive: Receive, connected: asyncio.Timeout) -> None:
    """End the response when its client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    connected.reschedule(0.0)
