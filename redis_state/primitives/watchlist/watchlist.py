"""The watch list: what must be inspected, and when.

An entry and the thing that it stands for are in different slots and cannot change in one step. So
the entry is written before the thing, and removed after the thing's end. An entry without a thing
is harmless. A thing without an entry would be lost for ever. A sweeper claims what is due, repairs
it, and settles it: it postpones or removes the entry.

This also holds when the server's history goes back to an earlier state. An entry is removed only by
a claim that finds the thing ended and the entry marked as ended for a second. The mark is written
after the end of the thing, by a claim before or by the process that ended it: a server that has the
mark also has the end. (Two rollbacks within that second can defeat it.)

Entries are in three bands of time: what may need a repair, what is only checked from time to time,
and what is marked as ended. The later ones have times far ahead. So a repair does not wait behind
the many things that need none, as a pool finds them that was away. Each band is claimed with what
room those before it leave, and a quarter more.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from functools import partial
from operator import itemgetter
from time import monotonic
from typing import Any, TypeVar

from redis_state.errors import NoConnection, RedisStateError, StoreFull
from redis_state.primitives.listed import write_listed
from redis_state.primitives.watchlist.shards import PATIENCE_S, ShardCalls
from redis_state.scripts import Reply, Scripts
from redis_state.serialization import codec
from redis_state.transport.clock import ms_of
from redis_state.transport.keys import WATCH_SHARDS, Keys

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")


class Band(StrEnum):
    """What an entry is on the list for: a band of times."""

    REPAIR = "repair"  # it may need one
    CHECK = "check"  # it was found where it should be
    ENDED = "ended"  # its thing was found ended


# What an entry that is only checked has on top of its time: `watch_band` of the scripts.
CHECK_MS = 6_000_000_000_000
# What one has whose thing was found ended.
MARK_MS = 10_000_000_000_000
_FROM_MS = {Band.REPAIR: 0, Band.CHECK: CHECK_MS, Band.ENDED: MARK_MS}
# The delay of such an entry, a second with the mark.
ENDED_MS: int = MARK_MS + 1_000
# So many entries begin to be judged at once, then there is a pause: the tasks of a worker that
# inspects thousands are not held up.
_TOGETHER = 8
_PAUSE_S = 0.002


@dataclass(frozen=True, slots=True)
class WatchClaim:
    """An entry that was claimed, and by which claim.

    ``again`` if the thing was found ended before. ``stamp`` is what the index of tasks
    knows of it, on a list of tasks.
    """

    entry: bytes
    mark: bytes
    again: bool
    stamp: str = ""


class Fate(Enum):
    """What a judge may find of an entry, beside when it must be inspected next."""

    OUT = auto()  # nobody need look at it any more
    LEFT = auto()  # it is settled elsewhere, or due again when the claim has run out


# Returns in how many ms the entry must be inspected again, or its fate.
Judge = Callable[[WatchClaim], Coroutine[Any, Any, int | Fate]]


def found_ended(score: bytes | float) -> bool:
    """Return whether an entry's time says that its thing was found ended before."""
    return _band_of(score) is Band.ENDED


def time_of(score: bytes | float) -> float:
    """Return when an entry is due, in ms, whatever its band."""
    return float(score) - _FROM_MS[_band_of(score)]


def check_after(delay_ms: int) -> int:
    """Return the delay of an entry that is only checked then: what may need a repair goes first."""
    return CHECK_MS + delay_ms


def read_entry(entry: bytes) -> object:
    """Return what an entry names; None for one that cannot be read."""
    try:
        return codec.decode(entry)
    except codec.DecodeError:
        return None


