"""Registered tasks: who a task is, where it stands, and all that was told of it, in order.

Of an owner's tasks everything is in one slot, so that an event, the state it says and the lists
that are counted change in one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from redis_state.errors import (
    CorruptState,
    CursorGap,
    InvalidField,
    InvalidTransition,
    TaskUnknown,
)
from redis_state.models.registered_tasks import (
    A2AState,
    Document,
    EventKind,
    EventSummary,
    Registration,
    TaskCounts,
    TaskEvent,
    TaskInfo,
)
from redis_state.primitives.log import Bounds, Log
from redis_state.primitives.record import new_write_id
from redis_state.primitives.signal import Row
from redis_state.scripts import Reply, ReplyCode
from redis_state.serialization.rows import pack, unpack
from redis_state.stores.base import Base, ms
from redis_state.transport.commands import Commands
from redis_state.transport.keys import TaskStateKeys, entry_id

_START = "0-0"
_SLICE = 100
# How often a task of which nothing was told yet is looked at, by who waits for its first event.
_LOOK_AGAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class _StoredTask:
    """A task's own fields, and the place of its newest event."""

    context_id: str
    stream_id: str
    state: A2AState
    created_us: int
    completed_us: int | None
    last: int
    place: str


class RegisteredTaskStore:
    """Register, tell, read, follow and drop one owner's tasks."""

    def __init__(self, base: Base, *, owner: str, max_event_bytes: int) -> None:
        self._base = base
        self._owner = owner
        self._max_bytes = max_event_bytes
        self._active_ms = ms(base.settings.active_task_ttl)
        self._kept_ms = ms(base.settings.finished_task_ttl)
        self._max_rows = base.settings.max_updates_per_a2a_task

    async def register(self, task_id: str, *, context_id: str, stream_id: str) -> Registration:
        """Register a task as working, unless there is one. Atomic: of many callers one creates."""
        keys, write = self._keys(task_id), new_write_id()
        while True:
            reply = await self._base.scripts.register_task_state(
                keys,
                task_id=task_id,
                context_id=context_id,
                stream_id=stream_id,
                state=A2AState.WORKING,
                write=write,
                ttl_ms=self._active_ms,
            )
            info = await self._info(task_id, keys, reply, events=True)
            # None: it was dropped meanwhile, so this caller may be the one after all.
            if info is not None:
                return Registration(reply.word is ReplyCode.OK, info)

    async def record(
        self, task_id: str, event: Document, told: EventSummary, *, event_id: str | None
    ) -> TaskEvent:
        """Append an event once per id and move the task to the state it says. Atomic.

        Errors: InvalidTransition if the task has ended, TaskUnknown, InvalidField for the id of
        another event and for an event that is too large; nothing is written then.
        """
        state = told.state
        row = pack([told.kind, state, event])
        if len(row) > self._max_bytes:
            raise InvalidField("event", f"{len(row)} bytes, {self._max_bytes} are allowed")
        name = new_write_id() if event_id is None else event_id
        reply = await self._base.scripts.record_task_event(
            self._keys(task_id),
            task_id=task_id,
            event_id=entry_id("event_id", name),
            state=state,
            ends=state is not None and state.is_terminal,
            row=row,
            max_rows=self._max_rows,
            active_ms=self._active_ms,
            kept_ms=self._kept_ms,
        )
        if reply.word is ReplyCode.MISSING:
            raise TaskUnknown(task_id)
        if reply.word is ReplyCode.DENIED:
            wanted = state or A2AState.WORKING
            raise InvalidTransition(task_id, current=reply.text(0), wanted=wanted)
        # What is told again may have its keys in another order.
        if reply.word is ReplyCode.TAKEN and unpack(reply.facts[1], 3) != unpack(row, 3):
            raise InvalidField("event_id", "another event was recorded under it")
        cursor = reply.text(0) + self._log(self._keys(task_id)).name
        return TaskEvent(cursor, told.kind, state, unpack(row, 3)[2])

    async def load(self, task_id: str, *, events: bool) -> TaskInfo | None:
        """Read a task as it stands at one moment."""
        keys = self._keys(task_id)
        while True:
            reply = await self._base.scripts.read_task_state(keys)
            if reply.word is ReplyCode.MISSING:
                return None
            info = await self._info(task_id, keys, reply, events=events)
            if info is not None:
                return info

    async def follow(
        self, task_id: str, *, after: str | None, patience_s: float
    ) -> AsyncGenerator[TaskEvent, None]:
        """Yield every event after a cursor once, in order, go on live, and end with the task.

        Errors: TaskUnknown, also once it is dropped; CursorGap when events after the cursor, None
        being the first, are not kept; BackendUnavailable.
        """
        keys = self._keys(task_id)
        found = await self._found(keys)
        if found is None:
            raise TaskUnknown(task_id)
        log = self._log(keys)
        if found.completed_us is not None and after in (found.place, found.place + log.name):
            return
        start = _START if after is None else after
        rows = log.follow(after=start, patience_s=patience_s)
        async with aclosing(rows):
            try:
                row = await self._first(task_id, keys, rows)
                while True:
                    told = self._read(task_id, log, row)
                    if told is not None:
                        yield told
                    if await self._is_last(keys, row, told):
                        return
                    row = await anext(rows)
            except CursorGap as gap:
                if await self._found(keys) is None:
                    raise TaskUnknown(task_id) from gap
                raise

    async def field(self, task_id: str, name: str) -> bytes | None:
        """Read one field of a task."""
        key = self._base.keys.registered_task(self._owner, task_id)
        value: bytes | None = await self._commands.hget(key, name)
        return value

    async def set_stream(self, task_id: str, stream_id: str) -> bool:
        """Set a task's stream; return False if there is no such task."""
        keys = self._keys(task_id)
        reply = await self._base.scripts.set_task_stream(keys, stream_id=stream_id)
        return reply.word is ReplyCode.OK

    async def drop_before(self, moment: datetime | timedelta) -> int:
        """Drop the tasks that ended before a moment, or longer ago by the server's clock.

        Each in a step of its own. Returns how many this call dropped: of two calls at once each
        counts its own.
        """
        before_us = await self._microseconds(moment)
        completed = self._base.keys.registered_completed(self._owner)
        total = 0
        while True:
            names: list[bytes] = await self._commands.zrange_up_to(
                completed, f"({before_us}", offset=0, count=_SLICE
            )
            tasks = [name.decode("utf-8", "surrogatepass") for name in names]
            replies = await asyncio.gather(*(self._drop(task, before_us) for task in tasks))
            total += replies.count(ReplyCode.OK)
            if len(tasks) < _SLICE or set(replies) == {ReplyCode.STALE}:
                return total

    async def counts(self) -> TaskCounts:
        """Count the tasks, without looking at them."""
        keys = self._base.keys
        reply = await self._base.scripts.count_task_states(
            active=keys.registered_active(self._owner), kept=keys.registered_kept(self._owner)
        )
        return TaskCounts(*reply.facts)

    async def _drop(self, task_id: str, before_us: int) -> ReplyCode:
        reply = await self._base.scripts.drop_task_state(
            self._keys(task_id), task_id=task_id, before_us=before_us
        )
        return reply.word

    async def _microseconds(self, moment: datetime | timedelta) -> int:
        if isinstance(moment, datetime):
            return _us(moment - datetime.fromtimestamp(0, UTC))
        seconds, micros = await self._commands.time()
        return int(seconds) * 1_000_000 + int(micros) - _us(moment)

    async def _found(self, keys: TaskStateKeys) -> _StoredTask | None:
        reply = await self._base.scripts.read_task_state(keys)
        return None if reply.word is ReplyCode.MISSING else _found(keys, reply)

    async def _info(
        self, task_id: str, keys: TaskStateKeys, reply: Reply, *, events: bool
    ) -> TaskInfo | None:
        """Complete what a script found by its events; None if they are gone by now."""
        found = _found(keys, reply)
        log = self._log(keys)
        rows = await self._rows(log, found) if events else []
        if rows is None:
            return None
        told = self._base.read_rows(self._owner, f"event of {task_id}", rows, partial(_told, log))
        return TaskInfo(
            task_id=task_id,
            context_id=found.context_id,
            stream_id=found.stream_id,
            events=[one.event for one in told],
            created_at=_moment(found.created_us),
            completed_at=None if found.completed_us is None else _moment(found.completed_us),
            current_state=found.state,
            cursor=found.place + log.name,
            dropped=found.last - len(rows) if events else 0,
        )

    async def _rows(self, log: Log, found: _StoredTask) -> list[Row] | None:
        """Read the events up to the newest found; None if they are of another life by now."""
        rows = list[Row]()
        after: str | None = None
        while _number(after) < found.last:
            try:
                page = await log.read(after=after)
            except CursorGap as gap:
                if gap.reason != "trimmed":
                    return None
                # What was read is not kept any more: the rest alone has no hole.
                rows, after = [], gap.resume_after
                continue
            rows += [row for row in page.rows if row.n <= found.last]
            after = page.cursor
            if page.at_end and _number(after) < found.last:
                return None
        return None if rows and rows[-1].cursor != found.place else rows

    async def _first(
        self, task_id: str, keys: TaskStateKeys, rows: AsyncGenerator[Row, None]
    ) -> Row:
        """Wait for the first event: a task that expires before it had one tells nobody."""
        first = asyncio.ensure_future(anext(rows))
        try:
            while True:
                done, _ = await asyncio.wait({first}, timeout=_LOOK_AGAIN_S)
                if done:
                    return first.result()
                if await self._found(keys) is None:
                    raise TaskUnknown(task_id)
        finally:
            first.cancel()
            await asyncio.wait({first})

    async def _is_last(self, keys: TaskStateKeys, row: Row, told: TaskEvent | None) -> bool:
        if told is not None:
            return told.ends_task
        # It cannot be read, so the task itself must tell.
        found = await self._found(keys)
        return found is None or (found.completed_us is not None and row.cursor == found.place)

    def _read(self, task_id: str, log: Log, row: Row) -> TaskEvent | None:
        return self._base.read_row(self._owner, f"event of {task_id}", row, partial(_told, log))

    @property
    def _commands(self) -> Commands:
        return self._base.scripts.transport.commands

    def _keys(self, task_id: str) -> TaskStateKeys:
        keys, owner = self._base.keys, self._owner
        return TaskStateKeys(
            keys.registered_task(owner, task_id),
            keys.registered_active(owner),
            keys.registered_completed(owner),
            keys.registered_kept(owner),
            keys.registered_events(owner, task_id),
        )

    def _log(self, keys: TaskStateKeys) -> Log:
        bounds = Bounds(self._max_rows, self._active_ms)
        return Log(self._base.scripts, keys.events, bounds, announce=True, named=True)


def _found(keys: TaskStateKeys, reply: Reply) -> _StoredTask:
    flat, last, last_ms = reply.facts
    fields: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
    try:
        completed = fields.get(b"completed")
        return _StoredTask(
            context_id=fields[b"context"].decode("utf-8", "surrogatepass"),
            stream_id=fields[b"stream"].decode("utf-8", "surrogatepass"),
            state=A2AState(fields[b"state"].decode()),
            created_us=int(fields[b"created"]),
            completed_us=None if completed is None else int(completed),
            last=last,
            place=f"{last}-{last_ms}",
        )
    except (KeyError, ValueError) as error:
        raise CorruptState(keys.task, f"not a registered task: {type(error).__name__}") from None


def _told(log: Log, row: Row) -> TaskEvent:
    kind, state, event = unpack(row.data, 3)
    known = None if state is None else A2AState(state)
    return TaskEvent(log.cursor(row), EventKind(kind), known, event)


def _number(cursor: str | None) -> int:
    return 0 if cursor is None else int(cursor.partition("-")[0])


def _moment(us: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us)


def _us(length: timedelta) -> int:
    return length // timedelta(microseconds=1)
