"""The rows of one task for a chat: those that were published, then those that come."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from redis_state.errors import CursorGap
from redis_state.gateway.streaming import events
from redis_state.gateway.streaming.client_stream import HasRight
from redis_state.gateway.streaming.events import Frame, FrameWriter, position
from redis_state.gateway.streaming.hub import Hub
from redis_state.gateway.streaming.reading import read_events
from redis_state.gateway.streaming.subtree import TaskSubtree
from redis_state.models import StateUpdate, UpdateType
from redis_state.stores.sessions.session_log import EntryPage

Visible: TypeAlias = Callable[[StateUpdate], StateUpdate | None]

_PAGE = 256


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One update as a caller may see it, and the cursor after it.

    One that ``is_old`` is more than a client that joins is shown: see ``most_bytes``.
    """

    cursor: str
    update: StateUpdate = field(repr=False)
    is_old: bool = False


@dataclass(frozen=True, slots=True)
class StreamNotice:
    """What is no row: ``resync``, ``end`` or ``expired``."""

    name: str
    data: dict[str, Any] = field(repr=False)

    @property
    def kept_until(self) -> str | None:
        """Up to where what was read before is valid, if the server has lost what followed."""
        match self.name, self.data:
            case "resync", {"reason": reason, "resume_after": str(cursor)} if reason != "trimmed":
                return cursor
            case _:
                return None


Heard: TypeAlias = TaskRow | StreamNotice | bytes


@dataclass(frozen=True, slots=True)
class TaskRows:
    """The rows of one task, cut for one caller; with a ``subtree`` those of the tasks below it too.

    Of those that were published the newest are not old: ``most_bytes`` of them, or one.
    """

    hub: Hub
    session_id: str
    task_id: str
    most_bytes: int
    visible: Visible | None = None
    expires_at: datetime | None = None
    subtree: TaskSubtree | None = None
    has_right: HasRight | None = None

    async def end(self) -> str:
        """Return the cursor after the session's newest row."""
        return await self.hub.store.updates.cursor(self.session_id, None) or "0-0"

    async def check(self, after: str) -> None:
        """Refuse a place whose next rows are missing. Errors: CursorGap; those of the store."""
        if position(after)[0]:
            await self.hub.store.read_updates(self.session_id, after=after, limit=1)

    async def past(self, until: str) -> AsyncGenerator[TaskRow]:
        """Give the rows that are kept, up to a cursor. Holds those that are not old.

        Errors: those of the store.
        """
        writer, size = FrameWriter(self.session_id), 0
        newest: deque[tuple[str, Frame]] = deque()
        async with aclosing(self._frames(writer, until)) as frames:
            async for cursor, frame in frames:
                newest.append((cursor, frame))
                size += len(frame.data)
                while size > self.most_bytes and len(newest) > 1:
                    old, left = newest.popleft()
                    size -= len(left.data)
                    if row := self._row(writer, old, left, is_old=True):
                        yield row
        while newest:
            if row := self._row(writer, *newest.popleft()):
                yield row

    def _row(
        self, writer: FrameWriter, cursor: str, frame: Frame, *, is_old: bool = False
    ) -> TaskRow | None:
        # Read back, so that tokens are cut as in every other stream.
        update = frame.update()
        shown = update if self.visible is None else self.visible(update)
        if shown is None:
            return None
        if shown is not update:
            (cut,) = read_events(writer.row(cursor, shown))
            shown = StateUpdate.model_validate(cut.data)
        return TaskRow(cursor, shown, is_old)

    async def _frames(self, writer: FrameWriter, until: str) -> AsyncGenerator[tuple[str, Frame]]:
        last = position(until)
        topic, subtree = self.task_id if self.subtree is None else None, self.subtree
        async with aclosing(self._pages(None, topic)) as pages:
            async for page in pages:
                for entry in page.entries:
                    frame = writer.frame(entry)
                    if frame.n > last[0]:
                        return
                    if frame.data and (subtree is None or subtree.has(frame)):
                        yield entry.cursor, frame
                if position(page.cursor)[0] >= last[0]:
                    return

    async def moves_after(self, cursor: str) -> bool:
        """Return whether a row behind a cursor has a status, also a hidden one."""
        after = cursor if position(cursor)[0] else None
        async with aclosing(self._pages(after, self.task_id)) as pages:
            async for page in pages:
                if any(row.value.update_type is UpdateType.STATUS_CHANGE for row in page.entries):
                    return True
        return False

    async def _pages(
        self, after: str | None, topic: str | None
    ) -> AsyncGenerator[EntryPage[StateUpdate]]:
        """Read a task's rows, or all, up to the end of the log; pass over those that are lost."""
        while True:
            try:
                page = await self.hub.store.read_updates(
                    self.session_id, after=after, limit=_PAGE, task_id=topic
                )
            except CursorGap as gap:
                after = gap.resume_after
                continue
            yield page
            if page.at_end:
                return
            after = page.cursor

    async def coming(self, after: str) -> AsyncGenerator[Heard]:
        """Give the rows behind a cursor as they come, until the task is terminal.

        Bytes are what keeps a connection open, or says when to connect again. Errors: TaskUnknown,
        and those of the store.
        """
        chunks = self.hub.frames(
            self.session_id,
            after=events.ALL if position(after)[0] == 0 else after,
            task_id=self.task_id,
            visible=self.visible,
            expires_at=self.expires_at,
            subtree=self.subtree,
            has_right=self.has_right,
        )
        async with aclosing(chunks):
            async for heard in _heard(chunks):
                yield heard


async def _heard(chunks: AsyncIterator[bytes]) -> AsyncGenerator[Heard]:
    async for chunk in chunks:
        found = read_events(chunk)
        for each in found:
            if each.cursor is None:
                yield StreamNotice(each.name, each.data)
            else:
                yield TaskRow(each.cursor, StateUpdate.model_validate(each.data))
        if not found:
            # Without an id: that of the hub is no place of this stream.
            lines = [line for line in chunk.split(b"\n") if not line.startswith(b"id:")]
            yield b"\n".join(lines)
