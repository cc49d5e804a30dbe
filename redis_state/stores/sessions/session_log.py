"""A session's log of models: the contract's newest rows, lossless pages, and live watching.

Updates and steering differ in their model only; everything that a reader can ask is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, ClassVar, Generic, Self, TypeVar

from redis_state import limits
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.signal import Row
from redis_state.scripts import Fence
from redis_state.serialization import codec
from redis_state.stores.base import Base
from redis_state.transport.key_groups import LogKeys
from redis_state.transport.key_text import LONGEST_REMEMBERED, entry_id

M = TypeVar("M")

# Where a row has its run, after the layout's version, six values and a long id.
_RUN = 8


@dataclass(frozen=True, slots=True)
class Entry(Generic[M]):
    """A model as it stands in its log. ``cursor`` reads on after it."""

    cursor: str
    value: M
    row: bytes = field(default=b"", repr=False, compare=False)

    @classmethod
    def reported(cls, cursor: str, value: M, run: int | None) -> Self:
        """Make one from what a document says of it, without its row."""
        row = b"" if run is None else codec.encode([None] * _RUN + [run])
        return cls(cursor, value, row)

    @property
    def run(self) -> int | None:
        """The epoch of the run of a task that published it; None for what no run has."""
        found: Any = codec.decode(self.row) if self.row else ()
        return found[_RUN] if len(found) > _RUN else None


@dataclass(frozen=True, slots=True)
class EntryPage(Generic[M]):
    """Entries in order; ``cursor`` reads on after them; ``at_end``: there are no more yet."""

    entries: list[Entry[M]]
    cursor: str
    at_end: bool

    @property
    def values(self) -> list[M]:
        """The models alone."""
        return [entry.value for entry in self.entries]


@dataclass(frozen=True, slots=True)
class RowsBefore(Generic[M]):
    """Rows with their numbers. The value of one that cannot be read is None."""

    entries: Sequence[tuple[int, Entry[M | None]]]
    newest: int


class SessionLog(ABC, Generic[M]):
    """Save, list, page through and watch one kind of a session's rows."""

    kind: ClassVar[str]

    def __init__(self, base: Base, bounds: Bounds) -> None:
        self._base = base
        self._bounds = bounds
        # A session that is at work is named again and again.
        self._remembered = lru_cache(maxsize=1024)(self._name)

    @property
    def bounds(self) -> Bounds:
        """How long the log grows."""
        return self._bounds

    @abstractmethod
    def keys(self, session_id: str) -> LogKeys:
        """Return the log's keys."""

    @abstractmethod
    def write(self, model: M) -> tuple[bytes, bytes]:
        """Write a model as an entry id and a row. The topic and a short id are not in the row."""

    @abstractmethod
    def read(self, session_id: str, row: Row) -> M:
        """Read a model. Errors: ValueError and its like when the row cannot be one."""

    @abstractmethod
    def place(self, model: M) -> tuple[str, str]:
        """Return a model's session and task."""

    def save(self, model: M, *, fence: Fence | None = None) -> Coroutine[Any, Any, bool]:
        """Append a model once per id, in call order; return whether it was new.

        Atomic with trimming and announcement. Errors: LeaseLost under a stale fence.
        """
        session_id, task_id = self.place(model)
        row = self.write(model)
        return self._log(session_id).add(row, topic=task_id, fence=fence)

    async def _newest(
        self, session_id: str, after: bytes, task_id: str | None, limit: int
    ) -> list[M]:
        rows = await self._log(session_id).tail(after_id=after, count=limit, topic=task_id)
        found = (self._read(session_id, row) for row in rows)
        return [model for model in found if model is not None]

    async def list(
        self, session_id: str, *, task_id: str | None, since_id: str | None, limit: int
    ) -> list[M]:
        """Return the newest ``limit`` models after ``since_id`` and of a task, oldest first."""
        after = entry_id("since_id", since_id) if since_id else b""
        return await self._newest(session_id, after, task_id, limit)

    async def page(
        self, session_id: str, *, after: str | None, limit: int, task_id: str | None
    ) -> EntryPage[M]:
        """Return up to ``limit`` models after a cursor, oldest first. Errors: CursorGap."""
        limits.count("limit", limit)
        log = self._log(session_id)
        # As a rule a poll finds nothing new, and a first page something.
        look = after is not None
        page = await log.read(after=after, count=limit, topic=task_id, look=look)
        entries = [
            Entry(log.cursor(row), value, row.data)
            for row in page.rows
            if (value := self._read(session_id, row)) is not None
        ]
        return EntryPage(entries, page.cursor, page.at_end)

    async def before(self, session_id: str, n: int | None, *, limit: int) -> RowsBefore[M]:
        """Return the rows of the ``limit`` numbers before ``n``, or of the newest, oldest first."""
        log = self._log(session_id)
        rows, newest = await log.before(n, limit)
        entries = [
            (row.n, Entry(log.cursor(row), self._read(session_id, row), row.data)) for row in rows
        ]
        return RowsBefore(entries, newest)

    def watch(
        self,
        session_id: str,
        *,
        after: str | None,
        task_id: str | None,
        reconnect_timeout_s: float,
        was_read: bool = False,
    ) -> AsyncGenerator[Entry[M], None]:
        """Yield every model after a cursor once, in order, then live. Errors: CursorGap.

        ``was_read`` says that the log was read up to the cursor just now.
        """
        read_row, kind, read_model = self._base.read_row, self.kind, partial(self.read, session_id)

        log = self._log(session_id)
        cursor = log.cursor

        def read(row: Row) -> Entry[M] | None:
            value = read_row(session_id, kind, row, read_model)
            return None if value is None else Entry(cursor(row), value, row.data)

        return log.follow_as(
            read,
            after=after,
            topic=task_id,
            reconnect_timeout_s=reconnect_timeout_s,
            was_read=was_read,
        )

    def watch_rows(
        self, session_id: str, *, after: str | None, reconnect_timeout_s: float
    ) -> AsyncGenerator[Entry[M | None], None]:
        """Yield every row like `watch`; the value of one that cannot be read is None.

        So the rows' numbers follow one another. It is for callers that keep rows: CursorGap also
        says that those which were given are gone from the log, and none is missed.
        """
        log = self._log(session_id)

        def read(row: Row) -> Entry[M | None]:
            return Entry(log.cursor(row), self._read(session_id, row), row.data)

        return log.follow_as(
            read,
            after=after,
            topic=None,
            reconnect_timeout_s=reconnect_timeout_s,
            keeps_rows=True,
        )

    async def cursor(self, session_id: str, row_id: str | None) -> str | None:
        """Return the cursor after a model of this id, or after the newest for None."""
        if row_id is None:
            return await self._log(session_id).end()
        return await self._log(session_id).find(entry_id("id", row_id))

    async def clear(self, session_id: str) -> None:
        """Drop all rows. Cursors into them give a CursorGap."""
        await self._log(session_id).clear()

    async def call_followers(self, session_id: str) -> None:
        """Make all who watch look at the log at once, whose keys were removed."""
        await self._log(session_id).call_followers()

    def _read(self, session_id: str, row: Row) -> M | None:
        return self._base.read_row(session_id, self.kind, row, partial(self.read, session_id))

    def _log(self, session_id: str) -> Log:
        # A value that is no text is no key of a cache: built again, it is refused by its field.
        if type(session_id) is str and len(session_id) <= LONGEST_REMEMBERED:
            return self._remembered(session_id)
        return self._name(session_id)

    def _name(self, session_id: str) -> Log:
        keys = self.keys(session_id)
        return Log(self._base.scripts, keys, self._bounds, announce=True, named=True)


def long_id(row_id: bytes, full: str) -> Sequence[str]:
    """Return what a row must carry of its id: nothing, or all of it if the entry id is a digest."""
    return () if row_id == full.encode("utf-8", "surrogatepass") else (full,)


def reported_by(values: Sequence[Any], run: int, *, size: int) -> Sequence[Any]:
    """Add the run of a row to its values: ``size`` plain ones, then an optional long id."""
    return [*values, run] if len(values) > size else [*values, None, run]


def full_id(row: Row, carried: Sequence[Any]) -> Any:
    """Return a row's id as its writer gave it."""
    if carried and carried[0] is not None:
        return carried[0]
    return row.id.decode("utf-8", "surrogatepass")
