"""The store's way to the server: one sender and one subscriber for each event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass

from redis_state.embedded.socket import EmbeddedSocket
from redis_state.settings import Settings
from redis_state.transport.cluster.sender import ClusterSender
from redis_state.transport.cluster.subscriber import ClusterSubscriber
from redis_state.transport.commands import Commands
from redis_state.transport.connections.address import Address
from redis_state.transport.connections.locator import EmbeddedLocator, FixedServer, Locator
from redis_state.transport.connections.login import login_of
from redis_state.transport.connections.sentinel import Sentinels
from redis_state.transport.movable_clock import sender_with_clock, shift_key_of
from redis_state.transport.sending.calls import CallSender
from redis_state.transport.sending.guarantee import Guarantee
from redis_state.transport.subscriber import Subscriber


@dataclass(slots=True)
class _Links:
    sender: CallSender
    commands: Commands
    subscriber: Subscriber | ClusterSubscriber
    sentinels: Sentinels | None
    until_loop_ends: AsyncGenerator[None]
    closed: bool = False

    async def aclose(self, drain_s: float) -> None:
        self.closed = True
        await self.subscriber.aclose()
        await self.sender.aclose(drain_s=drain_s)
        if self.sentinels is not None:
            await self.sentinels.aclose()


class Transport:
    """Connections to one server, made at the first use, one set per running event loop.

    The same object serves two loops, one after the other or at once in two threads: nothing of
    one loop is used in another, and closing it in one closes it there only. An ``embedded://``
    address starts its server at the first use.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings: Settings = settings
        self.address: Address = Address.parse(settings.url.get_secret_value())
        self._sender = sender_with_clock(shift_key_of(settings, in_cluster=self.address.is_cluster))
        self._guarantee: Guarantee | None = Guarantee.of(settings)
        self._links: dict[asyncio.AbstractEventLoop, _Links] = {}
        self._lock = threading.Lock()
        self._embedded: EmbeddedSocket | None = None
        # Credentials that cannot be used are named here, not by the first call.
        self.address.with_login(login_of(settings))
        if self.address.scheme == "embedded":
            self._embedded = EmbeddedSocket(self.address.directory)

    @property
    def sender(self) -> CallSender:
        """The running loop's sender."""
        links = self._links.get(asyncio.get_running_loop()) or self._of_this_loop()
        return links.sender

    @property
    def commands(self) -> Commands:
        """The single commands, sent by the running loop's sender."""
        links = self._links.get(asyncio.get_running_loop()) or self._of_this_loop()
        return links.commands

    @property
    def subscriber(self) -> Subscriber | ClusterSubscriber:
        """The running loop's subscriber."""
        return self._of_this_loop().subscriber

    @property
    def closed(self) -> bool:
        """Whether the running loop was disconnected: its further calls are refused."""
        links = self._links.get(asyncio.get_running_loop())
        return links is not None and links.closed

    async def each_server(self) -> list[tuple[Address, CallSender]]:
        """Return the address of each server that has keys, and who sends to it.

        Errors: NoConnection, ConfigError.
        """
        links = self._of_this_loop()
        if isinstance(links.sender, ClusterSender):
            return [(node.address, node) for node in await links.sender.primaries()]
        locator = links.sentinels or self._locator(self.address)
        return [(await locator.locate(), links.sender)]

    async def each_primary(self) -> list[Commands]:
        """Return the single commands of each server that has keys. Errors: as `each_server`."""
        return [Commands(sender) for _, sender in await self.each_server()]

    async def drain(self, timeout_s: float | None = None) -> None:
        """Wait until what this loop has queued is done. Errors: TimeoutError."""
        await self.sender.drain(timeout_s)

    async def aclose(self, *, drain_s: float = 5.0) -> None:
        """Finish what is queued and disconnect this loop; later calls in it are refused.

        The last open loop also stops using an embedded server, which ends with its last user.
        """
        await self._of_this_loop().aclose(drain_s)
        with self._lock:
            in_use = any(
                not (links.closed or loop.is_closed()) for loop, links in self._links.items()
            )
        if not in_use and self._embedded is not None:
            await asyncio.to_thread(self._embedded.release)

    def _of_this_loop(self) -> _Links:
        loop = asyncio.get_running_loop()
        links = self._links.get(loop)
        if links is None:
            with self._lock:
                for other in [known for known in self._links if known.is_closed()]:
                    del self._links[other]
                links = self._links[loop] = self._make()
        return links

    def _locator(self, address: Address) -> Locator:
        return FixedServer(address) if self._embedded is None else EmbeddedLocator(self._embedded)

    def _make(self) -> _Links:
        # Each loop asks for its credentials by itself.
        address = self.address.with_login(login_of(self.settings))
        shown_as = str(address)
        call_s, connect_s = self.settings.call_timeout_s, self.settings.connect_timeout_s
        busy_poll_s = self.settings.busy_poll_us / 1e6
        sentinels = None
        sender: CallSender
        subscriber: Subscriber | ClusterSubscriber
        if address.is_cluster:
            sender = ClusterSender(
                address,
                call_timeout_s=call_s,
                connect_timeout_s=connect_s,
                busy_poll_s=busy_poll_s,
                guarantee=self._guarantee,
            )
            subscriber = ClusterSubscriber(sender, shown_as=shown_as, connect_timeout_s=connect_s)
        else:
            if address.service:
                sentinels = Sentinels(address, connect_timeout_s=connect_s)
            locator = sentinels or self._locator(address)
            subscriber = Subscriber(locator, shown_as=shown_as, connect_timeout_s=connect_s)
            sender = self._sender(
                locator,
                shown_as=shown_as,
                call_timeout_s=call_s,
                connect_timeout_s=connect_s,
                busy_poll_s=busy_poll_s,
                guarantee=self._guarantee,
                # A replica accepts subscriptions, and may not hear what is published.
                left=subscriber.renew,
            )
        until_loop_ends = _until_loop_ends(sender, subscriber, sentinels)
        return _Links(sender, Commands(sender), subscriber, sentinels, until_loop_ends)


def _until_loop_ends(
    sender: CallSender, subscriber: Subscriber | ClusterSubscriber, sentinels: Sentinels | None
) -> AsyncGenerator[None]:
    """Disconnect, without draining, when the loop is shut down.

    A loop that ends cancels the tasks it has then. What those call in their last moments makes
    new ones; only asynchronous generators are ended after them.
    """

    async def wait() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await subscriber.aclose()
            await sender.aclose(drain_s=0)
            if sentinels is not None:
                await sentinels.aclose()

    generator = wait()
    with suppress(StopIteration):
        # The first step makes the loop know the generator. It waits for nothing.
        generator.asend(None).send(None)
    return generator
