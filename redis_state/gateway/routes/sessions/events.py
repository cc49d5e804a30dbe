"""A session's updates as server-sent events. The hub does the work: see `Hub.frames`."""

from __future__ import annotations

from functools import partial

from starlette.responses import Response

from redis_state.gateway.calls import ApiCall, Operation
from redis_state.gateway.requests.queries import EventsQuery
from redis_state.gateway.streaming.begun import BegunStream, Streamed
from redis_state.gateway.streaming.response import read_after


async def stream_events(call: ApiCall) -> Response:
    """Stream the updates of a session, or of one of its tasks until that is terminal. The header
    Last-Event-ID, or ``after``, is the cursor to read on after; ``$`` is the end, ``0`` the begin.
    """
    return Streamed(await begin_stream(call))


async def begin_stream(call: ApiCall) -> BegunStream:
    """Begin a stream, count it, and read its first chunk. Errors: what is wrong with the call."""
    query, services = call.query_as(EventsQuery), call.services
    visible = None if services.visible is None else partial(services.visible, call.principal)
    chunks = services.hub.frames(
        call.path["session"],
        after=read_after(call.request.scope),
        task_id=query.task,
        types=query.types,
        visible=visible,
        expires_at=call.principal.expires_at,
        has_right=call.has_same_caller,
    )
    counted = services.usage.stream(call.principal.subject)
    try:
        return BegunStream(await anext(chunks, b""), chunks, counted)
    except BaseException:
        counted.end()
        raise


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
