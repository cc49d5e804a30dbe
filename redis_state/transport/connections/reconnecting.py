"""One connection of an event loop: reconnects with backoff while it is needed."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any, Protocol

from redis_state.backoff import Backoff
from redis_state.errors import BackendUnavailable
from redis_state.timeouts import timeout
from redis_state.transport.connections.address import Address
from redis_state.transport.connections.locator import Locator
from redis_state.transport.connections.protocol import Check, RespProtocol, open_protocol

_FIRST_BACKOFF_S = 0.01
_MOVED = "the server to use is another one now"


class ConnectionListener(Protocol):
    """Callbacks of a connection's owner."""

    def wanted(self) -> bool:
        """Return whether a connection is needed now."""
        ...

    async def use(self, protocol: RespProtocol) -> None:
        """Use a new connection until it has ended, or is of no use any more."""

    def hear(self, replies: list[Any]) -> None:
        """Take the replies that were read together. ProtocolBroken ends the connection."""

    def ended(self) -> None:
        """Handle the end of the connection. There is none now."""

    def failed(self, error: Exception) -> None:
        """Handle what `open_protocol`, ``use`` or ``hear`` raised: there is no connection."""


class ReconnectingConnection:
    """Keep one connection open while it is needed. Nothing is done before `need` is called."""

    def __init__(
        self,
        listener: ConnectionListener,
        locator: Locator,
        *,
        name: str,
        connect_timeout_s: float,
        longest_backoff_s: float,
        check: Check | None = None,
    ) -> None:
        self._listener = listener
        self._locator = locator
        self._name = name
        self._connect_timeout_s = connect_timeout_s
        self._backoff_s = Backoff(_FIRST_BACKOFF_S, longest_backoff_s)
        self._check = check
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.protocol: RespProtocol | None = None
        self.connections: int = 0

    def need(self) -> None:
        """Connect, if there is no connection."""
        self._wake.set()
        if not self._closed and (self._task is None or self._task.done()):
            self._start()

    async def aclose(self) -> None:
        """Disconnect for good. Safe to repeat."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name=self._name)
        self._task.add_done_callback(self._start_again)

    def _start_again(self, over: asyncio.Task[None]) -> None:
        # A loop that ends cancels its tasks, this one too, but lets them call in `finally`.
        if over is self._task and self._listener.wanted() and not self._closed:
            self._start()

    async def _keep(self) -> None:
        failures = 0
        while True:
            while not self._listener.wanted():
                self._wake.clear()
                await self._wake.wait()
            if await self._connect_and_use():
                failures = 0
            # Also after a connection that broke at once: what broke it may be sent again.
            failures += 1
            await asyncio.sleep(self._backoff_s.after(failures))

    async def _connect_and_use(self) -> bool:
        """Use a connection until it ends; return whether it was of use."""
        of_use, listener = False, self._listener
        try:
            address = await self._locator.locate()
            opening = timeout(None)
            watching = None
            if self._locator.moves:
                watching = asyncio.create_task(self._leave_when_moved(address, opening))
            try:
                protocol = await self._open(address, opening)
                self.connections += 1
                self.protocol = protocol
                try:
                    await listener.use(protocol)
                finally:
                    lived_s = monotonic() - protocol.opened_at
                    soon = protocol.faulty and lived_s < 2 * self._backoff_s.longest
                    of_use = protocol.heard_at > protocol.opened_at and not soon
                    self.protocol = None
                    protocol.abort("the connection was given up")
                    listener.ended()
            finally:
                if watching is not None:
                    watching.cancel()
                    await asyncio.wait({watching})
        except Exception as error:  # noqa: BLE001 - the user passes it to its waiters
            listener.failed(error)
        return of_use

    async def _open(self, address: Address, opening: asyncio.Timeout) -> RespProtocol:
        try:
            async with opening:
                return await open_protocol(
                    address,
                    self._listener.hear,
                    timeout_s=self._connect_timeout_s,
                    check=self._check,
                )
        except TimeoutError:
            raise BackendUnavailable(str(address), _MOVED) from None

    async def _leave_when_moved(self, address: Address, opening: asyncio.Timeout) -> None:
        """Leave a server that is not the one to use any more, even if it never answers."""
        await self._locator.moved(address)
        if self.protocol is None:
            opening.reschedule(0)
        else:
            self.protocol.abort(_MOVED)
