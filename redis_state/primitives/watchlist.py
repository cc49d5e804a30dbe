"""The watch list: what somebody must look at, and when.

An entry is written before the thing it stands for, because the two are in different slots and
cannot be one step: an entry without a thing is harmless, a thing without an entry cannot exist.
Whoever sweeps claims what is due, repairs it, and settles it: takes the entry out or puts it off.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from redis_state.transport.keys import WATCH_SHARDS, Keys
from redis_state.transport.scripts import Scripts


@dataclass(frozen=True, slots=True)
class Claim:
    """An entry that was claimed, and by which claim."""

    entry: bytes
    mark: bytes


class WatchList:
    """A list in shards, so that no one slot carries it all. ``key_of`` names another list's."""

    def __init__(
        self, scripts: Scripts, keys: Keys, *, key_of: Callable[[int], str] | None = None
    ) -> None:
        self._scripts = scripts
        self._key_of = key_of or keys.watch

    async def put(self, entry: bytes, *, delay_ms: int, sooner: bool = False) -> int:
        """Have an entry looked at after a while; return when, in ms. Of two times the later stands.

        ``sooner`` lets the given time replace a later one.
        """
        reply = await self._scripts.watch_entry(
            self._shard(entry),
            entry=entry,
            delay_ms=delay_ms,
            stands="given" if sooner else "later",
        )
        return int(reply.facts[0])

    async def put_back(self, entry: bytes, *, delay_ms: int) -> None:
        """Have an entry looked at after a while if it is not on the list; else its time stands."""
        await self._scripts.watch_entry(
            self._shard(entry), entry=entry, delay_ms=delay_ms, stands="first"
        )

    async def take_out(self, entry: bytes) -> bool:
        """Take an entry out; tell whether it was there."""
        reply = await self._scripts.run_once("ZREM", self._shard(entry), entry)
        return bool(reply.facts[0])

    async def claim_due(self, *, limit: int = 100, hold_ms: int = 30_000) -> list[Claim]:
        """Claim entries that are due, ``limit`` of each shard, for ``hold_ms``.

        Each is given to one caller; after ``hold_ms`` it is due again unless it is settled, so a
        sweeper that dies loses nothing. All shards are asked in one write.
        """
        replies = await asyncio.gather(
            *(
                self._scripts.claim_due(self._key_of(shard), limit=limit, hold_ms=hold_ms)
                for shard in range(WATCH_SHARDS)
            )
        )
        return [Claim(entry, reply.facts[0]) for reply in replies for entry in reply.facts[1:]]

    async def settle(self, claims: Iterable[tuple[Claim, int | None]]) -> int:
        """Put claimed entries off by a delay, or take them out for None; return how many.

        An entry that was put anew since, or claimed by another, is left as it is: whoever put it
        has something to tell that the claimer may not have seen.
        """
        grouped: defaultdict[tuple[str, bytes], list[tuple[bytes, int | None]]]
        grouped = defaultdict(list)
        for claim, delay_ms in claims:
            grouped[self._shard(claim.entry), claim.mark].append((claim.entry, delay_ms))
        replies = await asyncio.gather(
            *(
                self._scripts.settle_claim(shard, mark=mark, entries=entries)
                for (shard, mark), entries in grouped.items()
            )
        )
        return sum(int(reply.facts[0]) for reply in replies)

    def _shard(self, entry: bytes) -> str:
        return self._key_of(zlib.crc32(entry) % WATCH_SHARDS)
