"""One session's watch, for all clients of a process.

The feed keeps the newest frames. A client is only a place in the log: it takes the frames behind
its place, or learns that it must read the log. So a client that does not read holds no frames, and
holds nobody up.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING

from redis_state.errors import CursorGap, RedisStateError
from redis_state.gateway.streaming.events import Frame, FrameWriter, position
from redis_state.store import RedisStateStore

if TYPE_CHECKING:
    from redis_state.gateway.streaming.client_stream import ClientStream

log: logging.Logger = logging.getLogger(__name__)


class Feed:
    """Follow a session's updates, keep the newest frames, and wake the clients that wait."""

    def __init__(
        self, store: RedisStateStore, session_id: str, *, most_frames: int, most_bytes: int
    ) -> None:
        self.session_id = session_id
        self.writer: FrameWriter = FrameWriter(session_id)
        self.waiting: set[ClientStream] = set()
        self.clients = 0
        # How often it began to watch: each time may be another history of the server.
        self.begun: int = 0
        self.left_at: float = -math.inf
        self.error: Exception | None = None
        self._store = store
        self._most_frames = most_frames
        self._most_bytes = most_bytes
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        # Rows that come in one piece are published by and by, so that clients keep up with them.
        self._in_a_row, self._most_in_a_row = 0, max(1, most_frames // 4)
        # The log's name in its cursors, if it has one.
        self._name: list[str] = []
        # The place before the oldest kept frame.
        self._before: tuple[int, int] = (0, 0)
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._task: asyncio.Task[None] = loop.create_task(self._run())

    @property
    def held(self) -> int:
        """How many frames are kept."""
        return len(self._frames)

    async def ready(self) -> None:
        """Wait until the session is watched. Errors: those of the store."""
        await asyncio.shield(self._ready)

    def after(self, place: tuple[int, int]) -> list[Frame] | None:
        """Return the frames behind a row; None if only the log has them, or knows of a gap.

        The seam is checked: the row must be the one before the first frame, by number and time.
        Rows that are newer than the feed's are waited for.
        """
        frames = self._frames
        index = place[0] - self._before[0]
        if index < 0:
            return None
        missing = len(frames) - index
        if missing < 0:
            return []
        previous = frames[-1 - missing].place if index else self._before
        if previous != place:
            return None
        return [frames[-back] for back in range(missing, 0, -1)]

    def wake(self) -> None:
        """Wake all clients that wait."""
        waiting, self.waiting = self.waiting, set()
        for client in waiting:
            client.wake()

    def knows(self, cursor: str) -> bool:
        """Return whether it has all that follows a cursor of this session's log."""
        n, ms = position(cursor)
        name = cursor.split("-")[2:]
        last = self._before[0] + len(self._frames)
        return name in ([], self._name) and n <= last and self.after((n, ms)) is not None

    def cursor(self, place: tuple[int, int]) -> str:
        """Return the cursor after a row."""
        return "-".join([*map(str, place), *self._name])

    async def end(self) -> str:
        """Return the cursor after the newest row."""
        return await self._store.updates.cursor(self.session_id, None) or "0-0"

    async def aclose(self) -> None:
        """End the watch."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while True:
                end = await self.end()
                self._begin(end)
                await self._watch(end)
        except asyncio.CancelledError:
            self._fail(asyncio.CancelledError())
            raise
        except RedisStateError as error:
            self._fail(error)
        except Exception as error:
            log.exception("the watch of a session failed")
            self._fail(error)

    async def _watch(self, after: str) -> None:
        """Publish what comes, until rows are missing: each client finds its own gap in the log."""
        rows = self._store.updates.watch_rows(
            self.session_id, after=after, reconnect_timeout_s=math.inf
        )
        try:
            async with aclosing(rows):
                async for entry in rows:
                    self._publish(self.writer.frame(entry))
                    if self._in_a_row >= self._most_in_a_row:
                        self._in_a_row = 0
                        await asyncio.sleep(0)
        except CursorGap as gap:
            log.info("rows of a watched session are missing: %s", gap.reason)
            # At once: they may have been erased, and the server may take its time to answer.
            self._drop()

    def _drop(self) -> None:
        """Keep no frame: only the log has what it has."""
        if self._frames:
            self._before = self._frames[-1].place
        self._frames.clear()
        self._bytes = 0

    def _begin(self, cursor: str) -> None:
        self.begun += 1
        self._drop()
        self._before = position(cursor)
        self._name = cursor.split("-")[2:]
        if not self._ready.done():
            self._ready.set_result(None)
        self.wake()

    def _publish(self, frame: Frame) -> None:
        frames = self._frames
        before = frames[-1].place if frames else self._before
        frames.append(frame)
        self._bytes += len(frame.data)
        while len(frames) > self._most_frames or (
            self._bytes > self._most_bytes and len(frames) > 1
        ):
            dropped = frames.popleft()
            self._bytes -= len(dropped.data)
            self._before = dropped.place
        self._in_a_row += 1
        waiting, self.waiting = self.waiting, set()
        for client in waiting:
            if client.passes(frame, before):
                self.waiting.add(client)
            else:
                client.wake()

    def _fail(self, error: BaseException) -> None:
        failure = error if isinstance(error, Exception) else RuntimeError("the hub is closed")
        self.error = failure
        if not self._ready.done():
            self._ready.set_exception(failure)
            self._ready.exception()  # it may be that nobody waits
        self.wake()
