"""Follow channels of a cluster: each at the node that has its slot, over one connection to a node.

A channel goes where its slot goes. Its followers get ``None`` there, once it is followed: what was
published meanwhile is in the log. A channel whose slot has no node waits for one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from redis_state.errors import BackendUnavailable, NoConnection
from redis_state.transport.cluster.sender import ClusterSender
from redis_state.transport.cluster.slots import slot_of
from redis_state.transport.connections.address import Endpoint
from redis_state.transport.connections.locator import FixedServer
from redis_state.transport.subscriber import Subscriber, Subscription
from redis_state.transport.wire.reply_errors import again

# When to look again for a channel that is not where its slot seemed to be, or is nowhere.
_AGAIN_S = 0.1


class ClusterSubscriber:
    """Follow channels over a connection to each primary that has any."""

    def __init__(self, sender: ClusterSender, *, shown_as: str, connect_timeout_s: float) -> None:
        self._sender = sender
        self._shown_as = shown_as
        self._connect_timeout_s = connect_timeout_s
        self._loop = asyncio.get_running_loop()
        self._nodes: dict[Endpoint, Subscriber] = {}
        self._places: dict[bytes, Subscriber] = {}
        # The channels that are followed, by their slots.
        self._channels: defaultdict[int, set[bytes]] = defaultdict(set)
        # Who follows a channel whose slot has no node that is known.
        self._waiting: dict[bytes, set[Subscription]] = {}
        # Channels that are looked at again soon.
        self._unsettled: set[bytes] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._past_connections = 0
        self._closed = False
        sender.on_slots = self._follow_slots
        sender.on_trouble = self._fail

    @property
    def connections(self) -> int:
        """Count the connections made so far, to all nodes."""
        return self._past_connections + sum(node.connections for node in self._nodes.values())

    def subscribe(self, channel: str) -> Subscription:
        """Begin to follow a channel, as `Subscriber.subscribe` does."""
        if self._closed:
            raise BackendUnavailable(self._shown_as, "the store is closed")
        subscription = Subscription(channel.encode(), self._loop)
        node = self._places.get(subscription.channel)
        if node is not None:
            node.adopt(subscription.channel, {subscription})
        else:
            self._channels[slot_of(subscription.channel)].add(subscription.channel)
            self._waiting.setdefault(subscription.channel, set()).add(subscription)
            self._place(subscription.channel)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop following. The channel itself is left when nobody else follows it."""
        channel = subscription.channel
        waiting = self._waiting.get(channel)
        if waiting is not None:
            subscription.hush()
            waiting.discard(subscription)
            if not waiting:
                del self._waiting[channel]
                self._forget(channel)
        node = self._places.get(channel)
        if node is not None:
            node.unsubscribe(subscription)
            if not node.follows(channel):
                del self._places[channel]
                self._forget(channel)

    async def aclose(self) -> None:
        """Disconnect. Safe to repeat. Who still waits for a message gets BackendUnavailable."""
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._fail(BackendUnavailable(self._shown_as, "the store is closed", final=True))
        await asyncio.gather(*(node.aclose() for node in self._nodes.values()), *self._closing)

    def _follow_slots(self, slots: set[int]) -> None:
        """Follow the channels of these slots where they are now; leave nodes that have none."""
        if self._closed:
            return
        for channel in [each for slot in slots for each in self._channels.get(slot, ())]:
            self._place(channel)
        for endpoint in [each for each, node in self._nodes.items() if not node.wanted()]:
            node = self._nodes.pop(endpoint)
            self._past_connections += node.connections
            closing = self._loop.create_task(node.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _place(self, channel: bytes) -> None:
        endpoint, node = self._sender.owner(slot_of(channel)), self._places.get(channel)
        if endpoint is None:
            self._look_again(channel)
            return
        owner = self._nodes.get(endpoint)
        if owner is None:
            address = self._sender.address.server(endpoint)
            owner = self._nodes[endpoint] = Subscriber(
                FixedServer(address),
                shown_as=str(address),
                connect_timeout_s=self._connect_timeout_s,
                moved=self._look_again,
                left=self._sender.in_trouble,
            )
        if owner is node:
            return
        followers = self._waiting.pop(channel, set())
        if node is not None:
            followers |= node.release(channel)
        self._places[channel] = owner
        owner.adopt(channel, followers)

    def _forget(self, channel: bytes) -> None:
        slot = slot_of(channel)
        self._channels[slot].discard(channel)
        if not self._channels[slot]:
            del self._channels[slot]

    def _look_again(self, channel: bytes) -> None:
        """Look who has the slot of a channel, now and in a moment."""
        node = self._places.pop(channel, None)
        if node is not None:
            self._waiting.setdefault(channel, set()).update(node.release(channel))
        self._unsettled.add(channel)
        if self._alarm is None and not self._closed:
            self._alarm = self._loop.call_later(_AGAIN_S, self._look)
        self._sender.in_trouble()

    def _look(self) -> None:
        self._alarm = None
        unsettled, self._unsettled = self._unsettled, set()
        for channel in unsettled:
            if channel in self._waiting:
                self._place(channel)

    def _fail(self, error: NoConnection) -> None:
        """Give who waits for a node the error, if waiting is useless."""
        if error.final:
            waiting, self._waiting = self._waiting, {}
            for channel, followers in waiting.items():
                self._forget(channel)
                for subscription in followers:
                    subscription.deliver(again(error))
