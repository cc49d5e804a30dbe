"""One hub for each process: one watch for each session, however many clients read it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import datetime
from time import monotonic
from typing import Final, Self

from redis_state import limits
from redis_state.errors import BackendUnavailable, InvalidField
from redis_state.gateway.streaming.client_stream import ClientStream, HasRight
from redis_state.gateway.streaming.events import check_cursor, check_types
from redis_state.gateway.streaming.feed import Feed
from redis_state.gateway.streaming.subtree import TaskSubtree
from redis_state.gateway.streaming.wanted import EVERYTHING, Visible, Wanted
from redis_state.models import UpdateType
from redis_state.models.tasks import utc_now
from redis_state.store import RedisStateStore
from redis_state.timeouts import timeout
from redis_state.transport.key_text import escape

MOST_FRAMES: Final = 256
MOST_BYTES: Final = 1 << 20
_TICK_S = 1.0
# How many clients are looked at in one turn of the loop.
_SEEN_TOGETHER = 256
# After some clients were woken, the loop has three times as long for rows; so long in a round.
_WOKEN_TOGETHER, _REST, _LONGEST_RESTS_S = 4, 3.0, 2.0
_FAREWELL_S = 2.0


class Hub:
    """Streams of sessions' updates for all clients of a process and loop.

    Use it in ``async with``. Each session that has clients is watched once, and each row is encoded
    once for all clients that wait. The newest frames of a session are kept: 256, or 1 MiB. A client
    that is further behind reads the log by itself, and holds nobody up. The watch of a session
    ends ``linger_s`` after its last client has left.
    """

    def __init__(
        self,
        store: RedisStateStore,
        *,
        heartbeat_s: float = 15.0,
        linger_s: float = 1.0,
        most_frames: int = MOST_FRAMES,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.store = store
        self.heartbeat_s: float = limits.seconds("heartbeat_s", heartbeat_s)
        self.time: Callable[[], float] = monotonic
        self.closing: bool = False
        self._linger_s = limits.seconds("linger_s", linger_s)
        self._most_frames = limits.count("most_frames", most_frames)
        self._most_bytes = limits.count("most_bytes", most_bytes)
        self._feeds: dict[str, Feed] = {}
        self._clients = 0
        self._all_left = asyncio.Event()
        self._ticker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._ticker = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end_streams()
        with suppress(TimeoutError):
            async with timeout(_FAREWELL_S):
                await self._all_left.wait()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.wait({self._ticker})
        feeds, self._feeds = list(self._feeds.values()), {}
        await asyncio.gather(*(feed.aclose() for feed in feeds))

    @property
    def clients(self) -> int:
        """How many streams are open."""
        return self._clients

    @property
    def watches(self) -> int:
        """How many sessions are watched."""
        return len(self._feeds)

    @property
    def held(self) -> int:
        """How many frames are kept for the clients of one session, at most."""
        return max((feed.held for feed in self._feeds.values()), default=0)

    def frames(
        self,
        session_id: str,
        *,
        after: str | None = None,
        task_id: str | None = None,
        types: Collection[UpdateType | str] | None = None,
        visible: Visible | None = None,
        expires_at: datetime | None = None,
        subtree: TaskSubtree | None = None,
        has_right: HasRight | None = None,
    ) -> ClientStream:
        """Return a client's stream: chunks of server-sent events, each of whole events.

        ``after`` is a cursor, ``$`` for what comes from now on, or ``0`` for all that is kept, as
        is None. Rows come once and in order. Where rows are missing, a ``resync`` event says how
        many and why, and the stream continues. With a ``task_id`` it has this task's rows only,
        and ends with an ``end`` event once the task is terminal. With a ``subtree`` it has the rows
        of the tasks below it too, until then. ``types`` are the types of updates that it has.
        ``visible`` returns what the client may see of an update: the update, a changed
        copy, or None. At ``expires_at`` the stream ends with an ``expired`` event, and so it does
        once ``has_right`` returns False: it is called each ``heartbeat_s``. When the hub ends it,
        the last event is a ``retry`` after some moments.

        A row has the cursor after it as its id. Tokens of pauses are cut from it. A comment comes
        after ``heartbeat_s`` without an event. Errors: InvalidField names the argument, at once;
        TaskUnknown and BackendUnavailable at the first chunk.
        """
        escape("session_id", session_id)
        if task_id is not None:
            escape("task_id", task_id)
        wanted = Wanted(task_id, check_types(types), visible, subtree)
        until = None
        if expires_at is not None:
            if expires_at.tzinfo is None:
                raise InvalidField("expires_at", "needs a time zone")
            until = self.time() + (expires_at - utc_now()).total_seconds()
        return ClientStream(
            self,
            session_id,
            after=check_cursor(after),
            wanted=EVERYTHING if wanted == EVERYTHING else wanted,
            until=until,
            has_right=has_right,
        )

    def end_streams(self) -> None:
        """End all streams. Their clients connect again soon. Safe to repeat.

        Call it when the server begins to shut down. A server waits for its open responses before
        it closes the application, and those of streams do not end by themselves.
        """
        self.closing = True
        if not self._clients:
            self._all_left.set()
        for feed in self._feeds.values():
            feed.wake()

    def join(self, session_id: str) -> Feed:
        """Return a session's feed for one more client. Errors: BackendUnavailable when closing."""
        if self.closing:
            raise BackendUnavailable("gateway", "it is shutting down")
        feed = self._feeds.get(session_id)
        if feed is None or feed.error is not None:
            feed = self._feeds[session_id] = Feed(
                self.store,
                session_id,
                most_frames=self._most_frames,
                most_bytes=self._most_bytes,
            )
        feed.clients += 1
        self._clients += 1
        return feed

    def leave(self, feed: Feed) -> None:
        """Count a client less."""
        feed.clients -= 1
        self._clients -= 1
        feed.left_at = self.time()
        if self.closing and not self._clients:
            self._all_left.set()

    async def _tick(self) -> None:
        """Wake clients whose time has come, and end watches that nobody needs."""
        pause_s = min(_TICK_S, self.heartbeat_s / 4, self._linger_s / 2)
        while True:
            await asyncio.sleep(pause_s)
            now = self.time()
            unused = [
                feed
                for feed in self._feeds.values()
                if not feed.clients and now - feed.left_at >= self._linger_s
            ]
            for feed in unused:
                if self._feeds.get(feed.session_id) is feed:
                    del self._feeds[feed.session_id]
            await asyncio.gather(*(feed.aclose() for feed in unused))
            await self._wake_due(now)

    async def _wake_due(self, now: float) -> None:
        """Wake clients whose time has come: a few at once, so that rows are not held up.

        Clients that connected together are due together, and the right of each is checked. A row
        reaches its client by several turns of the loop. So a turn must be short, and rows must
        have some between.
        """
        # Of the loop, as `time` may be a clock of a test's own.
        clock = asyncio.get_running_loop().time
        seen, woken, rested_s, began = 0, 0, 0.0, clock()
        for feed in list(self._feeds.values()):
            for client in list(feed.waiting):
                seen += 1
                if not seen % _SEEN_TOGETHER:
                    await asyncio.sleep(0)
                if client.due_at > now:
                    continue
                if not woken % _WOKEN_TOGETHER:
                    began = clock()
                client.wake()
                woken += 1
                if woken % _WOKEN_TOGETHER:
                    continue
                await asyncio.sleep(0)
                rest_s = min(_REST * (clock() - began), _LONGEST_RESTS_S - rested_s)
                rested_s += rest_s
                await asyncio.sleep(rest_s)
