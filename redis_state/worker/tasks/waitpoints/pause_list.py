"""The list of all open pauses, in the order of their opening: written, read in parts, made whole.

Two indexes in one slot: one says until when a pause is open, one when it was opened. The scripts
write both. A process of a version without the second one writes the first only: then they differ in
number, and the next reader adds what is missing, and drops what the first has no more. If both are
lost, a sweeper lists what it finds tasks waiting for.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from redis_state.errors import CorruptState
from redis_state.futures import unawaited
from redis_state.scripts import PauseListKeys
from redis_state.store import RedisStateStore
from redis_state.transport.clock import ms_of

_SLICE = 500
_MARK = 8


class PausePlace(NamedTuple):
    """Where a pause stands in the list. ``mark`` orders those of one moment, and names nobody."""

    opened_ms: int
    mark: bytes


class ListedPause(NamedTuple):
    """A pause that the list proposes, by the key of its token."""

    place: PausePlace
    key: str


def list_place(opened_ms: int, key: str) -> PausePlace:
    """Return the place of a pause by the key of its token."""
    digest = key.rpartition(":")[2]
    return PausePlace(opened_ms, hashlib.sha256(digest.encode()).digest()[:_MARK])


class PauseList:
    """The list of the open pauses of all sessions."""

    def __init__(self, store: RedisStateStore) -> None:
        keys = store.base.keys
        self._keys = PauseListKeys(keys.open_pauses(), keys.opened_pauses())
        self._scripts = store.base.scripts
        self._transport = store.transport

    async def add(self, key: str, *, opened_ms: int, left_ms: int) -> None:
        """List an open pause. A repetition does nothing."""
        await self._scripts.list_pause(self._keys, member=key, opened=opened_ms, ttl_ms=left_ms)

    async def remove(self, *keys: str) -> None:
        """Take pauses off that are open no more."""
        for start in range(0, len(keys), _SLICE):
            await self._scripts.unlist_pauses(self._keys, members=keys[start : start + _SLICE])

    def begin_remove(self, key: str) -> None:
        """Take a pause off that is open no more, without waiting for it."""
        begin = partial(self._scripts.begin_unlist_pauses, self._keys, members=[key])
        unawaited(self._transport.sender.unhurried(begin))

    async def after(self, place: PausePlace | None, size: int) -> tuple[list[ListedPause], bool]:
        """Return up to ``size`` pauses behind a place in their order, and whether others follow.

        More than that only of one moment, which is read whole.
        """
        made_whole = False
        while True:
            first = 0 if place is None else place.opened_ms
            reply = await self._scripts.page_pauses(self._keys, first=first, size=size + 1)
            differ, *flat = reply.facts
            if differ and not made_whole:
                made_whole = True
                await self._make_whole()
                continue
            found = [
                ListedPause(list_place(int(opened), key.decode()), key.decode())
                for key, opened in zip(flat[::2], flat[1::2], strict=True)
            ]
            more = len(found) > size
            if more:
                # The last moment may have others.
                last = found[-1].place.opened_ms
                found = [each for each in found if each.place.opened_ms < last]
            found = sorted(each for each in found if place is None or each.place > place)
            if found or not more:
                return found, more
            size *= 2

    async def _make_whole(self) -> None:
        """List in both indexes what is in one of them and open, and drop the rest of it."""
        expiries, openings = [
            set(await self._transport.commands.zrange(index, 0, -1)) for index in self._keys
        ]
        lone = [each.decode() for each in expiries ^ openings]
        await self.settle(lone)

    async def has(self, key: str) -> bool:
        """Return whether both indexes list a pause."""
        commands = self._transport.commands
        scores = await asyncio.gather(*(commands.zscore(index, key) for index in self._keys))
        return None not in scores

    async def is_timer(self, key: str) -> bool:
        """Return whether a pause only waits for time, so that it is not to be listed."""
        return (await self._transport.commands.hmget(key, "timer"))[0] is not None

    async def settle(self, keys: Sequence[str]) -> None:
        """List those of pauses that are open, and take the others off, by their tokens.

        One whose token is damaged stays as it is.
        """
        for start in range(0, len(keys), _SLICE):
            await self._settle(keys[start : start + _SLICE])

    async def _settle(self, keys: Sequence[str]) -> None:
        now = ms_of(await self._transport.commands.time())
        answers = await asyncio.gather(*map(self._times, keys))
        still_open, closed = dict[str, tuple[int, int]](), list[str]()
        for key, times in zip(keys, answers, strict=True):
            if times is None:
                continue
            opened, expires = times
            if expires > now:
                still_open[key] = opened, expires - now
            else:
                closed.append(key)
        # Together: a round trip for each would take longer than a sweeper's claim lasts.
        await asyncio.gather(
            *(
                self.add(key, opened_ms=opened_ms, left_ms=left_ms)
                for key, (opened_ms, left_ms) in still_open.items()
            )
        )
        await self.remove(*closed)

    async def _times(self, key: str) -> tuple[int, int] | None:
        """Read when a listed pause was opened, and until when; None if its token is damaged.

        One that is not to be listed ended long ago.
        """
        reply = self._transport.commands.hmget(key, "state", "opened", "expires", "timer")
        try:
            held = await self._scripts.read(reply, key, command="HMGET")
            state, opened, expires, timer = held
            is_listed = state == b"open" and timer is None
            return (int(opened), int(expires)) if is_listed else (0, 0)
        except (CorruptState, ValueError, TypeError):
            return None
