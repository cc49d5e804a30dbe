"""A chat's stream as an answer, counted while it is open."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, ExitStack
from typing import Final

from starlette.responses import Response

from redis_state.gateway.answers import forbidden
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import ApiCall
from redis_state.gateway.streaming.begun import BegunStream, Streamed
from redis_state.gateway.streaming.response import HEADERS, Header

NOTHING: Final = 204


async def begin_chat(
    chunks: AsyncGenerator[bytes], counted: ExitStack, more: Iterable[Header] = ()
) -> Response:
    """Read the first chunk of a stream, and answer with it; with 204 if there is none.

    ``counted`` ends with the stream. Errors: those of the stream up to its first chunk.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(counted)
        begun = await BegunStream.begin(chunks, stack)
    if begun.is_empty:
        await begun.aclose()
        return Response(status_code=NOTHING, headers={"cache-control": "no-store"})
    return Streamed(begun, [*HEADERS, *more])


def counted_stream(call: ApiCall) -> ExitStack:
    """Count a stream of the caller, before anything is done for it. Errors: HttpProblem, 429."""
    stack = ExitStack()
    stack.enter_context(call.services.usage.stream(call.principal.subject))
    return stack


def check_reader(call: ApiCall, session_id: str) -> None:
    """Refuse a caller who may not read what the stream has. Errors: HttpProblem, 403."""
    if not call.principal.may(Right.READ, session_id):
        raise forbidden("the caller may not read the session")
