"""One client's stream: from its cursor through the log, then from the feed of its session.

The only state is the place of the row seen last. The client reads the log until the feed has the
rows behind its place. When the feed has them no more, it reads the log again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING, Self, TypeAlias

from redis_state.errors import BackendUnavailable, CursorGap, RedisStateError, TaskUnknown
from redis_state.gateway.failures import log_failure
from redis_state.gateway.streaming import events
from redis_state.gateway.streaming.events import Frame
from redis_state.gateway.streaming.wanted import EVERYTHING, Visible, Wanted
from redis_state.models import StateUpdate
from redis_state.stores.sessions.session_log import EntryPage

if TYPE_CHECKING:
    from redis_state.gateway.streaming.feed import Feed
    from redis_state.gateway.streaming.hub import Hub

HasRight: TypeAlias = Callable[[], Awaitable[bool]]

_CHUNK_BYTES = 64 << 10
_FIRST_PAGE, _LARGEST_PAGE = 16, 256
_PAGE_BYTES = 256 << 10
_RETRY_S = 0.5
_PATIENCE_S = 60.0


class ClientStream(AsyncIterator[bytes]):
    """Chunks of whole events for one client. Close it when done.

    The first chunk says when to connect again. It comes once the session is watched, so an error of
    the request is raised before it.
    """

    __slots__ = (
        "_after",
        "_beat_at",
        "_begun",
        "_behind",
        "_check_at",
        "_failing_since",
        "_feed",
        "_has_right",
        "_hub",
        "_look",
        "_over",
        "_page",
        "_place",
        "_queue",
        "_sent",
        "_session_id",
        "_state",
        "_unshown",
        "_until",
        "_waiter",
        "_wanted",
    )

    def __init__(
        self,
        hub: Hub,
        session_id: str,
        *,
        after: str | None,
        wanted: Wanted,
        until: float | None,
        has_right: HasRight | None,
    ) -> None:
        self._hub = hub
        self._session_id = session_id
        self._wanted = wanted
        self._until = until
        self._state = "new"
        self._feed: Feed | None = None
        # Where to read on, and the number and time of the row before.
        self._after = after
        self._place = (0, 0)
        # The place of the last cursor that the client has.
        self._sent = (0, 0)
        # Whether the log is to be read before the feed has what follows.
        self._behind = True
        # Which beginning of the feed the place is compared with.
        self._begun = 0
        self._page = _FIRST_PAGE
        self._queue: list[Frame] = []
        self._waiter: asyncio.Future[None] | None = None
        # Whether the task may be terminal, and the event that says so once it is.
        self._look = False
        self._over: bytes | None = None
        # Whether the next row is one for which `visible` fails.
        self._unshown = False
        self._beat_at = 0.0
        # Asked as often as a heartbeat would come, however many rows there are.
        self._has_right = has_right
        self._check_at = hub.time() + hub.heartbeat_s
        self._failing_since: float | None = None

    def __aiter__(self) -> Self:
        return self

    def __del__(self) -> None:
        self._leave()

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._next()
        except BaseException:
            self._leave()
            raise
        if not chunk:
            self._leave()
            raise StopAsyncIteration
        self._beat_at = self._hub.time() + self._hub.heartbeat_s
        return chunk

    async def aclose(self) -> None:
        """Leave the session. Safe to repeat."""
        self._leave()

    @property
    def held(self) -> int:
        """How many frames are held for this client alone."""
        return len(self._queue)

    @property
    def due_at(self) -> float:
        """When the client is to be woken without a row, on the loop's clock."""
        due_at = self._beat_at if self._has_right is None else min(self._beat_at, self._check_at)
        return due_at if self._until is None else min(due_at, self._until)

    def wake(self) -> None:
        """Wake the client, so that it looks again."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def passes(self, frame: Frame, before: tuple[int, int]) -> bool:
        """Pass the row behind ``before`` without waking the client, who does not want it.

        Return whether it did.
        """
        wanted = self._wanted
        if wanted is EVERYTHING or wanted.has(frame) or wanted.ends(frame):
            return False
        if self._behind or self._place != before:
            return False
        self._place = frame.place
        return True

    async def _next(self) -> bytes:
        if self._state == "new":
            return await self._open()
        while self._state == "open":
            chunk = self._last_word()
            if not chunk and self._has_right is not None and self._hub.time() >= self._check_at:
                chunk = await self._check_right(self._has_right)
            chunk = chunk or self._from_queue()
            if chunk:
                return chunk
            if self._unshown:
                # What follows in the feed would have a place behind the row.
                continue
            try:
                found = await self._step()
                self._failing_since = None
            except BackendUnavailable:
                found = await self._bear()
            # Waited for here, not below: each coroutine on the way is kept for each client.
            chunk = await self._wait() if found is None else found
            if chunk:
                return chunk
        return b""

    async def _open(self) -> bytes:
        """Join the session's feed, and find the place to begin at. Errors: those of the store."""
        self._feed = feed = self._hub.join(self._session_id)
        await feed.ready()
        self._begun = feed.begun
        tail: str | None = None
        if self._after == events.TAIL:
            self._after = tail = await feed.end()
            self._place, self._behind = events.position(tail), False
        elif self._after == events.ALL:
            self._after = None
        elif self._after is not None and feed.knows(self._after):
            # No row is read twice, and none at all if the feed has all that follows.
            self._place, self._behind = events.position(self._after), False
        if self._after is not None:
            self._sent = events.position(self._after) if self._behind else self._place
        if self._wanted.task_id is not None:
            # Once the place is known: an end before it is found here, a later one in a row.
            await self._look_at_task(must_be=True)
        self._state = "open"
        # Who begins at the end has a place there, also if the connection breaks before a row comes.
        return events.come_back(tail)

    async def _step(self) -> bytes | None:
        """Return what comes next, which may be nothing yet; None if it is to be waited for."""
        if self._look:
            await self._look_at_task()
        if self._behind or self._over is not None:
            return await self._from_log()
        return self._from_feed()

    def _last_word(self) -> bytes:
        """Return the event with which the stream ends now, if it does."""
        feed, word = self._feed, b""
        if self._until is not None and self._hub.time() >= self._until:
            word = events.EXPIRED
        elif self._unshown:
            # Not passed over: the client would never learn that it lacks a row.
            word = events.come_back_later()
        elif self._hub.closing or feed is None or feed.error is not None:
            word = events.come_back()
        if word:
            self._queue.clear()
            self._leave()
        return word

    async def _check_right(self, has_right: HasRight) -> bytes:
        """Return the event with which the stream ends, if its caller has lost the right to it."""
        try:
            if await has_right():
                self._check_at = self._hub.time() + self._hub.heartbeat_s
                return b""
            word = events.EXPIRED
        except RedisStateError:
            # Nobody could say for long. Who comes back learns that.
            word = events.come_back()
        self._queue.clear()
        self._leave()
        return word

    def _from_queue(self, most_bytes: float = _CHUNK_BYTES) -> bytes:
        chosen, size = list[bytes](), 0
        for frame in self._queue:
            if size >= most_bytes or self._unshown:
                break
            data = self._shown(frame)
            chosen.append(data)
            size += len(data)
        del self._queue[: len(chosen)]
        return b"".join(chosen)

    async def _from_log(self) -> bytes | None:
        feed = self._joined()
        self._begun = feed.begun
        try:
            page = await self._hub.store.read_updates(
                self._session_id,
                after=self._after,
                limit=self._page,
                task_id=self._wanted.topic,
            )
        except CursorGap as gap:
            self._after = gap.resume_after
            return events.resync(gap)
        if not self._keep(feed, page):
            return b""
        if self._over is not None:
            # No row follows those of this page.
            rest = self._from_queue(inf)
            if self._unshown:
                return rest
            self._leave()
            return rest + self._over
        self._behind = feed.after(self._place) is None
        if self._behind and not page.entries:
            # The feed has not noticed yet that it is of another history than the log.
            return None
        return b""

    def _keep(self, feed: Feed, page: EntryPage[StateUpdate]) -> bool:
        """Keep a page's rows for this client, as many as it may hold; return whether the log ends
        with them. The others are read again, once it has taken these.
        """
        cursor, size, kept = page.cursor, 0, 0
        for entry in page.entries:
            frame = feed.writer.frame(entry)
            size += len(frame.data)
            if kept and size > _PAGE_BYTES:
                cursor = page.entries[kept - 1].cursor
                break
            self._queue.append(frame)
            kept += 1
        self._after, self._place = cursor, events.position(cursor)
        is_whole = kept == len(page.entries)
        if not is_whole:
            self._page = kept
        elif size < _PAGE_BYTES // 2:
            self._page = min(self._page * 2, _LARGEST_PAGE)
        return is_whole and page.at_end

    def _from_feed(self) -> bytes | None:
        feed = self._joined()
        found = feed.after(self._place) if self._begun == feed.begun else None
        if found is None:
            # The log knows whether the row of the client's place is still there.
            self._after, self._behind = "{}-{}".format(*self._place), True
            return b""
        if not found:
            return None
        chosen, size = list[bytes](), 0
        for frame in found:
            data = self._shown(frame)
            chosen.append(data)
            self._place = frame.place
            size += len(data)
            if size >= _CHUNK_BYTES or self._unshown:
                break
        return b"".join(chosen) if len(chosen) > 1 else chosen[0]

    def _shown(self, frame: Frame) -> bytes:
        """Return a row's event as this client may see it; nothing if it does not."""
        wanted = self._wanted
        if wanted is not EVERYTHING:
            if wanted.ends(frame):
                self._look = True
            if not wanted.has(frame):
                return b""
        data = frame.data if wanted.visible is None else self._visible(frame, wanted.visible)
        if data:
            self._sent = frame.place
        return data

    def _visible(self, frame: Frame, visible: Visible) -> bytes:
        try:
            shown = visible(frame.update())
            # Written again in any case: the update itself may have been changed.
            return b"" if shown is None else self._joined().writer.changed(frame, shown)
        except Exception as error:  # noqa: BLE001 - whatever a host's function raises
            log_failure("visible= of an open stream", error)
            self._unshown = True
            return b""

    async def _wait(self) -> bytes:
        """Wait until there may be more, or for the time of a heartbeat."""
        feed = self._joined()
        self._waiter = asyncio.get_running_loop().create_future()
        feed.waiting.add(self)
        try:
            await self._waiter
        finally:
            self._waiter = None
            feed.waiting.discard(self)
        now = self._hub.time()
        if now < self._beat_at or (self._until is not None and now >= self._until):
            return b""
        # A task can end without a row, when its session is deleted.
        self._look = self._wanted.task_id is not None
        if self._place == self._sent:
            return events.heartbeat()
        self._sent = self._place
        return events.heartbeat(feed.cursor(self._place))

    async def _look_at_task(self, *, must_be: bool = False) -> None:
        """Find out whether the task is terminal: then no row follows what the log has by now."""
        task_id = self._wanted.task_id or ""
        state = await self._hub.store.tasks.load(self._session_id, task_id)
        if state is None and must_be:
            raise TaskUnknown(task_id)
        self._look = False
        if state is None or state.status.is_terminal:
            if not self._behind:
                self._after = "{}-{}".format(*self._place)
            self._over = events.task_end(task_id, None if state is None else state.status.value)

    async def _bear(self) -> bytes:
        """Wait for a server that cannot be reached; in the end the client is to come back."""
        now = self._hub.time()
        self._failing_since = since = self._failing_since or now
        if now - since > _PATIENCE_S:
            self._leave()
            return events.come_back()
        await asyncio.sleep(_RETRY_S)
        return events.HEARTBEAT if self._hub.time() >= self._beat_at else b""

    def _joined(self) -> Feed:
        if self._feed is None:
            msg = "the stream is closed"
            raise RuntimeError(msg)
        return self._feed

    def _leave(self) -> None:
        feed, self._feed, self._state = self._feed, None, "closed"
        if feed is not None:
            self._hub.leave(feed)
            self.wake()
