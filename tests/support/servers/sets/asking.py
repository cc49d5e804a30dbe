"""Servers of a set that are asked by their ports, many times while a test waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from redis_state.testing import eventually

# How often is asked what takes seconds.
_APART_S = 0.1
# A set of so many processes on a busy machine.
PATIENCE_S = 60


class Clients:
    """Clients by the ports of their servers: one for each question, unless they are kept."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make
        self._kept: ContextVar[dict[int, Any] | None] = ContextVar("kept", default=None)

    @asynccontextmanager
    async def of(self, port: int) -> AsyncGenerator[Any]:
        """Give a client of a server."""
        kept = self._kept.get()
        if kept is None:
            async with self._make(port) as client:
                yield client
            return
        if port not in kept:
            kept[port] = self._make(port)
        yield kept[port]

    @asynccontextmanager
    async def kept(self) -> AsyncGenerator[None]:
        """Keep the clients that this task asks for the length of the block."""
        kept = dict[int, Any]()
        before = self._kept.set(kept)
        try:
            yield
        finally:
            self._kept.reset(before)
            for client in kept.values():
                await client.aclose()

    async def until(self, condition: Callable[[], Awaitable[bool]], described: str) -> None:
        """Ask until a condition holds, and not often."""

        async def spaced() -> bool:
            holds = await condition()
            if not holds:
                await asyncio.sleep(_APART_S)
            return holds

        async with self.kept():
            await eventually(spaced, described, timeout_s=PATIENCE_S)
