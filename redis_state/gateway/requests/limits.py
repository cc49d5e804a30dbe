"""Limits for each caller: the size of a body, requests in a second, streams at once.

They hold in one process, but for durable streams that are kept. Limits of a queue are for what
shall hold everywhere.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Self, cast

from starlette.requests import ClientDisconnect, HTTPConnection, Request

from redis_state import limits
from redis_state.gateway.answers import HttpProblem
from redis_state.timeouts import timeout

_MOST_CALLERS = 10_000
_MOST_DIGITS = 18
# Who sends a body by and by holds a connection for this long.
_BODY_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """What one caller may use: of one process, but for ``kept_streams``.

    ``max_body_bytes`` is the size of a request's body. A caller may make ``burst`` requests at
    once, and ``requests_per_s`` in the long run; None for any number. ``streams`` are those that a
    caller has open at once. ``max_append_bytes`` is the size of what is appended to a durable
    stream in one request. ``kept_streams`` are the durable streams of a caller's making that still
    live, in all processes; None for any number. A long poll of one ends after ``long_poll_s``, its
    events after ``events_s``: the client comes again. A client that joins a chat is shown the
    newest ``chat_bytes`` of its updates: texts and tools before them are left out, and a notice
    says so. Errors: InvalidField.
    """

    max_body_bytes: int = 64 * 1024
    requests_per_s: float | None = 50.0
    burst: int = 200
    streams: int = 64
    max_append_bytes: int = 1024 * 1024
    chat_bytes: int = 8 * 1024 * 1024
    kept_streams: int | None = 10_000
    long_poll_s: float = 15.0
    events_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name in ("max_body_bytes", "burst", "streams", "max_append_bytes", "chat_bytes"):
            limits.count(name, getattr(self, name))
        if self.kept_streams is not None:
            limits.count("kept_streams", self.kept_streams)
        for name in ("long_poll_s", "events_s"):
            limits.seconds(name, getattr(self, name))
        if self.requests_per_s is not None:
            limits.patience("requests_per_s", self.requests_per_s, least=0.001)


class CountedStream:
    """A caller's open stream, counted until it is ended. Safe to end twice."""

    __slots__ = ("_caller", "_streams")

    def __init__(self, streams: Counter[str], caller: str) -> None:
        self._streams = streams
        self._caller: str | None = caller

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    async def aclose(self) -> None:
        """End it."""
        self.end()

    def end(self) -> None:
        """Count it no more."""
        caller, self._caller = self._caller, None
        if caller is not None:
            self._streams[caller] -= 1
            if not self._streams[caller]:
                del self._streams[caller]


class CallerUsage:
    """What callers use now, by their subjects."""

    def __init__(self, given: GatewayLimits) -> None:
        self.limits: GatewayLimits = given
        self._limits = given
        # What each caller has left, and when that was.
        self._left: dict[str, tuple[float, float]] = {}
        self._streams: Counter[str] = Counter()

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return self._streams.total()

    def take(self, caller: str) -> None:
        """Count a request. Errors: HttpProblem, 429, with when to repeat it."""
        rate, burst = self._limits.requests_per_s, float(self._limits.burst)
        if rate is None:
            return
        now = time.monotonic()
        left, since = self._left.get(caller, (burst, now))
        left = min(burst, left + (now - since) * rate)
        self._left[caller] = (left - 1 if left >= 1 else left), now
        if len(self._left) > _MOST_CALLERS:
            self._forget(rate, burst)
        if left < 1:
            wait = {"retry-after": str(math.ceil((1 - left) / rate))}
            raise HttpProblem(429, "too_many_requests", "too many requests", headers=wait)

    def _forget(self, rate: float, burst: float) -> None:
        """Forget a tenth of the callers: those that have their whole burst again first.

        Who comes under many names does not get rid of a limit: new names are forgotten before it.
        """

        def full_at(caller: str) -> float:
            left, since = self._left[caller]
            return since + (burst - left) / rate

        for caller in heapq.nsmallest(_MOST_CALLERS // 10, self._left, key=full_at):
            del self._left[caller]

    def stream(self, caller: str) -> CountedStream:
        """Count a stream, until that is ended. Errors: HttpProblem, 429."""
        most = self._limits.streams
        if self._streams[caller] >= most:
            message = f"at most {most} streams may be open at once"
            wait = {"retry-after": "5"}
            raise HttpProblem(429, "too_many_streams", message, headers=wait, facts={"limit": most})
        self._streams[caller] += 1
        return CountedStream(self._streams, caller)


def address_of(connection: HTTPConnection) -> str:
    """Return from where a request comes, as far as the server knows."""
    return "" if connection.client is None else connection.client.host


async def read_body(connection: HTTPConnection, *, most: int) -> bytes:
    """Read a body. Errors: HttpProblem, 413, before more than that was read."""
    too_large = HttpProblem(
        413, "body_too_large", f"a body may have {most} bytes", facts={"limit": most}
    )
    request = cast("Request", connection)
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and (len(stated) > _MOST_DIGITS or int(stated) > most):
        raise too_large
    body = bytearray()
    try:
        async with timeout(_BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise HttpProblem(408, "body_too_slow", f"a body may take {_BODY_S:g} s") from None
    except ClientDisconnect:
        # Nobody reads this; the caller has left.
        raise HttpProblem(400, "disconnected", "the body has no end") from None
    return bytes(body)


async def drop_body(connection: HTTPConnection, *, most: int) -> None:
    """Read and drop what is left of a body, so that its client comes to read the answer."""
    size = 0
    with suppress(TimeoutError, ClientDisconnect):
        async with timeout(_BODY_S):
            async for chunk in cast("Request", connection).stream():
                size += len(chunk)
                if size > most:
                    return
