"""Live parts of pages: a session's events, rendered.

A part is sent as a message of server-sent events under the cursor of its newest row. A browser that
connects again sends the cursor, and misses nothing.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

from starlette.responses import Response

from redis_state.errors import RedisStateError
from redis_state.gateway.answers import problem_of
from redis_state.gateway.calls import ApiCall, authorise, validated
from redis_state.gateway.console.operations import STREAM_EVENTS
from redis_state.gateway.console.pages import PageCall
from redis_state.gateway.requests.queries import EventsQuery
from redis_state.gateway.routes.sessions.events import begin_stream
from redis_state.gateway.streaming import events
from redis_state.gateway.streaming.begun import BegunStream, Streamed
from redis_state.gateway.streaming.reading import LiveEvent, read_events

_LINES = re.compile(r"\r\n|\r|\n")
_PASSED = frozenset({"end", "expired"})


Write = Callable[[list[LiveEvent]], Awaitable[str]]


async def stream_part(call: PageCall, query: dict[str, Any], write: Write) -> Response:
    """Stream what ``write`` makes of a session's events, as who looks."""
    path = {"session": call.param("session")}
    authorise(STREAM_EVENTS, call.principal, path)
    services = await call.backstage.services()
    try:
        asked = validated(EventsQuery, query)
        recognise = call.backstage.logins.authenticate
        chunks = await begin_stream(
            ApiCall(call.request, services, call.principal, path, asked, recognise=recognise)
        )
    except RedisStateError as error:
        raise problem_of(error) from error
    return Streamed(_Rendered(chunks, write))


class _Rendered(AsyncIterator[bytes]):
    def __init__(self, chunks: BegunStream, write: Write) -> None:
        self._chunks = chunks
        self._write = write

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self._chunks)
        found = read_events(chunk)
        if not found:
            # A place without a row, or when to connect again.
            return chunk
        passed = b"".join(events.event(each.name, b"{}") for each in found if each.name in _PASSED)
        rows = [each for each in found if each.cursor is not None or each.name in ("resync", "end")]
        html = await self._write(rows) if rows else ""
        if not html:
            return passed or events.HEARTBEAT
        cursors = [each.cursor for each in rows if each.cursor is not None]
        return write_message(html, cursors[-1] if cursors else None) + passed

    async def aclose(self) -> None:
        await self._chunks.aclose()


def write_message(html: str, cursor: str | None) -> bytes:
    """Write HTML as a message. No value in it can end the message or begin another field."""
    head = "" if cursor is None else f"id: {cursor}\n"
    lines = "".join(f"data: {line}\n" for line in _LINES.split(html))
    return f"{head}{lines}\n".encode("utf-8", "replace")
