"""The watch list: what somebody must look at, and when.

An entry is written before the thing it stands for, because the two are in different slots and
cannot be one step: an entry without a thing is harmless, a thing without an entry cannot exist.
Whoever sweeps claims what is due, repairs it, and takes the entry out or puts it off.
"""

from __future__ import annotations

import zlib

from redis_state.transport.keys import WATCH_SHARDS, Keys
from redis_state.transport.scripts import Scripts


class WatchList:
    """A list in shards, so that no one slot carries it all."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._keys = keys

    async def put(self, entry: bytes, *, delay_ms: int, sooner: bool = False) -> None:
        """Have an entry looked at after a while. Of two times the later stands.

        ``sooner`` lets the given time replace a later one.
        """
        await self._scripts.watch_entry(
            self._shard(entry), entry=entry, delay_ms=delay_ms, sooner=sooner
        )

    async def take_out(self, entry: bytes) -> bool:
        """Take an entry out; tell whether it was there."""
        sender = self._scripts.transport.sender
        return bool(await sender.send("ZREM", self._shard(entry), entry, repeatable=True))

    async def claim_due(self, *, limit: int = 100, hold_ms: int = 30_000) -> list[bytes]:
        """Claim entries that are due, ``limit`` of each shard, for ``hold_ms``.

        Each is given to one caller; after ``hold_ms`` it is due again unless taken out or put
        off, so a sweeper that dies loses nothing.
        """
        due: list[bytes] = []
        for shard in range(WATCH_SHARDS):
            reply = await self._scripts.claim_due(
                self._keys.watch(shard), limit=limit, hold_ms=hold_ms
            )
            due += reply.facts
        return due

    def _shard(self, entry: bytes) -> str:
        return self._keys.watch(zlib.crc32(entry) % WATCH_SHARDS)
