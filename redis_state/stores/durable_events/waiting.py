"""Which traces have events in Redis that PostgreSQL does not have: a watch list, in shards."""

from __future__ import annotations

import asyncio
import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from redis_state.primitives.watchlist import WatchList
from redis_state.serialization import codec
from redis_state.stores.base import Base
from redis_state.transport.clock import ms_of
from redis_state.transport.keys import WATCH_SHARDS


@dataclass(frozen=True, slots=True)
class EventBacklog:
    """How many traces have events that are not in PostgreSQL, and for how long, in seconds."""

    traces: int
    oldest_s: float


class EventList:
    """The traces whose events are to be moved. A trace stays on it as long as its log is there."""

    def __init__(self, base: Base) -> None:
        self._scripts, self._keys = base.scripts, base.keys
        self.watch: WatchList = WatchList(base.scripts, base.keys, key_of=base.keys.events_watch)

    def begin(self, trace_id: str, *, delay_ms: int) -> asyncio.Future[Any]:
        """Put a trace on the list, or make it due sooner, without waiting for that."""
        entry = trace_entry(trace_id)
        shard = zlib.crc32(entry) % WATCH_SHARDS
        return self._scripts.begin_watch_since(
            self._keys.events_watch(shard),
            since=self._keys.events_since(shard),
            entry=entry,
            delay_ms=delay_ms,
        )

    async def strike(self, entries: Iterable[bytes]) -> None:
        """Forget since when traces wait: PostgreSQL has their events."""
        grouped: defaultdict[str, list[bytes]] = defaultdict(list)
        for entry in entries:
            grouped[self._keys.events_since(zlib.crc32(entry) % WATCH_SHARDS)].append(entry)
        await asyncio.gather(*(self._scripts.zrem(key, *some) for key, some in grouped.items()))

    async def backlog(self) -> EventBacklog:
        """Count what waits. Two reads for each shard."""
        commands, keys = self._scripts.transport.commands, self._keys
        shards = range(WATCH_SHARDS)
        counts, firsts, now = await asyncio.gather(
            asyncio.gather(*(commands.zcard(keys.events_since(shard)) for shard in shards)),
            asyncio.gather(
                *(commands.zrange_scored(keys.events_since(shard), 0, 0) for shard in shards)
            ),
            commands.time(),
        )
        since_ms = [float(first[1]) for first in firsts if first]
        oldest_s = (ms_of(now) - min(since_ms)) / 1000 if since_ms else 0.0
        return EventBacklog(sum(counts), max(oldest_s, 0.0))


def trace_entry(trace_id: str) -> bytes:
    """Return a trace's entry for its watch list."""
    return codec.encode(["trace", trace_id])


def trace_of_entry(entry: bytes) -> str | None:
    """Return the trace of an entry; None if it is none."""
    try:
        match codec.decode(entry):
            case ["trace", str(trace_id)]:
                return trace_id
            case _:
                return None
    except codec.DecodeError:
        return None
