"""Threads of checkpoints on Redis: what `RedisSaver` is made of.

**Layout.** A thread is a hash and a sorted set in one slot. The hash has a row for each checkpoint,
a value for each version of a channel, and the pending writes. A value may continue another one: see
`tails`. The sorted set has the places of the checkpoints, in the order of their ids in each
namespace. So every call about a thread is one step with two keys, whatever namespaces there are,
and a deletion removes two keys.

**Lifetimes.** Each write renews both keys. The listing of all threads, in 16 shards, names a thread
for a quarter longer. It is written before the thread and behind it: see `primitives.listing`. A
process that has listed a thread does not list it again for an eighth of its lifetime. It says so in
its writes. Such a write is refused if the thread is not there: it expired, or another process
deleted it. It is made again between two new listings. So no thread that was written is without its
entry. A run's index of threads is renewed like that.

**Crashes.** A put is one step: row, values, order. A crash before it leaves an entry in the
listing, which a reader removes, or which expires. A crash between `put_writes` and the `put` of its
checkpoint leaves writes that nobody reads: they go with the thread. A copy writes the oldest
checkpoints first, so what a crash leaves is a thread that is shorter. The same call completes it. A
pruning drops checkpoints from the newest, with values that none of the others needs: a crash leaves
a thread that is longer, where each checkpoint has the ancestors that its delta channels need.

**Races.** Two writers of a thread without claims both succeed, as with other savers. Versions of
channels are random in part: two branches never give one value's name to two values. During a
pruning each put enters its place in a list. A step reads what was put since the step before, and
spares it with all values that it needs. So a pruning ends whatever others write. If that list
expired, or the server's history went back, the checkpoints are listed again. So they are if there
are more of them, or higher ones, than the list has: an older version's puts are in none. A put has
the values that are new since its parent. If the parent is not there, because it expired, was
deleted or pruned, or the server's history went back, the put has all values. So it is with a value
that continues another one: see `tails`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from typing import Any

from redis_state.errors import LeaseLost, ThreadClaimed
from redis_state.integrations.langgraph.threads.newest import Newest
from redis_state.integrations.langgraph.threads.puts import Dropped, PutsSeen
from redis_state.integrations.langgraph.threads.stored.places import split_place
from redis_state.integrations.langgraph.threads.stored.rows import FoundCheckpoint
from redis_state.integrations.langgraph.threads.thread_list import ThreadList
from redis_state.primitives.lease import HeldLease
from redis_state.primitives.record import new_write_id
from redis_state.scripts import Fence, Reply, ReplyCode
from redis_state.stores.base import Base

# A reply that holds as much is not made longer.
MOST_BYTES = 4 * 1024 * 1024
_NAMESPACES = 200
_ANCESTORS = 500
_NAMES = 500
# How long puts are listed behind the last step of a pruning.
_WATCH_MS = 60_000


class Threads(ThreadList):
    """Write and read threads as bytes."""

    def __init__(self, base: Base, *, ttl_ms: int) -> None:
        super().__init__(base, ttl_ms=ttl_ms)
        self.newest: Newest = Newest()

    async def put(
        self,
        thread_id: str,
        place: bytes,
        row: bytes,
        values: Sequence[bytes],
        *,
        parent: bytes = b"",
        run: str,
        claim: HeldLease | None,
    ) -> int | None:
        """Put a checkpoint; return how many of its values were there already.

        Returns None, and puts nothing, if its parent is not there, or what a value continues.
        Without a parent, all values are given. Errors: LeaseLost, ThreadClaimed.
        """
        await self.list_run(run, thread_id)

        def write(*, listed: bool) -> Awaitable[Reply]:
            return self._base.scripts.put_checkpoint(
                self.keys(thread_id),
                mark=_fence(claim),
                listed=listed,
                place=place,
                parent=parent,
                row=row,
                ttl_ms=self.ttl_ms,
                values=values,
            )

        reply = await self._write(thread_id, write)
        _refuse(reply, thread_id, claim)
        return None if reply.word is ReplyCode.STALE else int(reply.facts[0])

    async def put_writes(
        self,
        thread_id: str,
        place: bytes,
        task: str,
        writes: Sequence[bytes],
        *,
        claim: HeldLease | None,
    ) -> None:
        """Add writes of a task to a checkpoint. Errors: LeaseLost, ThreadClaimed."""

        def write(*, listed: bool) -> Awaitable[Reply]:
            return self._base.scripts.put_graph_writes(
                self.keys(thread_id),
                mark=_fence(claim),
                listed=listed,
                place=place,
                task=task,
                ttl_ms=self.ttl_ms,
                writes=writes,
            )

        _refuse(await self._write(thread_id, write), thread_id, claim)

    async def read_one(self, thread_id: str, place: bytes) -> FoundCheckpoint | None:
        """Read a checkpoint whole, None if it is not there."""
        flat, found = await self._read(thread_id, [place])
        return FoundCheckpoint(_pairs(flat), *found) if found else None

    async def read(
        self, thread_id: str, places: Sequence[bytes]
    ) -> AsyncGenerator[FoundCheckpoint | None]:
        """Read checkpoints whole, None for each that is not there."""
        left = list(places)
        values: dict[bytes, bytes] = {}
        while left:
            flat, *facts = await self._read(thread_id, left)
            values.update(_pairs(flat))
            for found in facts:
                yield FoundCheckpoint(values, *found) if found else None
            left = left[len(facts) :]

    async def whole_page(
        self, thread_id: str, scope: str, *, before: str | None, size: int
    ) -> tuple[list[FoundCheckpoint], str]:
        """Read checkpoints of a namespace whole, the highest id first, below an id.

        Returns also the id below which there may be more, "" at the end.
        """
        high = f"({scope}{before}" if before else f"({scope[:-1]};"
        reply = await self._base.scripts.page_checkpoints(
            self.keys(thread_id),
            high=high.encode(),
            low=f"[{scope}".encode(),
            size=size,
            most_bytes=MOST_BYTES,
        )
        last, flat, *parts = reply.facts
        values = _pairs(flat)
        found = [FoundCheckpoint(values, *part) for part in parts if part]
        return found, split_place(last)[1] if last else ""

    async def page(
        self, thread_id: str, scope: str, *, before: str | None, size: int
    ) -> list[tuple[bytes, bytes]]:
        """List places and rows of a namespace, the highest id first, below an id."""
        high = f"({scope}{before}" if before else f"({scope[:-1]};"
        return await self._page(thread_id, high, f"[{scope}", size)

    async def row(self, thread_id: str, place: bytes) -> tuple[bytes, bytes] | None:
        """Read a place and its row, without the values of its channels; None if it is not there."""
        at, (scope, id_) = place.decode(), split_place(place)
        high = f"[{at}" if id_ else f"({scope[:-1]};"
        low = f"[{at}"
        page = await self._page(thread_id, high, low, 1)
        return page[0] if page and page[0][1] else None

    async def all_of(self, thread_id: str, scope: str) -> list[tuple[bytes, bytes]]:
        """List all places and rows of a namespace, the lowest id first; a row may be gone."""
        found: list[tuple[bytes, bytes]] = []
        high = f"({scope[:-1]};"
        while page := await self._page(thread_id, high, f"[{scope}", _NAMESPACES):
            found += page
            high = f"({page[-1][0].decode()}"
        return found[::-1]

    async def namespaces(self, thread_id: str) -> list[bytes]:
        """List the place of the newest checkpoint in each namespace."""
        found: list[bytes] = []
        after = b""
        while True:
            reply = await self._base.scripts.list_graph_namespaces(
                self.keys(thread_id), after=after, size=_NAMESPACES
            )
            found += reply.facts
            if len(reply.facts) < _NAMESPACES:
                return found
            after = reply.facts[-1]

    async def deltas(
        self, thread_id: str, place: bytes, channels: dict[bytes, bytes]
    ) -> AsyncGenerator[tuple[list[bytes], dict[bytes, bytes], dict[bytes, bytes]]]:
        """Yield of each ancestor, the nearest first: writes, names of values by channel, values.

        A channel is looked for up to its first value. ``channels`` are as names of values and as
        lines of writes have them.
        """
        left = dict(channels)
        while place and left:
            reply = await self._base.scripts.walk_deltas(
                self.keys(thread_id),
                place=place,
                most=_ANCESTORS,
                channels=[part for pair in left.items() for part in pair],
            )
            place, *ancestors = reply.facts
            for writes, flat, flat_values in ancestors:
                names = _pairs(flat)
                yield writes, names, _pairs(flat_values)
                for channel in names:
                    left.pop(channel, None)

    async def bases(self, thread_id: str, names: Collection[bytes]) -> dict[bytes, bytes]:
        """Return which values these continue, directly or not: of each its base."""
        found: dict[bytes, bytes] = {}
        left = list(names)
        while left:
            part, left = left[:_NAMES], left[_NAMES:]
            reply = await self._base.scripts.read_bases(
                self.keys(thread_id), most_bytes=MOST_BYTES, names=part
            )
            left = part[len(reply.facts) :] + left
            bases = {name: base for name, base in zip(part, reply.facts, strict=False) if base}
            found.update(bases)
            # Those of checkpoints that were dropped.
            left += {base for base in bases.values() if base not in names and base not in found}
        return found

    async def watch_puts(self, thread_id: str) -> PutsSeen:
        """Begin to list what is put into a thread. List its checkpoints behind this call."""
        reply = await self._base.scripts.watch_graph_puts(
            self.keys(thread_id), watch=new_write_id(), ttl_ms=_WATCH_MS
        )
        watch, length, last = reply.facts
        return PutsSeen(watch, int(length), last)

    async def drop(
        self,
        thread_id: str,
        scope: str,
        seen: PutsSeen,
        *,
        known: int,
        newest: bytes,
        forks: bool,
        places: Sequence[bytes],
        names: Sequence[bytes],
        claim: HeldLease | None,
    ) -> Dropped | None:
        """Drop checkpoints of a namespace, but none that was put since, and nothing of these.

        ``places`` has each with the one that it needs, in turn. ``known`` is how many checkpoints
        are known of, ``newest`` the highest place among them. Returns None, and drops nothing, if
        the list of puts is not the one that was ``seen``, or does not have all. Errors: LeaseLost,
        ThreadClaimed.
        """
        reply = await self._base.scripts.drop_checkpoints(
            self.keys(thread_id),
            mark=_fence(claim),
            namespace=scope,
            watch=seen.watch,
            seen=seen.length,
            last=seen.last,
            known=known,
            newest=newest,
            forks=forks,
            ttl_ms=_WATCH_MS,
            places=places,
            names=names,
        )
        if reply.word is ReplyCode.STALE:
            return None
        _refuse(reply, thread_id, claim)
        _, length, last, puts, parents, kept, needed = reply.facts
        return Dropped(PutsSeen(seen.watch, int(length), last), puts, parents, kept, needed)

    async def delete(self, thread_id: str, *, claim: HeldLease | None) -> None:
        """Delete a thread. Errors: LeaseLost, ThreadClaimed."""
        reply = await self._base.scripts.delete_graph_thread(
            self.keys(thread_id), mark=_fence(claim)
        )
        _refuse(reply, thread_id, claim)

    async def _read(self, thread_id: str, places: Sequence[bytes]) -> list[Any]:
        keys = self.keys(thread_id)
        return (
            await self._base.scripts.read_checkpoints(keys, most_bytes=MOST_BYTES, places=places)
        ).facts

    async def _page(
        self, thread_id: str, high: str, low: str, size: int
    ) -> list[tuple[bytes, bytes]]:
        reply = await self._base.scripts.list_checkpoints(
            self.keys(thread_id), high=high.encode(), low=low.encode(), size=size
        )
        return list(zip(reply.facts[::2], reply.facts[1::2], strict=True))

    async def _write(self, thread_id: str, write: Callable[..., Awaitable[Reply]]) -> Reply:
        """Write a thread, which is listed, as often as it turns out that it is not there."""
        if self._listed.has(thread_id):
            reply = await write(listed=True)
            if reply.word is not ReplyCode.MISSING:
                return reply
            self._listed.forget(thread_id)
        return await self.listed(thread_id, lambda: write(listed=False))


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """Read names and values that stand in turn."""
    parts = iter(flat)
    return dict(zip(parts, parts, strict=True))


def _fence(claim: HeldLease | None) -> Fence | None:
    return None if claim is None else claim.fence


def _refuse(reply: Reply, thread_id: str, claim: HeldLease | None) -> None:
    if reply.word is ReplyCode.LOST:
        epoch, current = claim.epoch if claim else 0, int(reply.facts[0])
        raise LeaseLost(
            f"thread {thread_id!r}", epoch=epoch, current=current, released=epoch == current
        )
    if reply.word is ReplyCode.HELD:
        raise ThreadClaimed(thread_id, left_ms=int(reply.facts[0]))
