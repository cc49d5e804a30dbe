"""Which traces have events in Redis that PostgreSQL does not have: a watch list, in shards."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from redis_state.primitives.watchlist.waiting_since import WaitingSince
from redis_state.primitives.watchlist.watchlist import WatchList, read_entry
from redis_state.serialization import codec
from redis_state.stores.base import Base, ms
from redis_state.transport.keys import WATCH_SHARDS

# So long a claim holds a trace. A save must make it due before, or the claim does not notice.
HOLD_MS = 30_000


@dataclass(frozen=True, slots=True)
class EventBacklog:
    """How many traces have events that are not in PostgreSQL, and for how long, in seconds."""

    traces: int
    oldest_s: float


class EventList:
    """The traces whose events are to be moved. A trace stays on it as long as its log is there."""

    def __init__(self, base: Base) -> None:
        self._scripts, self._keys = base.scripts, base.keys
        self._since = WaitingSince(base.scripts, base.keys.events_since)
        self.soon_ms: int = max(1, min(ms(base.settings.durable_events_delay), HOLD_MS // 2) // 8)
        self.watch: WatchList = WatchList(base.scripts, base.keys, key_of=base.keys.events_watch)

    def begin(self, trace_id: str, *, delay_ms: int) -> asyncio.Future[Any]:
        """Put a trace on the list, or make it due sooner, without waiting for that."""
        entry = trace_entry(trace_id)
        shard = zlib.crc32(entry) % WATCH_SHARDS
        return self._scripts.begin_watch_since(
            self._keys.events_watch(shard),
            since=self._since.key(entry),
            entry=entry,
            delay_ms=delay_ms,
            stands="sooner",
        )

    async def strike(self, entries: Iterable[bytes]) -> None:
        """Forget since when traces wait: PostgreSQL has their events."""
        await self._since.strike(entries)

    async def backlog(self) -> EventBacklog:
        """Count what waits. Two reads for each shard."""
        return EventBacklog(*await self._since.backlog(self._keys.events_since))


def trace_entry(trace_id: str) -> bytes:
    """Return a trace's entry for its watch list."""
    return codec.encode(["trace", trace_id])


def trace_of_entry(entry: bytes) -> str | None:
    """Return the trace of an entry; None if it is none."""
    match read_entry(entry):
        case ["trace", str(trace_id)]:
            return trace_id
        case _:
            return None
