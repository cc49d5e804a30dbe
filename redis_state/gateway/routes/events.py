"""A session's updates as server-sent events. The hub does the work: see `Hub.frames`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from functools import partial
from typing import Protocol, Self

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from redis_state.gateway.calls import ApiCall, Operation
from redis_state.gateway.requests.bodies import EventsQuery
from redis_state.gateway.streaming.client_stream import ClientStream
from redis_state.gateway.streaming.response import EventStream, read_after


async def stream_events(call: ApiCall) -> Response:
    """Stream the updates of a session, or of one of its tasks until that is terminal. The header
    Last-Event-ID, or ``after``, is the cursor to read on after; ``$`` is the end, ``0`` the begin.
    """
    return Streamed(await begin_stream(call))


async def begin_stream(call: ApiCall) -> BegunStream:
    """Begin a stream, count it, and read its first chunk. Errors: what is wrong with the call."""
    query, services = call.asked(EventsQuery), call.services
    visible = None if services.visible is None else partial(services.visible, call.principal)
    chunks = services.hub.frames(
        call.path["session"],
        after=read_after(call.request.scope),
        task_id=query.task,
        types=query.types,
        visible=visible,
        expires_at=call.principal.expires_at,
    )
    with ExitStack() as stack:
        stack.enter_context(services.usage.stream(call.principal.subject))
        # A wrong request is refused before the stream begins.
        first = await anext(chunks, b"")
        return BegunStream(first, chunks, stack.pop_all())


class ClosingChunks(Protocol):
    """Chunks that are to be closed."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def __anext__(self) -> bytes: ...

    async def aclose(self) -> None:
        """Leave the session, and count the stream out."""
        ...


class BegunStream(AsyncIterator[bytes]):
    """Chunks whose first one was read."""

    def __init__(self, first: bytes, rest: ClientStream, stack: ExitStack) -> None:
        self._first = first
        self._rest = rest
        self._stack = stack

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        first, self._first = self._first, b""
        return first or await anext(self._rest)

    async def aclose(self) -> None:
        """Leave the session, and count the stream out."""
        self._stack.close()
        await self._rest.aclose()


class Streamed(Response):
    """An answer that is written as it comes."""

    def __init__(self, chunks: ClosingChunks) -> None:
        super().__init__()
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if scope["method"] == "HEAD":
            await self._chunks.aclose()
            self.headers["content-type"] = "text/event-stream; charset=utf-8"
            await super().__call__(scope, receive, send)
            return
        await EventStream(self._chunks)(scope, receive, send)


OPERATIONS = (
    Operation(
        "GET",
        "/v1/sessions/{session}/events",
        stream_events,
        "Stream the updates of a session",
        query=EventsQuery,
        answers=(400, 404),
        media_type="text/event-stream",
    ),
)
