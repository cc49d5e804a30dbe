"""Who knows where the server is now."""

from __future__ import annotations

import asyncio
from typing import Protocol

from redis_state.embedded.socket import EmbeddedSocket
from redis_state.transport.connections.address import Address


class Locator(Protocol):
    """Where to connect: queried before each connection, and meanwhile if it ``moves``."""

    @property
    def moves(self) -> bool:
        """Whether the server to use may become another one."""
        ...

    async def locate(self) -> Address:
        """Return the address of the server to use now.

        Errors: NoConnection if nobody knows; ConfigError if there is no server to start.
        """
        ...

    async def moved(self, address: Address) -> None:
        """Return when the server to use is certainly another one."""


class _Stays:
    moves = False

    async def moved(self, address: Address) -> None:
        """Wait for ever."""
        del address
        await asyncio.get_running_loop().create_future()


class FixedServer(_Stays):
    """A server whose address does not change. Its host may: each connection resolves its name."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def locate(self) -> Address:
        """Return its address."""
        return self._address


class EmbeddedLocator(_Stays):
    """An embedded server, started when it is first needed."""

    def __init__(self, socket: EmbeddedSocket) -> None:
        self._socket = socket

    async def locate(self) -> Address:
        """Return its address. It runs."""
        return Address.parse((await asyncio.to_thread(self._socket.locate)).url)
