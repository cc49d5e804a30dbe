"""Since when what a watch list has waits: a zset in the slot of each of the list's shards.

An entry's place on the list says when the next look is due. So how long it has waited stands beside
it. Both go back together with the server's history.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable

from redis_state.scripts import Scripts
from redis_state.transport.clock import ms_of
from redis_state.transport.keys import WATCH_SHARDS

KeyOfShard = Callable[[int], str]


class WaitingSince:
    """What waits, by the entries of a watch list, and since when."""

    def __init__(self, scripts: Scripts, key_of: KeyOfShard) -> None:
        self._scripts = scripts
        self._key_of = key_of

    def key(self, entry: bytes) -> str:
        """Return the key of an entry's shard."""
        return self._key_of(zlib.crc32(entry) % WATCH_SHARDS)

    async def note(self, entries: Iterable[bytes], *, listed: KeyOfShard) -> None:
        """Record that entries wait from now on, or since before. ``listed`` names their list."""
        await asyncio.gather(
            *(
                self._scripts.note_waits(listed(n), since=self._key_of(n), entries=some)
                for n, some in self._by_shard(entries).items()
            )
        )

    async def strike(self, entries: Iterable[bytes]) -> None:
        """Forget since when entries wait."""
        await asyncio.gather(
            *(
                self._scripts.zrem(self._key_of(n), *some)
                for n, some in self._by_shard(entries).items()
            )
        )

    async def strike_unlisted(self, listed: KeyOfShard, *, most: int = 10) -> None:
        """Forget entries that are off their list, of the ``most`` of each shard that wait longest.

        One that is put back and recorded meanwhile may be struck: its next record counts.
        """
        commands = self._scripts.transport.commands

        async def of_shard(shard: int) -> list[bytes]:
            entries = await commands.zrange(self._key_of(shard), 0, most - 1)
            dues = await asyncio.gather(*(commands.zscore(listed(shard), one) for one in entries))
            return [entry for entry, due in zip(entries, dues, strict=True) if due is None]

        found = await asyncio.gather(*(of_shard(shard) for shard in range(WATCH_SHARDS)))
        await self.strike(entry for entries in found for entry in entries)

    @staticmethod
    def _by_shard(entries: Iterable[bytes]) -> dict[int, list[bytes]]:
        grouped: defaultdict[int, list[bytes]] = defaultdict(list)
        for entry in entries:
            grouped[zlib.crc32(entry) % WATCH_SHARDS].append(entry)
        return grouped

    async def backlog(
        self, counted: KeyOfShard, *, ms_of_score: Callable[[float], float] = float
    ) -> tuple[int, float]:
        """Count the members of other keys of the shards; return also how long the first waits, in
        seconds. Two reads for each shard.
        """
        commands, shards = self._scripts.transport.commands, range(WATCH_SHARDS)
        counts, firsts, now = await asyncio.gather(
            asyncio.gather(*(commands.zcard(counted(shard)) for shard in shards)),
            asyncio.gather(*(commands.zrange_scored(self._key_of(n), 0, 0) for n in shards)),
            commands.time(),
        )
        since_ms = [ms_of_score(float(first[1])) for first in firsts if first]
        oldest_s = (ms_of(now) - min(since_ms)) / 1000 if since_ms else 0.0
        return sum(counts), max(oldest_s, 0.0)
