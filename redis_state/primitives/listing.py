"""The listing: names of things, in order, that are found as long as the things live.

An entry and the thing that it names are in different slots and cannot change in one step. So the
entry is written before the thing, and outlives it. A crash leaves an entry too many, never a thing
without one. Who looks for the thing of an entry and does not find it takes the entry out.

**Races.** He may have looked between entry and thing: then the thing is written, and its entry is
taken out behind it. So a writer enters the thing again behind the write. Each entering gives the
entry a stamp that no other has. An entry leaves only under the stamp that was read *before* the
thing was looked for:

    writer   enter s1              write           enter s2
    reader             read s1, look           leave s1      taken out, then entered again
    reader             read s1, look                         leave s1: refused, it has s2
    reader                              read s1, look        he finds it

A deletion is such a reader: it reads the stamp, deletes the thing, and leaves under that stamp. A
write that comes between is behind the deletion, and its second entering keeps the entry. A thing
that is deleted between a write and its second entering leaves an entry too many. So does a crash.
The next reader takes it out, or it expires.

No clock decides, and none needs to agree with another. What is left: a writer that dies between
write and second entering, while a reader looks in the moment before the write. The writer's call
has not returned. The thing is there without an entry, until its next write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

from redis_state.errors import OutcomeUnknown
from redis_state.primitives.listed import behind_a_write, write_listed
from redis_state.scripts import GraphListing, Scripts

T = TypeVar("T")

# Entries of each shard in the first page, for who wants a few. Each later page has four times as
# many, up to the size of the listing.
_FIRST = 16


class ShardedListing:
    """A listing of entries in the order of their bytes, in shards that are read side by side."""

    def __init__(self, scripts: Scripts, shards: Sequence[GraphListing], *, size: int) -> None:
        self._scripts = scripts
        self._shards = shards
        # Entries of each shard in a page, at most.
        self._size = size

    async def around(
        self, shard: int, entry: bytes, write: Callable[[], Awaitable[T]], *, ttl_ms: int
    ) -> T:
        """Write a thing that is to be found by an entry, and return what the write does.

        Errors: as `write_listed`.
        """

        async def enter() -> None:
            await self.enter(shard, entry, ttl_ms=ttl_ms)

        await enter()
        return await write_listed(
            write,
            enter,
            doubts=(asyncio.CancelledError, OutcomeUnknown),
            address=self._scripts.transport.address,
        )

    async def enter(self, shard: int, entry: bytes, *, ttl_ms: int) -> None:
        """List a thing that is there, for as long as it lives."""
        await self._scripts.enter_listing(self._shards[shard], entry=entry, ttl_ms=ttl_ms)

    async def renew(self, shard: int, entry: bytes, *, ttl_ms: int) -> None:
        """List a thing again that was read, if the server takes writes. No replica confirms it."""
        await self._scripts.renew_listing(self._shards[shard], entry=entry, ttl_ms=ttl_ms)

    async def remove(
        self, shard: int, entry: bytes, delete: Callable[[], Awaitable[object]]
    ) -> None:
        """Delete a thing, and take its entry out.

        Errors: those of the deletion; OutcomeUnknown if the entry cannot be taken out behind it.
        """
        found = await self._page(shard, b"[" + entry, 1)
        await delete()
        if found and found[0][0] == entry:
            with behind_a_write(self._scripts.transport.address):
                await self.leave(shard, entry, found[0][1])

    async def leave(self, shard: int, entry: bytes, stamp: bytes) -> None:
        """Take an entry out: behind the reading of its stamp, its thing was not there."""
        await self._scripts.leave_listing(self._shards[shard], entry=entry, stamp=stamp)

    async def unlist(self, shard: int, entry: bytes, stamp: bytes) -> None:
        """Do as `leave` for a reader: if the server takes writes. No replica confirms it."""
        await self._scripts.unlist_missing(self._shards[shard], entry=entry, stamp=stamp)

    async def pages(
        self, start: bytes, *, begin: bytes = b""
    ) -> AsyncGenerator[list[tuple[int, bytes, bytes]]]:
        """Yield entries by page, those that ``begin`` so: shard, entry and stamp of each.

        ``start`` is as ZRANGEBYLEX writes it. A page costs each shard one call.
        """
        size = min(_FIRST, self._size)
        while True:
            shards = await asyncio.gather(
                *(self._page(n, start, size) for n in range(len(self._shards)))
            )
            # What is behind the end of a full shard is not known yet.
            full = [page[-1][0] for page in shards if len(page) == size]
            end = min(full, default=None)
            known = sorted(
                (entry, stamp, shard)
                for shard, page in enumerate(shards)
                for entry, stamp in page
                if end is None or entry <= end
            )
            found = [
                (shard, entry, stamp) for entry, stamp, shard in known if entry.startswith(begin)
            ]
            if found:
                yield found
            if end is None or len(found) < len(known):
                return
            start = b"(" + end
            size = min(4 * size, self._size)

    async def _page(self, shard: int, start: bytes, size: int) -> list[tuple[bytes, bytes]]:
        reply = await self._scripts.read_listing(self._shards[shard], start=start, size=size)
        return list(zip(reply.facts[::2], reply.facts[1::2], strict=True))
