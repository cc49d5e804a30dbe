"""Audit events in PostgreSQL. Everything else of a store stays in Redis."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from psycopg import AsyncConnection
from pydantic import SecretStr

from redis_state.errors import BackendError, BackendUnavailable
from redis_state.futures import unawaited
from redis_state.models import StoredEvent
from redis_state.postgres.address import shown
from redis_state.postgres.link import PostgresLink
from redis_state.primitives.listed import write_listed
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.signal import Row
from redis_state.stores.base import Base, ms
from redis_state.stores.durable_events.forwarder import Forwarder, ForwardReport
from redis_state.stores.durable_events.schema import MIGRATIONS, SCHEMA
from redis_state.stores.durable_events.table import PIECE, EventTable, NewEvent
from redis_state.stores.durable_events.waiting import EventBacklog, EventList
from redis_state.stores.durable_events.writer import EventWriter
from redis_state.stores.kept_elsewhere import ElsewhereSigns
from redis_state.stores.traces.audit_events import EventStore, trace_of, write_event
from redis_state.timeouts import timeout

log: logging.Logger = logging.getLogger(__name__)

# How long events live in Redis that PostgreSQL does not have.
_KEEP_MS = 400 * 86_400_000
# Many events at once are one step each so many.
_SLICE = 64
# How often a process looks for what others have left; with nothing of its own to be moved.
_IDLE_S, _IDLE_SYNC_S = 5.0, 30.0
_CLOSE_S = 5.0
# Traces that a process makes due at its end. While PostgreSQL is away there may be any number.
_MOST_OWN = 10_000
_DAY = timedelta(days=1)
_FIRST = datetime.min.replace(tzinfo=UTC)
_COUNTED = ("events", "missed", "postponed", "refused")
# How much later than it should be an entry may be due.
_MARGIN_S = 0.5


@dataclass(slots=True)
class _Parts:
    """What one loop uses."""

    writing: PostgresLink
    reading: PostgresLink
    writer: EventWriter
    forwarder: Forwarder
    saved: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Traces of this loop that PostgreSQL may not have all events of, and when they had the last.
    # The list in Redis has all of them: here are those that were saved to last.
    own: dict[str, float] = field(default_factory=dict[str, float])
    moving: asyncio.Task[None] | None = None
    until_loop_ends: AsyncGenerator[None] | None = None

    def note_saved(self, trace_id: str) -> None:
        """Note that a trace has something new; forget the oldest of too many."""
        self.own.pop(trace_id, None)
        self.own[trace_id] = asyncio.get_running_loop().time()
        if len(self.own) > _MOST_OWN:
            del self.own[next(iter(self.own))]

    async def aclose(self) -> None:
        if self.moving is not None:
            self.moving.cancel()
            await asyncio.wait({self.moving})
        await self.writing.aclose()
        await self.reading.aclose()


class DurableEventStore(EventStore):
    """Save and load audit events: in PostgreSQL, at once or by way of Redis.

    ``counts`` are of this process: events moved, missed, traces postponed and refused.
    """

    is_durable: bool = True

    def __init__(self, base: Base, url: SecretStr, event_type: type[Any] = StoredEvent) -> None:
        super().__init__(base, event_type)
        self.address: str = shown("durable_events", url)
        self.counts: Counter[str] = Counter()
        settings = base.settings
        self._url = url
        self._delayed = settings.durable_events_mode == "delayed"
        self._delay_ms = ms(settings.durable_events_delay)
        self._table = EventTable(settings.namespace)
        self._list = EventList(base)
        self._signs = ElsewhereSigns(base)
        self._here: dict[asyncio.AbstractEventLoop, _Parts] = {}
        self._lock = threading.Lock()
        if self._delayed:
            self._bounds = Bounds(0, _KEEP_MS)

    def save(self, event: StoredEvent) -> Coroutine[Any, Any, bool]:
        """Save an event, unless it is there; return whether it was new.

        What was moved to PostgreSQL and is saved again counts as new in `delayed`, and is not kept
        twice. Errors: as `save_all`.
        """
        return self._save_one(trace_of(event), write_event(event))

    async def save_all(self, events: Iterable[StoredEvent]) -> None:
        """Save events, each trace's in the order given, skipping those that are there.

        Atomic per 64 events of a trace. Errors: InvalidField, before anything is sent;
        BackendUnavailable, OutcomeUnknown, StoreFull, CommandRefused.
        """
        by_trace: dict[str, list[tuple[bytes, bytes]]] = {}
        for event in events:
            by_trace.setdefault(trace_of(event), []).append(write_event(event))
        if self._delayed:
            appends = [self._append(*each) for each in by_trace.items()]
            if len(appends) == 1:
                # Without a task of its own, so that its events keep the order of the calls.
                await appends[0]
            else:
                await asyncio.gather(*appends)
            return
        writer = self._of_this_loop().writer
        pending = [
            writer.put(_new(trace_id, rows[start : start + _SLICE]))
            for trace_id, rows in by_trace.items()
            for start in range(0, len(rows), _SLICE)
        ]
        for each in pending:
            await asyncio.shield(each)

    async def load(self, trace_id: str | None) -> list[StoredEvent]:
        """Return a trace's events by time, those of one time in the order they were saved.

        Read from Redis first, then from PostgreSQL: an event is in one of them at any time.
        """
        scope = self._scope(trace_id)
        waiting = await self.log(scope).read_all()
        kept = await self._kept(scope)
        ids = {row.id for row in kept}
        others = [row for row in waiting if row.id not in ids]
        # Of a store without a delay, what Redis has alone is of before it had PostgreSQL.
        rows = [*kept, *others] if self._delayed else [*others, *kept]
        return self.in_time(scope, rows)

    async def forget(self, trace_id: str) -> None:
        """Erase a trace's events in PostgreSQL; its log in Redis is the caller's to drop first."""
        parts = self._of_this_loop()
        await parts.reading.run(partial(self._table.clear, trace_id), writes=True)

    async def count_durable(self, traces: Collection[str]) -> int:
        """Count the events of traces in PostgreSQL."""
        reading = self._of_this_loop().reading
        return await reading.run(partial(self._table.count, traces)) if traces else 0

    async def forget_all(self) -> None:
        """Erase all events of the namespace in PostgreSQL; its logs are the caller's to drop first.

        What this loop is about to move is written before, not after.
        """
        parts = self._of_this_loop()
        async with parts.turn:
            await parts.reading.run(self._table.clear_all, writes=True)

    async def retain(self, *, dry_run: bool = False) -> int:
        """Remove the events that are older than `durable_events_retention`; return how many.

        In pieces, each a transaction. Several processes may do it at once. A dry run counts.
        Errors: BackendUnavailable, OutcomeUnknown: repeat it.
        """
        settings = self._base.settings
        keep = settings.durable_events_retention
        if keep is None:
            return 0
        if dry_run:
            return await self._count_old(keep)
        total = await self._in_pieces(partial(self._table.remove_old, keep))
        # With a margin for logs that wait to be moved: Redis has a trace's log for some
        # `events_ttl` after its last row.
        backlog = await self.backlog()
        if backlog.oldest_s < settings.events_ttl.total_seconds():
            gone = max(keep, 3 * settings.events_ttl + _DAY)
            await self._in_pieces(partial(self._table.remove_old_traces, gone))
        return total

    async def _count_old(self, keep: timedelta) -> int:
        """Count in pieces, each of which a call's deadline is enough for."""
        total, after = 0, _FIRST
        while True:
            counted = partial(self._table.count_old, keep, after)
            count, last = await self._of_this_loop().reading.run(counted)
            if last is None:
                return total
            total, after = total + count, last

    async def _in_pieces(self, remove: Callable[[AsyncConnection[Any]], Awaitable[int]]) -> int:
        total, last = 0, PIECE
        while last == PIECE:
            last = await self._of_this_loop().reading.run(remove, writes=True)
            total += last
        return total

    async def prepare(self) -> None:
        """Connect to PostgreSQL, and make the tables unless they are there."""
        await self._of_this_loop().reading.prepare()

    async def backlog(self) -> EventBacklog:
        """Count the traces with events that are in Redis alone."""
        return await self._list.backlog()

    async def forward(self) -> ForwardReport:
        """Move what is due, once. One call after the other: what one has claimed no other sees."""
        parts = self._of_this_loop()
        async with parts.turn:
            report = await parts.forwarder.run_once()
        self.counts.update({name: n for name, n in asdict(report).items() if name in _COUNTED})
        return report

    async def flush(self, timeout_s: float = _CLOSE_S) -> None:
        """Move what this loop has saved, now. What cannot be moved in time stays in Redis."""
        parts = self._of_this_loop()
        with suppress(TimeoutError, BackendError):
            async with timeout(timeout_s):
                await asyncio.gather(*(self._list.begin(each, delay_ms=0) for each in parts.own))
                while True:
                    report = await self.forward()
                    if not report.looked or report.postponed:
                        break

    def begin(self) -> None:
        """Begin to move what is due, also what other processes have left."""
        self._of_this_loop()

    def pending(self) -> list[asyncio.Future[int]]:
        """List the saves of the running loop that have no outcome yet."""
        parts = self._here.get(asyncio.get_running_loop())
        return [] if parts is None else parts.writer.pending

    async def settle(self) -> None:
        """Wait until every save of the running loop has its outcome."""
        while waiting := self.pending():
            await asyncio.wait(waiting)

    async def aclose(self) -> None:
        """Move what the running loop has saved, for some seconds, and disconnect it."""
        parts = self._here.get(asyncio.get_running_loop())
        if parts is None:
            return
        if parts.own:
            await self.flush()
        await parts.aclose()
        with self._lock:
            self._here.pop(asyncio.get_running_loop(), None)

    async def move_regularly(self) -> None:
        """Move what is due until cancelled. Any trouble with the servers is survived."""
        parts = self._of_this_loop()
        idle_s = _IDLE_S if self._delayed else _IDLE_SYNC_S
        failing, wait_s = False, idle_s
        while True:
            await self._signs.try_to_give("durable_events")
            with suppress(TimeoutError):
                async with timeout(wait_s):
                    await parts.saved.wait()
                parts.saved.clear()
                # What is due an eighth of the delay after its save is read by three eighths. The
                # rest is for two rounds: the one before, and its own.
                await asyncio.sleep(self._delay_ms / 4000)
            wait_s = idle_s
            try:
                due_s = asyncio.get_running_loop().time() - self._list.soon_ms / 1000 - _MARGIN_S
                own = {trace: at for trace, at in parts.own.items() if at < due_s}
                report = await self.forward()
                while report.is_full and not report.postponed:
                    report = await self.forward()
                if report.postponed:
                    wait_s = min(1.0, idle_s)
                else:
                    for trace in [each for each, at in own.items() if parts.own.get(each) == at]:
                        del parts.own[trace]
                failing = False
            except Exception as error:
                if not failing:
                    unknown = None if isinstance(error, BackendError) else error
                    log.warning("moving events fails, trying again: %s", error, exc_info=unknown)
                failing = True
                wait_s = min(1.0, idle_s)

    async def _save_one(self, trace_id: str, row: tuple[bytes, bytes]) -> bool:
        if self._delayed:
            return await self._append(trace_id, [row]) > 0
        writer = self._of_this_loop().writer
        return await asyncio.shield(writer.put(_new(trace_id, [row]))) > 0

    async def _append(self, trace_id: str, rows: list[tuple[bytes, bytes]]) -> int:
        """Append rows to the trace's log; return how many are new."""
        new = 0
        for start in range(0, len(rows), _SLICE):
            new += await self._append_slice(trace_id, rows[start : start + _SLICE])
        return new

    async def _append_slice(self, trace_id: str, rows: list[tuple[bytes, bytes]]) -> int:
        """Append rows behind an entry on the list."""
        parts = self._of_this_loop()
        sender = self._base.scripts.transport.sender
        connections = sender.connections
        soon_ms = self._list.soon_ms
        listed = self._list.begin(trace_id, delay_ms=soon_ms)
        # The append may fail first; then nobody awaits this.
        unawaited(listed)
        parts.note_saved(trace_id)

        async def list_again() -> None:
            if sender.connections != connections:
                # The server may have come back without the entry.
                await asyncio.shield(self._list.begin(trace_id, delay_ms=soon_ms))
            else:
                await listed

        try:
            appended = await write_listed(
                lambda: self.log(trace_id).append(rows),
                list_again,
                address=self._base.scripts.transport.address,
            )
        finally:
            parts.note_saved(trace_id)
            parts.saved.set()
        return appended.new

    async def _kept(self, trace_id: str) -> list[Row]:
        reading, rows, more = self._of_this_loop().reading, list[Row](), True
        while more:
            after = rows[-1].n if rows else 0
            page, more = await reading.run(partial(self._table.read, trace_id, after))
            rows += page
        return rows

    def _of_this_loop(self) -> _Parts:
        loop = asyncio.get_running_loop()
        parts = self._here.get(loop)
        if parts is None:
            if self._base.scripts.transport.closed:
                raise BackendUnavailable(self.address, "the store is closed")
            with self._lock:
                for other in [known for known in self._here if known.is_closed()]:
                    del self._here[other]
                parts = self._here[loop] = self._make()
            parts.moving = asyncio.create_task(self.move_regularly(), name="redis_state forwarder")
        return parts

    def _make(self) -> _Parts:
        writing, reading = self._link(), self._link()
        timeout_s = self._base.settings.call_timeout_s
        writer = EventWriter(self._table, writing, call_timeout_s=timeout_s)
        forwarder = Forwarder(self._base, self._table, writing, self.log)
        parts = _Parts(writing, reading, writer, forwarder)
        parts.until_loop_ends = _until_loop_ends(parts)
        return parts

    def _link(self) -> PostgresLink:
        return PostgresLink(
            self._url,
            address=self.address,
            schema=SCHEMA,
            migrations=MIGRATIONS,
            call_timeout_s=self._base.settings.call_timeout_s,
        )


def _new(trace_id: str, rows: Iterable[tuple[bytes, bytes]]) -> list[NewEvent]:
    return [NewEvent(trace_id, written, data) for written, data in rows]


def _until_loop_ends(parts: _Parts) -> AsyncGenerator[None]:
    """Disconnect when the loop is shut down and nobody has closed the store."""

    async def wait() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await parts.aclose()

    generator = wait()
    with suppress(StopIteration):
        # The first step makes the loop know the generator. It waits for nothing.
        generator.asend(None).send(None)
    return generator
