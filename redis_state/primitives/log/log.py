"""The log: append once per id, read after a cursor, follow live, and never skip silently.

Rows are numbered 1, 2, 3, … for the life of the log and never renumbered. A row's place in the
stream is ``<n>-<ms>``, and that text is the cursor. The number makes gaps countable. The time
separates rows whose number was given again after a rollback of the server. A cursor may name its
log too: ``<n>-<ms>-<log>``.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, TypeVar
from zlib import crc32

from redis_state import limits
from redis_state.errors import (
    CommandRefused,
    CursorGap,
    InvalidField,
    LeaseLost,
)
from redis_state.primitives.listed import behind_a_write
from redis_state.primitives.log.follower import LogFollower
from redis_state.primitives.log.rows import Appended, Bounds, Page, row_of
from redis_state.primitives.signal import Row, listening
from redis_state.scripts import Fence, LogLimits, Reply, ReplyCode, Scripts, raw
from redis_state.transport.key_groups import LogKeys

T = TypeVar("T")

_CURSOR = re.compile(r"([0-9]{1,18})-([0-9]{1,18})(-[0-9a-f]{8})?")
_APPEND_SLICE = 64
# A page ends at so many bytes: the replies to other calls wait behind its rows. Only few are read
# by a command that does not count them.
_READ_SLICE, _READ_BYTES, _FEW = 500, 1 << 20, 4
_MOST = 1_000_000_000
# Where a text points that is no cursor: at no row of any log.
_NOWHERE = -1
# A subscription that takes longer to confirm is not waited for.
_CONFIRMED_S = 1.0


class Log:
    """One log. A value: making one does no I/O."""

    def __init__(
        self,
        scripts: Scripts,
        keys: LogKeys,
        bounds: Bounds,
        *,
        announce: bool = False,
        named: bool = False,
    ) -> None:
        """Make a log; ``named`` if its cursors name it, so that none of another log is followed."""
        self.scripts: Scripts = scripts
        self.keys = keys
        self.bounds = bounds
        self.name: str = f"-{crc32(raw(keys.rows)):08x}" if named else ""
        self._limits = LogLimits(max(bounds.max_rows, 0), bounds.ttl_ms, announce)

    async def add(
        self, row: tuple[bytes, bytes], *, topic: str | None = None, fence: Fence | None = None
    ) -> bool:
        """Append a row, an entry id and its bytes, as `append` does; return whether it is new."""
        if not row[0]:
            raise InvalidField("row_id", "must not be empty")
        reply = await self.scripts.append_log(
            self.keys, row, self._limits, topic=topic, fence=fence
        )
        if reply.word is ReplyCode.LOST:
            raise self._lost(fence, reply)
        new: bool = reply.facts[0] == 1
        return new

    async def append(
        self,
        rows: Sequence[tuple[bytes, bytes]],
        *,
        topic: str | None = None,
        fence: Fence | None = None,
    ) -> Appended:
        """Append rows, each an entry id and its bytes, in order, skipping ids that are there.

        Atomic per 64 rows, with trimming and announcement. A crash leaves whole slices, in order;
        repeating the call completes them. Errors: OutcomeUnknown if the server is away or full
        behind a slice; LeaseLost under a stale fence; InvalidField for an empty id.
        """
        for row_id, _ in rows:
            if not row_id:
                raise InvalidField("row_id", "must not be empty")
        appended = Appended([], 0)
        # Behind the first slice, "the call did not happen" would not be true any more.
        with behind_a_write(self.scripts.transport.address, written=appended.numbers):
            for some in self._slices(rows):
                entries = tuple(chain.from_iterable(some))
                reply = await self.scripts.append_log(
                    self.keys, entries, self._limits, topic=topic, fence=fence
                )
                if reply.word is ReplyCode.LOST:
                    raise self._lost(fence, reply)
                appended.new += reply.facts[0]
                appended.numbers += reply.facts[1:]
        return appended

    def _lost(self, fence: Fence | None, reply: Reply) -> LeaseLost:
        epoch = fence.epoch if fence else 0
        return LeaseLost(self.keys.rows, epoch=epoch, current=reply.facts[0])

    def _slices(self, rows: Sequence[tuple[bytes, bytes]]) -> list[Sequence[tuple[bytes, bytes]]]:
        # A slice longer than the log could not be repeated: its first ids would be trimmed by then.
        max_rows = self.bounds.max_rows
        size = min(_APPEND_SLICE, max_rows) if max_rows > 0 else _APPEND_SLICE
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    async def read(
        self,
        *,
        after: str | None = None,
        count: int = _READ_SLICE,
        topic: str | None = None,
        look: bool = False,
    ) -> Page:
        """Read up to ``count`` rows after a cursor, oldest first; None begins with the oldest kept.

        Fewer if they have 1 MB. With ``look`` it first asks whether there is anything new: cheaper
        if, as in most polls, there is not. Errors: CursorGap when rows after the cursor are gone,
        or it is none of this log; InvalidField for a count below 1, or a cursor that is not text.
        """
        if count < 1:
            raise InvalidField("count", "must be at least 1")
        n, ms = (None, 0) if after is None else self._position(after)
        if look and await self._end() == ("0-0" if after is None else f"{n}-{ms}"):
            return Page([], after or self.cursor_at(0, 0), at_end=True)
        if n is not None and topic is None and ms:
            page = await self._read_on(n, ms, min(count, _FEW))
            if page is not None and (page.at_end or count <= _FEW or page.size >= _READ_BYTES):
                return page
        reply = await self.scripts.read_log(
            self.keys,
            after=n,
            after_ms=ms,
            count=min(count, _MOST),
            topic=topic,
            most_bytes=_READ_BYTES,
        )
        if reply.word is ReplyCode.GAP:
            raise self._gap(after or "", n or 0, reply)
        first, last, last_ms, found, *cut = reply.facts
        rows = [row_of(entry) for entry in found]
        # A full page may have more behind it; a short one ends where the log did when it was read.
        if len(rows) >= count or cut:
            return Page(rows, self.cursor(rows[-1]), at_end=rows[-1].n == last, first=first)
        return Page(rows, self.cursor_at(last, last_ms), at_end=True, first=first)

    async def _read_on(self, n: int, ms: int, count: int) -> Page | None:
        """Read after an existing row, with one command and no script.

        None if that row is missing: then only the log's head shows whether rows were trimmed.
        """
        end = min(count, _MOST) + 2  # the row itself, and one more to detect further rows
        place = f"{n}-{ms}"
        found = await self._xrange(place, "+", count=end)
        if not found or found[0][0] != place.encode():
            return None
        rows = [row_of(entry) for entry in found[1 : count + 1]]
        cursor = self.cursor(rows[-1]) if rows else self.cursor_at(n, ms)
        return Page(rows, cursor, at_end=len(found) < end)

    async def tail(
        self, *, after_id: bytes = b"", count: int, topic: str | None = None
    ) -> list[Row]:
        """Read the newest ``count`` rows after an id and of a topic, oldest first.

        In slices, as `read_all`. An unknown id is no cursor. A count below 1 gives no rows.
        """
        return await self._newest(None, count, after_id=after_id, topic=topic)

    async def before(self, n: int | None, count: int) -> tuple[list[Row], int]:
        """Read the rows of the ``count`` numbers before ``n``, or of the newest, oldest first.

        Also return the newest row's number. Numbers without a row are of rows that were dropped.
        """
        newest = int((await self._end()).partition("-")[0])
        behind = newest + 1 if n is None else min(n, newest + 1)
        if behind < 2:  # noqa: PLR2004 - the first row is 1
            return [], newest
        # Of the newest, also what came meanwhile.
        found = await self._newest(None if n is None else behind, count)
        rows = [row for row in found if row.n >= behind - count]
        return rows, max([newest, *(row.n for row in rows)])

    async def _newest(
        self, before: int | None, count: int, *, after_id: bytes = b"", topic: str | None = None
    ) -> list[Row]:
        """Read the newest ``count`` rows before a number, or of all, oldest first."""
        rows: list[Row] = []
        while len(rows) < count:
            reply = await self.scripts.tail_log(
                self.keys,
                after_id=after_id,
                before=rows[-1].n if rows else before,
                count=min(count - len(rows), _MOST),
                topic=topic,
                most_bytes=_READ_BYTES,
            )
            found, *cut = reply.facts
            rows += map(row_of, found)
            if not cut:
                break
        return rows[::-1]

    async def read_all(self) -> list[Row]:
        """Read every row kept, oldest first, in slices that hold up neither the server nor a call.

        Rows that are dropped while it reads are left out.
        """
        rows: list[Row] = []
        cursor: str | None = None
        while True:
            try:
                page = await self.read(after=cursor)
            except CursorGap as gap:
                if gap.reason not in ("trimmed", "rewound"):
                    return rows
                cursor = gap.resume_after
                # What was read of a history that was lost meanwhile is not there any more.
                rows = [row for row in rows if row.n <= self._position(cursor)[0]]
                continue
            rows += page.rows
            if page.at_end:
                return rows
            cursor = page.cursor

    async def find(self, row_id: bytes) -> str | None:
        """Return the cursor after the row of this id, or None if it is not kept."""
        reply = await self.scripts.find_row(self.keys, row_id=row_id)
        return None if reply.word is ReplyCode.MISSING else self.cursor_at(*reply.facts)

    def cursor(self, row: Row) -> str:
        """Return the cursor after a row of this log."""
        return f"{row.n}-{row.ms}{self.name}"

    def cursor_at(self, n: int, ms: int) -> str:
        """Return the cursor after the row of a number and a time."""
        return f"{n}-{ms}{self.name}"

    async def get(self, row_id: bytes) -> Row | None:
        """Return the row of this id, or None if it is not kept."""
        reply = await self.scripts.find_row(self.keys, row_id=row_id)
        if reply.word is ReplyCode.MISSING:
            return None
        entry = "{}-{}".format(*reply.facts)
        found = await self._xrange(entry, entry)
        return row_of(found[0]) if found else None

    async def end(self) -> str:
        """Return the cursor after the newest row: what comes later is what a watcher gets."""
        return await self._end() + self.name

    async def _xrange(self, start: str, end: str, *, count: int | None = None) -> Any:
        rows = self.keys.rows
        reading = self.scripts.transport.commands.xrange(rows, start, end, count=count)
        return await self.scripts.read(reading, rows, command="XRANGE")

    async def _end(self) -> str:
        # See lua/lib/log/log_head: it begins with the place of the newest row.
        head: bytes | None = await self.scripts.read(
            self.scripts.transport.commands.hget(self.keys.ids, ""), self.keys.ids, command="HGET"
        )
        return "0-0" if head is None else head.partition(b" ")[0].decode()

    def _position(self, cursor: str) -> tuple[int, int]:
        """Read a cursor's number and time. One that names no log is taken for one of this.

        Errors: InvalidField when it is not text.
        """
        if not isinstance(cursor, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidField("after", f"text is needed, not {type(cursor).__name__}")
        found = _CURSOR.fullmatch(cursor)
        if found is None or found.group(3) not in (None, self.name):
            return _NOWHERE, 0
        return int(found.group(1)), int(found.group(2))

    def place_of(self, cursor: str) -> tuple[int, int] | None:
        """Return the number and the time of the row before a cursor; None for no cursor of this."""
        n, ms = self._position(cursor)
        return None if n == _NOWHERE else (n, ms)

    def position(self, page: Page) -> tuple[int, int]:
        """Return the number and the time of the row before a page's cursor."""
        return self._position(page.cursor)

    def _gap(self, cursor: str, after: int, reply: Reply) -> CursorGap:
        reason, n, ms = reply.text(0), reply.facts[1], reply.facts[2]
        missed = n - after if reason == "trimmed" else None
        return CursorGap(cursor, reason=reason, missed=missed, resume_after=self.cursor_at(n, ms))

    async def clear(self) -> int:
        """Remove all rows; return how many. Numbers continue, so older cursors raise CursorGap."""
        return int((await self.scripts.clear_log(self.keys)).facts[0])

    async def call_followers(self) -> None:
        """Make all followers look at the log at once, whose keys were removed.

        A follower that this does not reach looks by itself within a minute.
        """
        with suppress(CommandRefused):
            await self.scripts.transport.commands.publish(self.keys.channel, b"")

    def follow(
        self,
        *,
        after: str | None = None,
        topic: str | None = None,
        reconnect_timeout_s: float = 300.0,
    ) -> AsyncGenerator[Row, None]:
        """Yield every row after a cursor once, in order, and then those to come.

        Survive lost connections and server restarts: what the subscription missed is read from the
        log. Close it (``aclose()``, or ``contextlib.aclosing``) when done.

        Errors: CursorGap instead of a silent skip; BackendUnavailable if the server is unreachable
        for ``reconnect_timeout_s``, or at once if waiting cannot help; InvalidField for a cursor
        that is not text, or less patience than a millisecond.
        """
        return self.follow_as(
            _itself, after=after, topic=topic, reconnect_timeout_s=reconnect_timeout_s
        )

    async def follow_as(
        self,
        read: Callable[[Row], T | None],
        *,
        after: str | None,
        topic: str | None,
        reconnect_timeout_s: float,
        was_read: bool = False,
        keeps_rows: bool = False,
    ) -> AsyncGenerator[T, None]:
        """Yield what ``read`` makes of each row, unless it is None. Like `follow`.

        What ``was_read`` up to the cursor just now is read on once the subscription is confirmed,
        and not also before. A caller that ``keeps_rows`` which it was given gets a CursorGap also
        when the log was cleared: it misses none, but is to give up those that it has.
        """
        limits.patience("reconnect_timeout_s", reconnect_timeout_s, least=limits.SHORTEST_S)
        follower = LogFollower(
            self, after, topic, reconnect_timeout_s, was_read=was_read, keeps_rows=keeps_rows
        )
        async with listening(self.scripts.transport, self.keys.channel) as subscription:
            if was_read:
                await subscription.next(within_s=_CONFIRMED_S)
                # Else it would take the silence after that for a lost subscription, and read again.
                subscription.hush()
            while True:
                if follower.behind:
                    rows = await follower.read()
                else:
                    rows = follower.hear(await subscription.next(within_s=follower.check_again_s))
                for row in rows:
                    value = read(row)
                    if value is not None:
                        yield value


def _itself(row: Row) -> Row:
    return row
