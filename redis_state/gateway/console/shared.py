"""What many tabs show is read once for all that see the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from time import monotonic
from typing import Any, NamedTuple

_SHARED_S = 2.0
_MOST = 100


class _SharedRead(NamedTuple):
    """What was read, and since when it may be older than what is now."""

    begun_at: float
    found: Any


class SharedReads:
    """The last thing that was read for each of those who see the same, for two seconds.

    One read of a thing is under way at a time, however many ask. If it fails, it fails for all who
    wait for it.
    """

    def __init__(self) -> None:
        self._read: dict[Hashable, _SharedRead] = {}
        # A loop has reads of its own: a future is awaited in its own loop.
        self._reading: dict[
            tuple[asyncio.AbstractEventLoop, Hashable], asyncio.Future[Exception | None]
        ] = {}

    async def get(self, who: Hashable, read: Callable[[], Awaitable[Any]]) -> Any:
        """Return what was read lately, or read it."""
        return await self._begun_since(monotonic() - _SHARED_S, who, read)

    async def renew(self, who: Hashable, read: Callable[[], Awaitable[Any]]) -> Any:
        """Return what is there now: of a read that begins after this call."""
        return await self._begun_since(monotonic(), who, read)

    async def _begun_since(
        self, since: float, who: Hashable, read: Callable[[], Awaitable[Any]]
    ) -> Any:
        place = asyncio.get_running_loop(), who
        while (kept := self._read.get(who)) is None or kept.begun_at <= since:
            reading = self._reading.get(place)
            if reading is None:
                return await self._lead(place, read)
            # Who leads may be cancelled: then the next of those who wait leads.
            await asyncio.wait({reading})
            if (error := reading.result()) is not None:
                raise error
        return kept.found

    async def _lead(
        self,
        place: tuple[asyncio.AbstractEventLoop, Hashable],
        read: Callable[[], Awaitable[Any]],
    ) -> Any:
        loop, who = place
        done = self._reading[place] = loop.create_future()
        try:
            begun_at = monotonic()
            found = await read()
            self._keep(who, _SharedRead(begun_at, found))
        except Exception as error:
            done.set_result(error)
            raise
        finally:
            del self._reading[place]
            if not done.done():
                done.set_result(None)
        return found

    def _keep(self, who: Hashable, what: _SharedRead) -> None:
        self._read.pop(who, None)
        while len(self._read) >= _MOST:
            # The one that was read first.
            del self._read[next(iter(self._read))]
        self._read[who] = what
