"""A chat's stream as an answer, counted while it is open."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import ExitStack
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from redis_state.gateway.answers import forbidden
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import ApiCall
from redis_state.gateway.streaming.response import HEADERS, EventStream, Header

NOTHING: Final = 204


class ChatAnswer(Response):
    """An answer whose first chunk was read, so that an error has had its own answer."""

    raw_headers: list[Header]

    def __init__(
        self,
        first: bytes,
        rest: AsyncGenerator[bytes],
        counted: ExitStack,
        more: Iterable[Header] = (),
    ) -> None:
        super().__init__()
        self._first = first
        self._rest = rest
        self._counted = counted
        self._own = [*HEADERS, *more]

    def __aiter__(self) -> ChatAnswer:
        return self

    async def __anext__(self) -> bytes:
        first, self._first = self._first, b""
        return first or await anext(self._rest)

    async def aclose(self) -> None:
        """Leave the session, and count the stream out."""
        self._counted.close()
        await self._rest.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if scope["method"] == "HEAD":
            await self.aclose()
            self.raw_headers = self._own
            await super().__call__(scope, receive, send)
            return
        await EventStream(self, headers=self._own)(scope, receive, send)


async def begin_chat(
    chunks: AsyncGenerator[bytes], counted: ExitStack, more: Iterable[Header] = ()
) -> Response:
    """Read the first chunk of a stream, and answer with it; with 204 if there is none.

    ``counted`` ends with the stream. Errors: those of the stream up to its first chunk.
    """
    with counted as stack:
        try:
            first = await anext(chunks, b"")
        except BaseException:
            await chunks.aclose()
            raise
        if not first:
            return Response(status_code=NOTHING, headers={"cache-control": "no-store"})
        return ChatAnswer(first, chunks, stack.pop_all(), more)


def counted_stream(call: ApiCall) -> ExitStack:
    """Count a stream of the caller, before anything is done for it. Errors: HttpProblem, 429."""
    stack = ExitStack()
    stack.enter_context(call.services.usage.stream(call.principal.subject))
    return stack


def check_reader(call: ApiCall, session_id: str) -> None:
    """Refuse a caller who may not read what the stream has. Errors: HttpProblem, 403."""
    if not call.principal.may(Right.READ, session_id):
        raise forbidden("the caller may not read the session")
