"""What the side stores share: settings and connections of their own, made without I/O."""

from __future__ import annotations

from typing import Self

from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.stores.base import Base


class StandaloneStore:
    """A store beside the state store. Usable from any event loop; the first call connects."""

    def __init__(self, settings: Settings) -> None:
        self._state = RedisStateStore(settings)

    @property
    def settings(self) -> Settings:
        """What it was made with."""
        return self._state.settings

    @property
    def base(self) -> Base:
        """The parts that it is made of."""
        return self._state.base

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        address = self._state.transport.address
        return f"<{type(self).__name__} {address} namespace={self.settings.namespace}>"

    async def drain(self, timeout_s: float | None = None) -> None:
        """Wait until every call made so far in this loop has its outcome. Errors: TimeoutError."""
        await self._state.drain(timeout_s)

    async def aclose(self) -> None:
        """Finish what was called and disconnect the running loop. Safe to repeat."""
        await self._state.aclose()
