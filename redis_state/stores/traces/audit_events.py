"""The audit log of a trace: events, once per content, in the order of their time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from redis_state.models import StoredEvent
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.signal import Row
from redis_state.serialization import codec
from redis_state.serialization.fields import mapping, number, text
from redis_state.serialization.rows import pack, unpack
from redis_state.stores.archive_list import event_entry, record_list
from redis_state.stores.base import Base, ms

GLOBAL_TRACE = "__global__"


class EventStore:
    """Save and load audit events."""

    is_durable: bool = False

    def __init__(self, base: Base, event_type: type[Any] = StoredEvent) -> None:
        self._base = base
        self._type = event_type
        settings = base.settings
        self._bounds: Bounds = Bounds(settings.max_events_per_trace, ms(settings.events_ttl))
        self._archived = record_list(base, "events")

    def save(self, event: StoredEvent) -> Coroutine[Any, Any, bool]:
        """Append an event, unless it is there; return whether it was new.

        An event is the same if its trace, time, kind, node and payload are, whatever the order
        of the payload's keys. Errors: InvalidField.
        """
        trace_id, row = trace_of(event), write_event(event)
        if self._archived is None:
            return self.log(trace_id).add(row)
        return self._archived.covering(event_entry(trace_id), partial(self.log(trace_id).add, row))

    async def save_all(self, events: Iterable[StoredEvent]) -> None:
        """Append events, each trace's in the order given, skipping those that are there.

        Atomic per 64 events of a trace. Errors: InvalidField, before anything is sent.
        """
        by_trace: dict[str, list[tuple[bytes, bytes]]] = {}
        for event in events:
            by_trace.setdefault(trace_of(event), []).append(write_event(event))
        appends = [self._append_all(trace_id, rows) for trace_id, rows in by_trace.items()]
        if len(appends) == 1:
            # Without a task of its own, so that one trace's events keep the order of the calls.
            await appends[0]
        else:
            await asyncio.gather(*appends)

    async def _append_all(self, trace_id: str, rows: Sequence[tuple[bytes, bytes]]) -> None:
        if self._archived is None:
            await self.log(trace_id).append(rows)
        else:
            append = partial(self.log(trace_id).append, rows)
            await self._archived.covering(event_entry(trace_id), append)

    async def load(self, trace_id: str | None) -> list[StoredEvent]:
        """Return a trace's events by time, those of one time in the order they were saved.

        An event whose time is not a number comes last.
        """
        scope = self._scope(trace_id)
        rows = await self.log(scope).read_all()
        return self.in_time(scope, rows)

    async def forget(self, trace_id: str) -> None:
        """Erase what there is of a trace outside of Redis: nothing."""

    async def count_durable(self, traces: Collection[str]) -> int:
        """Count the events of traces that are outside of Redis: none."""
        del traces
        return 0

    async def retain(self, *, dry_run: bool = False) -> int:
        """Remove what is outside of Redis and too old: nothing. Redis expires by itself."""
        del dry_run
        return 0

    async def forget_all(self) -> None:
        """Erase what there is of the namespace outside of Redis: nothing."""

    def begin(self) -> None:
        """Begin what runs in the background of the running loop, if anything does."""

    def pending(self) -> Sequence[asyncio.Future[int]]:
        """List the running loop's saves that are not made in Redis and have no outcome yet."""
        return ()

    async def settle(self) -> None:
        """Wait until every such save has its outcome."""

    async def aclose(self) -> None:
        """Disconnect what is not Redis."""

    def _scope(self, trace_id: str | None) -> str:
        return GLOBAL_TRACE if trace_id is None else trace_id

    def in_time(self, scope: str, rows: Iterable[Row]) -> list[StoredEvent]:
        """Read rows of a trace, and put the events in the order of their time."""
        events = self._base.read_rows(scope, "event", rows, self.read)
        return sorted(events, key=lambda event: (math.isnan(event.ts), event.ts))

    def log(self, trace_id: str) -> Log:
        """Return a trace's log."""
        return Log(self._base.scripts, self._base.keys.events(trace_id), self._bounds)

    def read(self, row: Row) -> StoredEvent:
        """Read a row of a log. Errors: DecodeError, ValueError, and those of the host's type."""
        trace_id, ts, kind, node_name, node_id, payload = unpack(row.data, 6)
        if not isinstance(payload, dict):
            raise codec.DecodeError("an event without a payload")
        event: StoredEvent = self._type(
            trace_id=trace_id,
            ts=float(ts),
            kind=kind,
            node_name=node_name,
            node_id=node_id,
            payload=payload,
        )
        return event


def trace_of(event: StoredEvent) -> str:
    """Return the trace whose log has an event. Errors: InvalidField."""
    return GLOBAL_TRACE if event.trace_id is None else text("trace_id", event.trace_id)


def write_event(event: StoredEvent) -> tuple[bytes, bytes]:
    """Write an event as its fingerprint and its row. Errors: InvalidField."""
    ts, payload = number("ts", event.ts), mapping("payload", event.payload)
    values = (event.trace_id, ts, event.kind, event.node_name, event.node_id, payload)
    return codec.fingerprint(*values).encode(), pack(values)
