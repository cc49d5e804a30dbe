"""Events of a durable stream: ``data`` with rows, and ``control`` with where to read on."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from redis_state.errors import RedisStateError
from redis_state.gateway.durable_streams.answers import next_cursor
from redis_state.gateway.streaming.client_stream import HasRight
from redis_state.models.streams import StreamPage
from redis_state.serialization import codec

if TYPE_CHECKING:
    from redis_state.gateway.durable_streams.feeds import SharedPage, StreamFeed, StreamFeeds

HEARTBEAT_S: Final = 15.0
HEARTBEAT: Final = b":\n\n"

_BREAK = re.compile(rb"\r\n|\r|\n")


def event_lines(name: str, data: bytes) -> bytes:
    """Write an event. A line break in it is one of the data, and never ends the event."""
    # A reader takes one space away.
    lines = (b" " + line if line.startswith(b" ") else line for line in _BREAK.split(data))
    return b"".join(
        [b"event: ", name.encode(), b"\n", *(b"data:" + each + b"\n" for each in lines), b"\n"]
    )


def control_event(page: StreamPage, offset: str, cursor: int | None) -> bytes:
    """Write where a client has come to, which may be within the last row of its page."""
    control: dict[str, Any] = {"streamNextOffset": offset}
    if page.closed:
        control["streamClosed"] = True
    else:
        control["streamCursor"] = next_cursor(cursor)
    if page.at_end:
        control["upToDate"] = True
    return event_lines("control", codec.encode(control))


async def stream_frames(
    feeds: StreamFeeds,
    feed: StreamFeed,
    shared: SharedPage,
    seen: int,
    *,
    cursor: int | None,
    events_s: float,
    expires_at: datetime | None,
    has_right: HasRight,
) -> AsyncGenerator[bytes]:
    """Give the events from a page on, until the stream is closed or the client is to come again.

    ``has_right`` is called as often as a heartbeat may come. Once it returns False, they end.
    ``seen`` is the feed's version before the page was read. A row that cannot be read later ends
    them, as a feed that hears no more does: the client comes again, and learns why.
    """
    until = monotonic() + events_s
    if expires_at is not None:
        until = min(until, monotonic() + (expires_at - datetime.now(UTC)).total_seconds())
    begun, check_at = False, monotonic() + HEARTBEAT_S
    while True:
        offset, wait_s, at_end = shared.sent.offset, shared.wait_s, shared.page.at_end
        closed = shared.page.closed
        if shared.sent.rows or closed or not begun:
            begun = True
            yield shared.event + control_event(shared.page, offset, cursor)
        else:
            yield HEARTBEAT
        if closed or feeds.closing:
            return
        # A client that waits holds no page.
        del shared
        try:
            if at_end:
                await feed.changed(seen, min(wait_s, until - monotonic()))
            now = monotonic()
            if now >= until or feeds.closing:
                return
            if now >= check_at:
                if not await has_right():
                    return
                check_at = now + HEARTBEAT_S
            seen = feed.version
            shared = await feed.read(offset)
        except RedisStateError:
            return
