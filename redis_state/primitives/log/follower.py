"""One reader's place in a log, as it follows what is appended: see `Log.follow_as`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from redis_state.errors import BackendUnavailable, CursorGap
from redis_state.primitives.signal import Row, read_message

if TYPE_CHECKING:
    from redis_state.primitives.log.log import Log
    from redis_state.primitives.log.rows import Page

_RETRY_S = 0.2
_CHECK_AGAIN_S = 30.0


class LogFollower:
    """One reader's place in a log, moved by its reads and by published rows."""

    def __init__(
        self,
        log: Log,
        after: str | None,
        topic: str | None,
        reconnect_timeout_s: float,
        *,
        was_read: bool,
        keeps_rows: bool,
    ) -> None:
        self._log = log
        # Where to read on, and the number and time of the row seen last while it is not behind.
        self._cursor = after
        self._seen = (0, 0)
        self._topic = topic
        self._reconnect_timeout_s = reconnect_timeout_s
        # Whether nothing new is to be expected.
        self._look = was_read
        # Whether rows that were given may not go, and which was the oldest at the last read.
        self._keeps_rows = keeps_rows
        self._first: int | None = None
        # Silence may also be a subscription that cannot be made: then the log is read.
        self.check_again_s: float = min(reconnect_timeout_s, _CHECK_AGAIN_S)
        # Whether the log is to be read before anything is heard.
        self.behind: bool = True

    async def read(self) -> Sequence[Row]:
        """Read the next rows from the log, perhaps none."""
        page = await self._read()
        seen = self._seen[0]
        if self._keeps_rows and self._first is not None and self._first <= seen < page.first:
            cursor = self._log.cursor_at(*self._seen)
            raise CursorGap(cursor, reason="trimmed", missed=0, resume_after=cursor)
        self._first = page.first
        self._cursor, self.behind = page.cursor, not page.at_end
        self._seen = self._log.position(page)
        return page.rows

    def hear(self, message: bytes | None) -> Sequence[Row]:
        """Return the published row if it is the next, else none; the log may have more."""
        row = None if message is None else read_message(message)
        # One of before the last row's time is of a history that was lost, and came late.
        if row is not None and row.n == self._seen[0] + 1 and row.ms >= self._seen[1]:
            self._seen = (row.n, row.ms)
            return (row,) if self._topic is None or row.topic == self._topic else ()
        seen, seen_ms = self._seen
        if row is None or row.n > seen or row.ms > seen_ms:
            # Rows may be missing in between, or the log began again: reading it decides.
            self._cursor, self.behind = f"{seen}-{seen_ms}", True
        return ()

    async def _read(self) -> Page:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._reconnect_timeout_s
        while True:
            # Raises at once, and not patiently, when the store itself was closed.
            _ = self._log.scripts.transport.sender
            try:
                page = await self._log.read(after=self._cursor, topic=self._topic, look=self._look)
            except BackendUnavailable as error:
                if error.final or loop.time() >= give_up_at:
                    raise
            else:
                self._look = False
                return page
            await asyncio.sleep(_RETRY_S)
