"""Write events to PostgreSQL in the order of the calls, many callers' in one transaction."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from redis_state.errors import BackendError, BackendUnavailable, CommandRefused, NoConnection
from redis_state.futures import unawaited
from redis_state.postgres.link import PostgresLink
from redis_state.stores.durable_events.table import EventTable, NewEvent

_MOST, _MOST_BYTES = 500, 4 << 20


@dataclass(frozen=True, slots=True)
class _QueuedEvents:
    events: Sequence[NewEvent]
    since: float
    new: asyncio.Future[int]


class EventWriter:
    """The events of one loop that PostgreSQL does not have yet, and who writes them."""

    def __init__(self, table: EventTable, link: PostgresLink, *, call_timeout_s: float) -> None:
        self._table = table
        self._link = link
        self._timeout_s = call_timeout_s
        self._waiting: deque[_QueuedEvents] = deque()
        self._under_way: list[_QueuedEvents] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def pending(self) -> list[asyncio.Future[int]]:
        """List the writes that have no outcome yet."""
        return [each.new for each in (*self._under_way, *self._waiting)]

    def put(self, events: Sequence[NewEvent]) -> asyncio.Future[int]:
        """Queue events for one transaction; return how many were new, once they are there.

        They are written also if nobody waits for that.
        """
        loop = asyncio.get_running_loop()
        waiting = _QueuedEvents(events, loop.time(), loop.create_future())
        unawaited(waiting.new)
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_all(), name="redis_state events")
        return waiting.new

    async def _write_all(self) -> None:
        while self._waiting:
            self._under_way = self._next()
            try:
                await self._write(self._under_way)
            except NoConnection as error:
                self._fail(self._under_way, error)
                self._fail_late(error)
            except BackendError as error:
                self._fail(self._under_way, error)
            except BaseException:
                left = [*self._under_way, *self._waiting]
                self._waiting.clear()
                self._fail(left, BackendUnavailable(self._link.address, "the loop has ended"))
                raise
            finally:
                self._under_way = []

    def _next(self) -> list[_QueuedEvents]:
        found: list[_QueuedEvents] = []
        count = size = 0
        while self._waiting:
            events = self._waiting[0].events
            count += len(events)
            size += sum(len(event.data) for event in events)
            if found and (count > _MOST or size > _MOST_BYTES):
                break
            found.append(self._waiting.popleft())
        return found

    async def _write(self, some: Sequence[_QueuedEvents]) -> None:
        events = [event for each in some for event in each.events]
        try:
            new = await self._link.run(partial(self._table.insert, events), writes=True)
        except CommandRefused as error:
            if len(some) == 1:
                self._fail(some, error)
                return
            # One of them is refused, not its neighbours.
            for each in some:
                await self._write([each])
            return
        for each in some:
            if not each.new.done():
                found = {(event.trace_id, event.id) for event in each.events} & new
                new -= found
                each.new.set_result(len(found))

    def _fail_late(self, error: NoConnection) -> None:
        """Fail what has waited for as long as a call may: nothing of it was sent."""
        late = asyncio.get_running_loop().time() - self._timeout_s
        failed: list[_QueuedEvents] = []
        while self._waiting and self._waiting[0].since <= late:
            failed.append(self._waiting.popleft())
        self._fail(failed, BackendUnavailable(error.address, error.reason, final=error.final))

    def _fail(self, some: Sequence[_QueuedEvents], error: BackendError) -> None:
        for each in some:
            if not each.new.done():
                each.new.set_exception(error)