class WatchList:
    """A list in shards, so that no one slot carries it all. ``key_of`` names another list's.

    Without one it is the list of tasks, which shares its slots with their index. ``since_of`` names
    where its slots have since when entries wait: that goes with an entry, in the same step.
    """

    def __init__(
        self,
        scripts: Scripts,
        keys: Keys,
        *,
        key_of: Callable[[int], str] | None = None,
        since_of: Callable[[int], str] | None = None,
        shards: int = WATCH_SHARDS,
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._key_of = key_of or keys.watch
        self._since_of = since_of
        self._of_tasks = key_of is None
        self._shards = shards
        self._claiming = ShardCalls(shards)

    async def put(self, entry: bytes, *, delay_ms: int, sooner: bool = False) -> int:
        """Put an entry; return when it is due, in ms. Of two times the later stands.

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
        """Put an entry if it is not on the list; else its time stands."""
        await self._scripts.watch_entry(
            self._shard(entry), entry=entry, delay_ms=delay_ms, stands="first"
        )

    async def bring_forward(self, entry: bytes, *, delay_ms: int, makes_room: bool = False) -> None:
        """Put an entry, or make it due sooner; if it is due before, its time stands.

        One that is claimed is due when the claim runs out: who has claimed it does not settle it.
        With ``makes_room`` a full server takes it too.
        """
        await self._scripts.watch_entry(
            self._shard(entry),
            entry=entry,
            delay_ms=delay_ms,
            stands="room" if makes_room else "sooner",
        )

    def begin_bring_forward(self, entry: bytes, *, delay_ms: int) -> asyncio.Future[Any]:
        """Queue `bring_forward` at once, before whatever the caller sends next."""
        return self._scripts.begin_watch_entry(
            self._shard(entry), entry=entry, delay_ms=delay_ms, stands="sooner"
        )

    async def has(self, entry: bytes) -> bool:
        """Return whether an entry is on the list."""
        commands = self._scripts.transport.commands
        return await commands.zscore(self._shard(entry), entry) is not None

    async def overdue_s(self) -> float:
        """Return for how long the first entry that may need a repair is due, in seconds.

        One read for each shard.
        """
        commands = self._scripts.transport.commands
        firsts, now = await asyncio.gather(
            asyncio.gather(
                *(commands.zrange_scored(self._key_of(n), 0, 0) for n in range(self._shards))
            ),
            commands.time(),
        )
        due_ms = [float(first[1]) for first in firsts if first]
        return max((ms_of(now) - min(due_ms)) / 1000, 0.0) if due_ms else 0.0

    async def overdue_by_band(self) -> dict[Band, float]:
        """Return for how long the first entry of each band is due, in seconds.

        Of the bands that have entries. Three reads for each shard, whatever is due.
        """
        firsts, now = await asyncio.gather(
            asyncio.gather(
                *(self._first_of(n, band) for n in range(self._shards) for band in Band)
            ),
            self._scripts.transport.commands.time(),
        )
        overdue: dict[Band, float] = {}
        for due_ms, band in (first for first in firsts if first is not None):
            late_s = max((ms_of(now) - due_ms) / 1000, 0.0)
            overdue[band] = max(overdue.get(band, 0.0), late_s)
        return overdue

    async def _first_of(self, shard: int, band: Band) -> tuple[float, Band] | None:
        key, lowest = self._key_of(shard), _FROM_MS[band] or "-inf"
        found = await self._scripts.transport.commands.zrange_from(key, lowest, count=1)
        if not found or _band_of(found[1]) is not band:
            return None
        return time_of(found[1]), band

    async def count_overdue(self, *, by_ms: int, most: int) -> int:
        """Count the entries that are due for longer than ``by_ms``, up to ``most`` of each shard.

        Those that are checked only are not counted. One read for each. Not by ZCOUNT: users made by
        an earlier version may not call it.
        """
        commands = self._scripts.transport.commands
        before = ms_of(await commands.time()) - by_ms
        found = await asyncio.gather(
            *(
                commands.zrange_up_to(self._key_of(n), f"({before}", offset=0, count=most)
                for n in range(self._shards)
            )
        )
        return sum(map(len, found))

    async def covering(
        self,
        entry: bytes,
        write: Callable[[int], Awaitable[T]],
        *,
        delay_ms: int,
        put: Callable[[], Awaitable[int]] | None = None,
        late: bool = False,
    ) -> T:
        """Put an entry, then write its thing; return what that returned.

        ``write`` gets the time at which the entry is due, in ms. If the connection broke in
        between, the server may have come back without the entry: it is put again. With ``late`` so
        it is if the entry was due meanwhile. Only a caller that is killed at that moment leaves a
        thing without an entry. ``put`` puts it, if that is one step with something else. Errors:
        those of ``write``; OutcomeUnknown if it has written, and the entry cannot be put again.
        """
        transport, began = self._scripts.transport, monotonic()
        connections = transport.sender.connections
        if put is None:
            put = partial(self.put, entry, delay_ms=delay_ms, sooner=True)

        async def put_again() -> None:
            is_late = late and (monotonic() - began) * 1000 >= delay_ms
            if is_late or transport.sender.connections != connections:
                await asyncio.shield(put())

        due_ms = await put()
        return await write_listed(lambda: write(due_ms), put_again, address=transport.address)

    async def claim_due(self, *, limit: int = 100, hold_ms: int = 30_000) -> list[WatchClaim]:
        """Claim entries that are due, ``limit`` of each shard, for ``hold_ms``.

        Those that are checked only come behind the others, and those found ended last. Of both
        there may be a quarter more.

        One caller gets each entry. After ``hold_ms`` it is due again unless it is settled, so a
        sweeper that dies loses nothing. All shards are read in one write. Shards whose node does
        not answer are left out, and the log names the node once. Errors: that of the first, if none
        answers.
        """

        async def claim(shard: int) -> Reply:
            return await self._scripts.claim_due(
                self._key_of(shard),
                limit=limit,
                hold_ms=hold_ms,
                about=self._keys.task_index(shard).about if self._of_tasks else None,
                indexed=self._of_tasks,
            )

        replies = await self._claiming.replies(claim)
        claims: list[tuple[float, WatchClaim]] = []
        for mark, *due in (reply.facts for reply in replies):
            found = zip(due[::3], due[1::3], due[2::3], strict=True)
            claims += [
                (
                    _FROM_MS[_band_of(was)],
                    WatchClaim(
                        entry, mark, found_ended(was), stamp.decode("utf-8", "surrogatepass")
                    ),
                )
                for entry, was, stamp in found
            ]
        claims.sort(key=itemgetter(0))
        return [claim for _, claim in claims]

    async def inspect(self, claims: Sequence[WatchClaim], judge: Judge, *, trouble_ms: int) -> int:
        """Judge claimed entries, and settle them; return how many were removed.

        A few begin together every two milliseconds, and share their round trips. None waits for one
        before it. So thousands of entries do not hold up what else runs on this loop. An entry that
        cannot be judged is postponed by ``trouble_ms``. One whose server is unreachable is due
        again when the claim runs out, and so is one whose repair a full server refuses. The first
        NoConnection or StoreFull is raised once the others are settled: those of other nodes while
        a node does not answer.
        """
        removed = 0
        refused: NoConnection | StoreFull | None = None
        judged = _few_at_a_time([partial(judge, claim) for claim in claims])
        # What stops this stops those that are still judged.
        async with aclosing(judged):
            async for some in judged:
                settled: list[tuple[WatchClaim, int | None]] = []
                for at, verdict in some:
                    claim = claims[at]
                    match verdict:
                        case Fate.LEFT:
                            continue
                        case Fate.OUT:
                            settled.append((claim, None))
                        case int():
                            settled.append((claim, verdict))
                        case NoConnection() | StoreFull():
                            refused = refused or verdict
                        case BaseException():
                            if not isinstance(verdict, Exception):
                                raise verdict
                            unknown = None if isinstance(verdict, RedisStateError) else verdict
                            entry = claim.entry.decode(errors="replace")
                            log.error("%r cannot be swept: %s", entry, verdict, exc_info=unknown)
                            settled.append((claim, trouble_ms))
                await self.settle(settled)
                removed += sum(claim.again and delay_ms is None for claim, delay_ms in settled)
        if refused is not None:
            raise refused
        return removed

    async def settle(self, claims: Iterable[tuple[WatchClaim, int | None]]) -> int:
        """Postpone claimed entries by a delay, or remove them for None; return their number.

        A claim that is to remove an entry without a mark marks it, and postpones it by a second.

        An entry that was put again since, or claimed by another caller, is left alone. Its writer
        may know something that the claimer has not seen.
        """
        grouped: defaultdict[tuple[int, bytes], list[tuple[bytes, float | None]]]
        grouped = defaultdict(list)
        for claim, delay_ms in claims:
            settling = ENDED_MS if delay_ms is None and not claim.again else delay_ms
            shard = zlib.crc32(claim.entry) % self._shards
            grouped[shard, claim.mark].append((claim.entry, settling))
        replies = await asyncio.gather(
            *(
                self._scripts.settle_claim(
                    self._key_of(shard),
                    since=None if self._since_of is None else self._since_of(shard),
                    dated=self._since_of is not None,
                    mark=mark,
                    entries=entries,
                )
                for (shard, mark), entries in grouped.items()
            ),
            # Those of other nodes are settled.
            return_exceptions=True,
        )
        settled = 0
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
            settled += int(reply.facts[0])
        return settled

    def _shard(self, entry: bytes) -> str:
        return self._key_of(zlib.crc32(entry) % self._shards)


def _band_of(score: bytes | float) -> Band:
    if float(score) >= MARK_MS:
        return Band.ENDED
    return Band.CHECK if float(score) >= CHECK_MS else Band.REPAIR


async def _few_at_a_time(
    calls: Sequence[Callable[[], Coroutine[Any, Any, T]]],
) -> AsyncGenerator[list[tuple[int, T | BaseException]]]:
    """Begin a few calls, and after a pause the next ones; yield what they returned or raised, by
    their places: all of them, or first all but those that wait for a node that stands still.
    """
    begun: list[asyncio.Task[T]] = []
    try:
        for call in calls:
            if begun and len(begun) % _TOGETHER == 0:
                await asyncio.sleep(_PAUSE_S)
            begun.append(asyncio.create_task(call()))
        left: dict[int, asyncio.Task[T]] = dict(enumerate(begun))
        for patience_s in (PATIENCE_S, None):
            if left:
                await asyncio.wait(left.values(), timeout=patience_s)
                ended = {at: task for at, task in left.items() if task.done()}
                outcomes = await asyncio.gather(*ended.values(), return_exceptions=True)
                left = {at: task for at, task in left.items() if at not in ended}
                yield list(zip(ended, outcomes, strict=True))
    finally:
        # If this is cancelled in a pause.
        for task in begun:
            task.cancel()
