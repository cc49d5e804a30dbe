"""Answers about durable streams: the protocol's headers, and its statuses of errors."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.responses import Response

from redis_state.errors import (
    InvalidField,
    PayloadTooLarge,
    ProducerRefused,
    RedisStateError,
    StreamDeleted,
    StreamRefused,
)
from redis_state.gateway.answers import HttpProblem, problem_of
from redis_state.models.streams import StreamPage, StreamView

# Browsers read these of another origin's answers, and may send those.
EXPOSED: Final = (
    *("stream-next-offset", "stream-cursor", "stream-up-to-date", "stream-closed"),
    *("stream-ttl", "stream-expires-at", "stream-sse-data-encoding", "location", "etag"),
    *("producer-epoch", "producer-seq", "producer-expected-seq", "producer-received-seq"),
)
ALLOWED: Final = (
    *("if-none-match", "stream-ttl", "stream-expires-at", "stream-closed", "stream-seq"),
    *("stream-forked-from", "stream-fork-offset", "stream-fork-sub-offset"),
    *("producer-id", "producer-epoch", "producer-seq"),
)

_TRUE = "true"
_SAFE = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    # Who writes a stream chooses its content type: HTML is shown as a page of no origin, and inert.
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}
# The protocol's cursors count intervals from 9 October 2024.
_EPOCH_S, _INTERVAL_S, _MOST_JITTER_S = 1_728_432_000, 20, 3_600
_STATUS = {"stale": 403, "gap": 409, "epoch": 400, "many": 400}


def stream_answer(
    status: int,
    body: bytes = b"",
    *,
    caching: str = "no-store",
    headers: Mapping[str, str | None],
) -> Response:
    """Write an answer, with those headers that have a value."""
    given = {name: value for name, value in headers.items() if value is not None}
    return Response(body, status, headers={**_SAFE, "cache-control": caching, **given})


def about(stream: StreamView) -> dict[str, str | None]:
    """Write what is known of a stream, as its creation and HEAD return it."""
    return {
        "content-type": stream.content_type,
        "stream-next-offset": stream.offset,
        "stream-closed": _TRUE if stream.closed else None,
        "stream-ttl": None if stream.ttl_s is None else str(stream.ttl_s),
        "stream-expires-at": stream.expires_at,
    }


def page_answer(
    page: StreamPage, headers: Headers, *, tagged: bool, cursor: str | None = None
) -> Response:
    """Answer with rows, or with 304 if the client has just these."""
    tag = _tag(page) if tagged else None
    given = {
        "stream-next-offset": page.offset,
        "stream-up-to-date": _TRUE if page.at_end else None,
        "stream-closed": _TRUE if page.closed else None,
        "stream-cursor": cursor,
        "etag": tag,
    }
    # A client may keep it, and asks each time whether it is still so.
    caching = "private, no-cache" if tagged else "no-store"
    if tag is not None and _has(headers.get("if-none-match", ""), tag):
        return stream_answer(304, caching=caching, headers=given)
    given["content-type"] = page.stream.content_type
    return stream_answer(200, page.body(), caching=caching, headers=given)


def nothing_answer(page: StreamPage, cursor: str) -> Response:
    """Answer a long poll to which nothing has come."""
    return stream_answer(
        204,
        headers={
            "stream-next-offset": page.offset,
            "stream-up-to-date": _TRUE,
            "stream-closed": _TRUE if page.closed else None,
            "stream-cursor": None if page.closed else cursor,
        },
    )


def next_cursor(given: int | None) -> str:
    """Return the cursor of now, above the one that a client has."""
    now = int(time.time() - _EPOCH_S) // _INTERVAL_S
    if given is None or given < now:
        return str(now)
    jitter_s = random.randint(1, _MOST_JITTER_S)
    return str(given + max(1, jitter_s // _INTERVAL_S))


def stream_problem(error: RedisStateError) -> HttpProblem:
    """Make the HTTP error of one about a durable stream."""
    match error:
        case StreamDeleted():
            return HttpProblem(410, "stream_deleted", "the stream was deleted, and has forks")
        case StreamRefused():
            ended = error.reason == "closed"
            headers: dict[str, str] = {"stream-closed": _TRUE} if ended else {}
            if error.offset is not None:
                headers["stream-next-offset"] = error.offset
            return HttpProblem(409, f"stream_{error.reason}", str(error), headers=headers)
        case PayloadTooLarge():
            return problem_of(error)
        case InvalidField():
            facts: dict[str, Any] = {"field": error.field}
            return HttpProblem(400, "invalid_field", str(error), facts=facts)
        case _:
            return problem_of(error)


def producer_problem(error: ProducerRefused, number: int) -> HttpProblem:
    """Make the HTTP error of a producer's batch that was refused."""
    headers: dict[str, str] = {}
    if error.epoch is not None:
        headers["producer-epoch"] = str(error.epoch)
    if error.expected is not None:
        headers["producer-expected-seq"] = str(error.expected)
        headers["producer-received-seq"] = str(number)
    return HttpProblem(
        _STATUS[error.reason], f"producer_{error.reason}", str(error), headers=headers
    )


def _tag(page: StreamPage) -> str:
    closed = ":c" if page.closed else ""
    return f'"{page.stream.stream_id}:{page.start}:{page.offset}{closed}"'


def _has(listed: str, tag: str) -> bool:
    known = [each.strip().removeprefix("W/") for each in listed.split(",")]
    return tag in known or known == ["*"]
