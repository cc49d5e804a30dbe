"""The operations of the Durable Streams protocol: create, append, close, read, HEAD and delete.

Who reads needs ``read`` over the stream, who changes it ``write``. A caller without ``read`` gets
the answer for a stream that does not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import wraps
from time import monotonic
from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import Response

from redis_state.errors import ProducerRefused, RedisStateError
from redis_state.gateway.answers import HttpProblem, forbidden, not_found
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.durable_streams.answers import (
    about,
    next_cursor,
    nothing_answer,
    page_answer,
    producer_problem,
    stream_answer,
    stream_problem,
)
from redis_state.gateway.durable_streams.counting import counted, uncounted
from redis_state.gateway.durable_streams.feeds import SharedPage, is_binary
from redis_state.gateway.durable_streams.frames import stream_frames
from redis_state.gateway.durable_streams.requests import (
    EVENTS,
    LONG_POLL,
    RESERVED,
    ReadQuery,
    batch_of,
    is_closing,
    lifetime_of,
    origin_of,
    read_query,
    stream_path,
    text_of,
)
from redis_state.gateway.durable_streams.sending import ENCODED, HEADERS, while_connected
from redis_state.gateway.requests.limits import drop_body, read_body
from redis_state.gateway.requests.paths import read_parts
from redis_state.gateway.streaming.begun import BegunStream, Streamed
from redis_state.models.streams import END, StreamPage
from redis_state.stores.streams.streams import StreamStore

# Of a body that is too large, so many times what is allowed is read and dropped.
_TOO_LARGE, _DRAINED = 413, 32
_PATH = "/v1/stream/{path}"
StreamEndpoint = Callable[[ApiCall, str], Awaitable[Response]]


def _over(right: Right) -> Callable[[StreamEndpoint], Callable[[ApiCall], Awaitable[Response]]]:
    """Make an operation on a stream that needs a right over it."""

    def made(endpoint: StreamEndpoint) -> Callable[[ApiCall], Awaitable[Response]]:
        @wraps(endpoint)
        async def answered(call: ApiCall) -> Response:
            try:
                path = stream_path(list(read_parts(call.request.scope) or ()))
                if path is None:
                    raise not_found()
                _check(call, right, path)
                return await endpoint(call, path)
            except ProducerRefused as error:
                batch = batch_of(call.request.headers)
                number = 0 if batch is None else batch.number
                raise producer_problem(error, number) from None
            except RedisStateError as error:
                raise stream_problem(error) from error

        return answered

    return made


def _check(call: ApiCall, right: Right, path: str) -> None:
    """Refuse a caller without the right. Errors: HttpProblem, 403, 404 or 501."""
    if not call.principal.may_stream(right, path):
        raise not_found() if right is Right.READ else forbidden()
    if path.split("/", maxsplit=1)[0] == RESERVED:
        raise HttpProblem(501, "not_implemented", "subscriptions are not served here")


@_over(Right.WRITE)
async def create_stream(call: ApiCall, path: str) -> Response:
    """Create a stream, or answer as if for one that was created alike."""
    headers = call.request.headers
    origin = origin_of(headers, call.request.scope.get("root_path", ""))
    if origin is not None and not call.principal.may_stream(Right.READ, origin.path):
        raise not_found()
    data, lifetime = await _body(call), lifetime_of(headers)
    async with counted(call, path) as made:
        stream, is_new = await _streams(call).create(
            path,
            content_type=headers.get("content-type"),
            data=data,
            lifetime=lifetime,
            closed=is_closing(headers),
            origin=origin,
            creator=call.principal.subject,
        )
        made.is_new = is_new
    known = about(stream)
    if is_new:
        known["location"] = _location(call.request)
    return stream_answer(201 if is_new else 200, headers=known)


@_over(Right.WRITE)
async def append_stream(call: ApiCall, path: str) -> Response:
    """Append the body, close the stream, or both in one step."""
    headers = call.request.headers
    body, batch, closing = await _body(call), batch_of(headers), is_closing(headers)
    kind = headers.get("content-type")
    if not body and not closing:
        raise HttpProblem(400, "empty_body", "there is nothing to append")
    if body and not kind:
        raise HttpProblem(400, "content_type_needed", "the header Content-Type is needed")
    sequence = headers.get("stream-seq")
    done = await _streams(call).append(
        path,
        body,
        content_type=kind,
        batch=batch,
        sequence=None if sequence is None else text_of(sequence),
        close=closing,
    )
    given = {
        "stream-next-offset": done.offset,
        "stream-closed": "true" if done.closed else None,
        "producer-epoch": None if batch is None else str(batch.epoch),
        "producer-seq": None if done.number is None else str(done.number),
    }
    # The protocol has 200 for a batch that is new.
    is_batch = batch is not None and bool(body) and not done.repeated
    return stream_answer(200 if is_batch else 204, headers=given)


@_over(Right.READ)
async def read_stream(call: ApiCall, path: str) -> Response:
    """Read rows behind an offset: what is there, by a long poll, or as server-sent events."""
    query = read_query(call.request.query_params)
    if query.live == LONG_POLL:
        return await _long_poll(call, path, query)
    if query.live == EVENTS:
        return await _events(call, path, query)
    page = await _streams(call).read(path, offset=query.offset)
    return page_answer(page, call.request.headers, tagged=query.offset != END)


@_over(Right.READ)
async def look_stream(call: ApiCall, path: str) -> Response:
    """Answer what is known of a stream. Its lifetime does not begin again."""
    return stream_answer(200, headers=about(await _streams(call).look(path)))


@_over(Right.WRITE)
async def delete_stream(call: ApiCall, path: str) -> Response:
    """Delete a stream. Forks of it stay."""
    async with uncounted(call, path):
        await _streams(call).delete(path)
    return stream_answer(204, headers={})


async def _long_poll(call: ApiCall, path: str, query: ReadQuery) -> Response:
    usage = call.services.usage
    with usage.stream(call.principal.subject):
        waiting = _wait_for_rows(call, path, query.offset, usage.limits.long_poll_s)
        page = await while_connected(call.request, waiting)
    cursor = next_cursor(query.cursor)
    if not page.rows:
        return nothing_answer(page, cursor)
    return page_answer(page, call.request.headers, tagged=query.offset != END, cursor=cursor)


async def _wait_for_rows(call: ApiCall, path: str, offset: str, within_s: float) -> StreamPage:
    feeds, until = call.services.feeds, monotonic() + within_s
    async with feeds.join(path) as feed:
        while True:
            seen = feed.version
            shared: SharedPage = await feed.read(offset)
            page = shared.page
            if page.rows or page.closed or feeds.closing:
                return page
            offset = page.offset
            heard = await feed.changed(seen, min(shared.wait_s, until - monotonic()))
            if not heard and monotonic() >= until:
                return page


async def _events(call: ApiCall, path: str, query: ReadQuery) -> Response:
    services, principal = call.services, call.principal
    async with AsyncExitStack() as stack:
        stack.enter_context(services.usage.stream(principal.subject))
        feed = await stack.enter_async_context(services.feeds.join(path))
        # A wrong request is refused before the events begin.
        seen = feed.version
        shared = await feed.read(query.offset)
        encoded = is_binary(shared.page.stream)
        frames = stream_frames(
            services.feeds,
            feed,
            shared,
            seen,
            cursor=query.cursor,
            events_s=services.usage.limits.events_s,
            expires_at=principal.expires_at,
            has_right=call.has_same_caller,
        )
        begun = await BegunStream.begin(frames, stack)
    return Streamed(begun, (*HEADERS, ENCODED) if encoded else HEADERS)


async def _body(call: ApiCall) -> bytes:
    most = call.services.usage.limits.max_append_bytes
    try:
        return await read_body(call.request, most=most)
    except HttpProblem as problem:
        if problem.status == _TOO_LARGE:
            # A client that still writes would not see the answer.
            await drop_body(call.request, most=_DRAINED * most)
        raise


def _streams(call: ApiCall) -> StreamStore:
    return call.store.streams


def _location(request: HTTPConnection) -> str:
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw.partition(b"?")[0].decode("ascii", "replace")
    return f"{request.url.scheme}://{request.url.netloc}{path}"


def _operation(method: str, endpoint: Any, summary: str, right: Right) -> Operation:
    return Operation(method, _PATH, endpoint, summary, right, Over.OWN)


OPERATIONS: tuple[Operation, ...] = (
    _operation("PUT", create_stream, "Create a stream", Right.WRITE),
    _operation("POST", append_stream, "Append to a stream", Right.WRITE),
    _operation("GET", read_stream, "Read a stream", Right.READ),
    _operation("HEAD", look_stream, "Look at a stream", Right.READ),
    _operation("DELETE", delete_stream, "Delete a stream", Right.WRITE),
)
