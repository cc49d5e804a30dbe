"""The tasks of a task state manager in the store of A2A tasks: states, and the events behind them.

An event, the state that it gives its task and the lists that are counted change in one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from functools import partial

from redis_state.errors import (
    CorruptState,
    CursorGap,
    InvalidField,
    InvalidTransition,
    TaskUnknown,
    VersionConflict,
)
from redis_state.models.hosts.a2a import (
    A2AState,
    Document,
    EventKind,
    EventSummary,
    Registration,
    TaskCounts,
    TaskEvent,
    TaskInfo,
)
from redis_state.primitives.log.log import Log
from redis_state.primitives.signal import Row
from redis_state.scripts import ReplyCode, raw
from redis_state.serialization.rows import pack, unpack
from redis_state.stores.a2a.task_model import (
    ABSENT,
    UNLESS_ENDED,
    A2ALimits,
    Draft,
    Listing,
    ListRequest,
    Phase,
    Ref,
    VersionedTask,
)
from redis_state.stores.a2a.tasks import A2ATasks, new_write
from redis_state.stores.base import Base, ms
from redis_state.transport.key_text import entry_id
from redis_state.transport.keys import manager_scope

_START = "0-0"
_SLICE = 100
# How often a subscriber reads a task that has no event yet.
_CHECK_AGAIN_S = 30.0
# How tasks are listed: the states themselves are nobody's filter.
_ACTIVE, _ENDED = "active", "ended"


class TaskEvents:
    """Register, record, read, follow and drop the tasks of one owner."""

    def __init__(self, base: Base, *, owner: str, max_event_bytes: int) -> None:
        settings = base.settings
        self._base = base
        self._source = owner
        self._scope = manager_scope(owner)
        self._tasks = A2ATasks(
            base,
            A2ALimits(
                active_ms=ms(settings.active_task_ttl),
                finished_ms=ms(settings.finished_task_ttl),
                max_events=settings.max_updates_per_a2a_task,
                max_bytes=max_event_bytes,
            ),
        )

    async def register(self, task_id: str, *, context_id: str, stream_id: str) -> Registration:
        """Register a task as working, unless there is one. Atomic: of many callers one creates."""
        ref, write = self._ref(task_id), new_write("r")
        draft = Draft(
            state=A2AState.WORKING,
            listing=Listing.now(context_id, _ACTIVE, newest=False),
            event=None,
            fields={"context": raw(context_id), "stream": raw(stream_id)},
        )
        while True:
            try:
                await self._tasks.write(ref, draft, ABSENT, write=write)
                created = True
            except (VersionConflict, InvalidTransition):
                created = False
            info = await self.load(task_id, events=True)
            # None: it was dropped meanwhile, so this caller may be the one after all.
            if info is not None:
                return Registration(created, info)

    async def record(
        self, task_id: str, event: Document, summary: EventSummary, *, event_id: str | None
    ) -> TaskEvent:
        """Append an event once per id and move the task to the state that it gives. Atomic.

        Errors: InvalidTransition if the task has ended, TaskUnknown, InvalidField for the id of
        another event and for an event that is too large; nothing is written then.
        """
        ref, state = self._ref(task_id), summary.state
        ends = state is not None and state.is_terminal
        row = pack([summary.kind, state, event])
        draft = Draft(
            state=state or "",
            phase=Phase.ENDED if ends else Phase.OPEN,
            listing=Listing.now(state=_ENDED, newest=False) if ends else Listing(),
            event=row,
        )
        write = entry_id("event_id", new_write("e") if event_id is None else event_id)
        try:
            written = await self._tasks.write(ref, draft, UNLESS_ENDED, write=write)
        except InvalidTransition as error:
            wanted = state or A2AState.WORKING
            raise InvalidTransition(task_id, current=error.current, wanted=wanted) from None
        if written is None:
            raise TaskUnknown(task_id)
        # A repeated event may have its keys in another order.
        if written.before is not None and unpack(written.before, 3) != unpack(row, 3):
            raise InvalidField("event_id", "another event was recorded under it")
        cursor = written.version.cursor + self._log(ref).name
        return TaskEvent(cursor, summary.kind, state, unpack(row, 3)[2])

    async def load(self, task_id: str, *, events: bool) -> TaskInfo | None:
        """Read a task as it stands at one moment."""
        ref, before = self._ref(task_id), None
        while True:
            found = await self._tasks.read(ref)
            if found is None:
                return None
            # The same task twice without its events: the server has lost them.
            lost = before is not None and found.version == before.version
            info = await self._info(ref, found, events=events, lost=lost)
            if info is not None:
                return info
            before = found

    async def follow(
        self, task_id: str, *, after: str | None, reconnect_timeout_s: float
    ) -> AsyncGenerator[TaskEvent, None]:
        """Yield every event after a cursor once, in order, continue live, and end with the task.

        Errors: TaskUnknown, also once it is dropped; CursorGap when events after the cursor, None
        being the first, are not kept; BackendUnavailable.
        """
        ref = self._ref(task_id)
        found = await self._tasks.read(ref)
        if found is None:
            raise TaskUnknown(task_id)
        log, place = self._log(ref), found.version.cursor
        if found.phase is Phase.ENDED and after in (place, place + log.name):
            return
        start = _START if after is None else after
        rows = log.follow(after=start, reconnect_timeout_s=reconnect_timeout_s)
        async with aclosing(rows):
            try:
                row = await self._first(ref, rows)
                while True:
                    event = self._read(task_id, log, row)
                    if event is not None:
                        yield event
                    if row.data[:1] == _LAST:
                        return
                    row = await anext(rows)
            except CursorGap as gap:
                if await self._tasks.read(ref) is None:
                    raise TaskUnknown(task_id) from gap
                raise

    async def field(self, task_id: str, name: str) -> bytes | None:
        """Read one field of a task."""
        commands = self._base.scripts.transport.commands
        key = self._base.keys.a2a_task(self._scope, task_id)
        value: bytes | None = await commands.hget(key, name)
        return value

    async def set_stream(self, task_id: str, stream_id: str) -> bool:
        """Set a task's stream; return False if there is no such task."""
        return await self._tasks.name_stream(self._ref(task_id), stream_id)

    async def drop_before(self, moment: datetime | timedelta) -> int:
        """Drop the tasks that ended before a moment, or longer ago by the server's clock.

        Each in a step of its own. Returns how many this call dropped: of two calls at once each
        counts its own.
        """
        before_us = await self._microseconds(moment)
        total = 0
        while True:
            ids = await self._tasks.listed_before(self._scope, _ENDED, before_us, limit=_SLICE)
            drop = partial(self._tasks.drop, before_us=before_us)
            words = await asyncio.gather(
                *(drop(self._ref(task_id), write=new_write("d")) for task_id in ids)
            )
            total += words.count(ReplyCode.OK)
            if len(ids) < _SLICE or set(words) == {ReplyCode.STALE}:
                return total

    async def counts(self) -> TaskCounts:
        """Count the tasks, without reading them."""
        page = await self._tasks.list(self._scope, ListRequest(state=_ENDED, size=0, whole=False))
        return TaskCounts(active=page.others, completed=page.total)

    async def _microseconds(self, moment: datetime | timedelta) -> int:
        if isinstance(moment, datetime):
            return _us(moment - datetime.fromtimestamp(0, UTC))
        seconds, micros = await self._base.scripts.transport.commands.time()
        return int(seconds) * 1_000_000 + int(micros) - _us(moment)

    async def _info(
        self, ref: Ref, found: VersionedTask, *, events: bool, lost: bool
    ) -> TaskInfo | None:
        """Complete a task by its events; None if they are gone by now, unless they are lost."""
        log = self._log(ref)
        rows = await self._rows(log, found) if events and not lost else []
        if rows is None:
            return None
        what = f"event of {ref.task_id}"
        read = self._base.read_rows(self._source, what, rows, partial(_event, log))
        ended = found.phase is Phase.ENDED
        try:
            return TaskInfo(
                task_id=ref.task_id,
                context_id=found.fields["context"].decode("utf-8", "surrogatepass"),
                stream_id=found.fields["stream"].decode("utf-8", "surrogatepass"),
                events=[one.event for one in read],
                created_at=_moment(found.fields["created"]),
                completed_at=_moment(found.fields["updated"]) if ended else None,
                current_state=A2AState(found.state),
                cursor=found.version.cursor + log.name,
                dropped=found.version.n - len(rows) if events else 0,
            )
        except (KeyError, ValueError) as error:
            key = self._base.keys.a2a_task(ref.scope, ref.task_id)
            raise CorruptState(key, f"not a registered task: {type(error).__name__}") from None

    async def _rows(self, log: Log, found: VersionedTask) -> list[Row] | None:
        """Read the events up to the newest found; None if they are of another life by now."""
        last, rows, after = found.version.n, list[Row](), None
        while _number(after) < last:
            try:
                page = await log.read(after=after)
            except CursorGap as gap:
                if gap.reason != "trimmed":
                    return None
                # What was read is not kept any more: the rest alone has no gap.
                rows, after = [], gap.resume_after
                continue
            rows += [row for row in page.rows if row.n <= last]
            after = page.cursor
            if page.at_end and _number(after) < last:
                return None
        return None if rows and rows[-1].cursor != found.version.cursor else rows

    async def _first(self, ref: Ref, rows: AsyncGenerator[Row, None]) -> Row:
        """Wait for the first event: a task that expires before it had one publishes nothing."""
        first = asyncio.ensure_future(anext(rows))
        try:
            while True:
                done, _ = await asyncio.wait({first}, timeout=_CHECK_AGAIN_S)
                if done:
                    return first.result()
                if await self._tasks.read(ref) is None:
                    raise TaskUnknown(ref.task_id)
        finally:
            first.cancel()
            await asyncio.wait({first})

    def _read(self, task_id: str, log: Log, row: Row) -> TaskEvent | None:
        return self._base.read_row(self._source, f"event of {task_id}", row, partial(_event, log))

    def _ref(self, task_id: str) -> Ref:
        return Ref(self._scope, task_id)

    def _log(self, ref: Ref) -> Log:
        return self._tasks.log(ref, named=True)


_LAST = Phase.ENDED.encode()


def _event(log: Log, row: Row) -> TaskEvent:
    kind, state, event = unpack(row.data[1:], 3)
    known = None if state is None else A2AState(state)
    return TaskEvent(log.cursor(row), EventKind(kind), known, event)


def _number(cursor: str | None) -> int:
    return 0 if cursor is None else int(cursor.partition("-")[0])


def _moment(us: bytes) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=int(us))


def _us(length: timedelta) -> int:
    return length // timedelta(microseconds=1)
