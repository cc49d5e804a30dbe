"""What several tabs of one person show is read once for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from redis_state.gateway.auth.principal import Principal

_SHARED_S = 2.0
_MOST = 100


class SharedReads:
    """The last thing that was read for each caller, for two seconds."""

    def __init__(self) -> None:
        self._read: dict[Principal, tuple[float, Any]] = {}

    async def get(self, principal: Principal, read: Callable[[], Awaitable[Any]]) -> Any:
        """Return what was read for a caller lately, or read it."""
        kept = self._read.get(principal)
        if kept is not None and monotonic() - kept[0] < _SHARED_S:
            return kept[1]
        return await self.renew(principal, read)

    async def renew(self, principal: Principal, read: Callable[[], Awaitable[Any]]) -> Any:
        """Read it, and keep it."""
        found, now = await read(), monotonic()
        if len(self._read) >= _MOST:
            self._read = {
                who: kept for who, kept in self._read.items() if now - kept[0] < _SHARED_S
            }
        if len(self._read) < _MOST:
            self._read[principal] = (now, found)
        return found
