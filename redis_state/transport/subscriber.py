"""One subscription connection per event loop and server, shared by every followed channel.

Channels are sharded: a cluster's node publishes to its own subscribers, and to no other node. One
server treats them like any others. So scripts publish in one way everywhere.

Pub/sub is at most once: messages during a lost connection are lost. So every subscription learns of
each new connection (by a ``None``) and of its own overflow. It repairs from the log, which is the
truth.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, cast

import hiredis

from redis_state.errors import BackendUnavailable, ConfigError, NoConnection, RedisStateError
from redis_state.timeouts import timeout
from redis_state.transport.connections.locator import Locator
from redis_state.transport.connections.protocol import ProtocolBroken, RespProtocol
from redis_state.transport.connections.reconnecting import ReconnectingConnection
from redis_state.transport.sending.future import EagerFuture
from redis_state.transport.wire.reply_errors import Refusal, again, not_now, reply_error

log: logging.Logger = logging.getLogger(__name__)

_QUEUE_LIMIT, _QUEUE_BYTES = 1000, 1 << 23
# A connection that is silent for so long is sent a PING, and given up after as long again.
_SILENT_S = 2.0
_LONGEST_BACKOFF_S = 1.0
_PING = ("PING", b"")
# What a node of a cluster answers to the command that leaves a channel of another node's.
_ELSEWHERE = frozenset({"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"})
_pack: Callable[[tuple[str, bytes]], bytes] = cast("Any", hiredis).pack_command


class Subscription:
    """Messages of one channel, for one local subscriber, in order."""

    def __init__(self, channel: bytes, loop: asyncio.AbstractEventLoop) -> None:
        self.channel = channel
        self._loop = loop
        self._messages: deque[bytes | RedisStateError | None] = deque()
        # Of those, in bytes.
        self._queued = 0
        self._waiting: EagerFuture | None = None
        self._alarm: asyncio.TimerHandle | None = None
        # Nothing was delivered since the alarm was set.
        self._silent = False

    def deliver(self, message: bytes | RedisStateError | None) -> None:
        """Give a message to the waiter, else queue it. None and errors displace queued messages.

        A subscriber that is too slow gets ``None`` in place of all.
        """
        self._silent = False
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            if isinstance(message, RedisStateError):
                waiting.set_exception(message)
            else:
                waiting.resolve(message)
            return
        size = len(message) if isinstance(message, bytes) else 0
        full = len(self._messages) >= _QUEUE_LIMIT or self._queued + size > _QUEUE_BYTES
        if full or not isinstance(message, bytes):
            self._messages.clear()
            self._queued = size = 0
            message = None if isinstance(message, bytes) else message
        self._messages.append(message)
        self._queued += size

    def next(self, *, within_s: float | None = None) -> asyncio.Future[bytes | None]:
        """Ask for the next message, or None: messages may be missing, read the log.

        To be awaited at once, one at a time: what it has been given is taken from the queue.
        None also after ``within_s`` of silence, or up to twice as much. Errors: what keeps
        messages from ever coming. BackendUnavailable if the store is closed or no connection can be
        made without a change, AuthenticationFailed, CommandRefused if the server refuses the
        channel, ConfigError.
        """
        self._waiting = answer = EagerFuture(loop=self._loop)
        answer.waiter = None
        if self._messages:
            message = self._messages.popleft()
            self._queued -= len(message) if isinstance(message, bytes) else 0
            self.deliver(message)
        elif within_s is not None and self._alarm is None:
            self._ring_after(within_s)
        return answer

    def hush(self) -> None:
        """Forget the alarm: the next call of `next` may set another."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _ring_after(self, silence_s: float) -> None:
        # One alarm outlives many messages: a message costs no look at the clock.
        self._silent = True
        self._alarm = self._loop.call_later(silence_s, self._ring, silence_s)

    def _ring(self, silence_s: float) -> None:
        self._alarm = None
        waiting = self._waiting
        if waiting is None or waiting.done():
            return
        if self._silent:
            waiting.resolve(None)
        else:
            self._ring_after(silence_s)


class Subscriber:
    """Follow channels over one connection of the running event loop."""

    def __init__(
        self,
        locator: Locator,
        *,
        shown_as: str,
        connect_timeout_s: float = 5.0,
        moved: Callable[[bytes], None] | None = None,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        self._shown_as = shown_as
        # Called when another server has a channel, and when this one is lost or cannot be reached.
        self._moved = moved or self._subscribe
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._connection = ReconnectingConnection(
            self,
            locator,
            name="redis_state subscriber",
            connect_timeout_s=connect_timeout_s,
            longest_backoff_s=_LONGEST_BACKOFF_S,
        )
        self._followers: dict[bytes, set[Subscription]] = {}
        self._confirmed: set[bytes] = set()
        # What was sent and not answered. Every command here gets one answer, in order. That to
        # SUNSUBSCRIBE may come twice, or be an error: it is over with the answer behind it.
        self._requested: deque[tuple[str, bytes]] = deque()
        # Of those, what is not written yet.
        self._unsent: list[bytes] = []
        self._closed = False

    def subscribe(self, channel: str) -> Subscription:
        """Begin to follow a channel. Does not wait. Errors: BackendUnavailable when closed.

        The first ``next()`` returns None as soon as the server has confirmed: from then on
        messages come, so a log read after it misses nothing.
        """
        if self._closed:
            raise BackendUnavailable(self._shown_as, "the store is closed")
        subscription = Subscription(channel.encode(), self._loop)
        self.adopt(subscription.channel, {subscription})
        return subscription

    def adopt(self, channel: bytes, followers: set[Subscription]) -> None:
        """Follow a channel for these, as `subscribe` does."""
        first = channel not in self._followers
        self._followers.setdefault(channel, set()).update(followers)
        if channel in self._confirmed:
            for subscription in followers:
                subscription.deliver(None)
        elif first:
            self._subscribe(channel)
        self._connection.need()

    def release(self, channel: bytes) -> set[Subscription]:
        """Give up a channel, and return who follows it."""
        followers = self._followers.pop(channel, set())
        if followers:
            self._confirmed.discard(channel)
            self._ask("SUNSUBSCRIBE", channel)
        return followers

    def follows(self, channel: bytes) -> bool:
        """Return whether a channel is followed here."""
        return channel in self._followers

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop following. The channel itself is left when nobody else follows it."""
        subscription.hush()
        followers = self._followers.get(subscription.channel, set())
        if subscription in followers:
            followers.discard(subscription)
            if not followers:
                del self._followers[subscription.channel]
                self._confirmed.discard(subscription.channel)
                self._ask("SUNSUBSCRIBE", subscription.channel)

    def renew(self) -> None:
        """Follow all channels over a new connection, to where the address leads now."""
        protocol = self._connection.protocol
        if protocol is not None:
            protocol.leave("the server is not the one to ask any more")

    async def aclose(self) -> None:
        """Disconnect. Safe to repeat. Who still waits for a message gets BackendUnavailable."""
        self._closed = True
        await self._connection.aclose()
        self._deliver_all(BackendUnavailable(self._shown_as, "the store is closed"))

    @property
    def connections(self) -> int:
        """Count the connections made so far."""
        return self._connection.connections

    def wanted(self) -> bool:
        """Return whether a channel has followers."""
        return bool(self._followers)

    async def use(self, protocol: RespProtocol) -> None:
        """Follow all channels until the connection ends, or does not answer a ping in time."""

        async def log_in(_words: tuple[str, ...]) -> None:
            # Who listens may not: a new connection does.
            protocol.abort("the credentials have changed")

        protocol.renew_login(log_in)
        for channel in self._followers:
            self._subscribe(channel)
        heard_at, pinged = protocol.heard_at, False
        while not pinged or protocol.heard_at > heard_at:
            pinged = monotonic() - protocol.heard_at >= _SILENT_S
            if pinged:
                self._ask(*_PING)
            heard_at = protocol.heard_at
            wait_s = _SILENT_S if pinged else heard_at + _SILENT_S - monotonic()
            with suppress(TimeoutError):
                async with timeout(wait_s):
                    await protocol.lost()
                    return

    def ended(self) -> None:
        """Forget what was confirmed."""
        self._confirmed.clear()
        self._requested.clear()
        self._unsent.clear()
        self._left()

    def failed(self, error: Exception) -> None:
        """Raise the error to the followers, if waiting is useless."""
        if isinstance(error, ConfigError) or (isinstance(error, NoConnection) and error.final):
            self._deliver_all(error)
        elif isinstance(error, NoConnection):
            log.debug("the subscription connection could not be made: %s", error)
            self._left()
        else:
            log.error("the subscription connection failed; it is made again", exc_info=error)

    def _subscribe(self, channel: bytes) -> None:
        self._ask("SSUBSCRIBE", channel)

    def _ask(self, verb: str, channel: bytes) -> None:
        """Send a command, if there is a connection; a later one will begin with all channels.

        Those of one turn of the loop leave together at its end: runs begin and end many at a time.
        """
        if self._connection.protocol is not None:
            commands = [(verb, channel)]
            if verb == "SUNSUBSCRIBE":
                # Tells its answer from the news of a moved slot, which looks alike.
                commands.append(_PING)
            self._requested.extend(commands)
            if not self._unsent:
                self._loop.call_soon(self._flush)
            self._unsent += map(_pack, commands)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        protocol = self._connection.protocol
        if protocol is not None and unsent:
            protocol.write(b"".join(unsent))

    def hear(self, replies: list[Any]) -> None:
        """Take replies to commands, and messages to their subscribers."""
        for reply in replies:
            match reply:
                case [b"smessage", channel, message]:
                    self._deliver(channel, message)
                case [b"ssubscribe", channel, _]:
                    self._answered(("SSUBSCRIBE", channel))
                    if channel in self._followers:
                        self._confirmed.add(channel)
                        self._deliver(channel, None)
                case [b"sunsubscribe", channel, _]:
                    self._unsubscribed(channel)
                # The latter when no channel is followed.
                case [b"pong", _] | b"":
                    self._left_behind()
                    self._answered(_PING)
                case Refusal() if self._leaving() is not None and reply.code in _ELSEWHERE:
                    # Another node has the channel: it is left. The PING is still to be answered.
                    pass
                case Refusal():
                    self._left_behind()
                    self._refused(self._answered(None), reply)
                case _:
                    raise ProtocolBroken("a reply that no command has")

    def _unsubscribed(self, channel: bytes) -> None:
        """Take the news that another node has the slot of a channel now, or an answer."""
        if channel in self._confirmed and channel != self._leaving():
            self._confirmed.discard(channel)
            self._moved(channel)

    def _leaving(self) -> bytes | None:
        """Return the channel that the oldest command leaves; None if it does something else."""
        if self._requested and self._requested[0][0] == "SUNSUBSCRIBE":
            return self._requested[0][1]
        return None

    def _left_behind(self) -> None:
        """Take a channel as left: the command behind is answered."""
        if self._leaving() is not None:
            self._requested.popleft()

    def _answered(self, command: tuple[str, bytes] | None) -> tuple[str, bytes]:
        """Take the oldest command as answered; it must be ``command``, if that is known."""
        if not self._requested or command not in (None, self._requested[0]):
            raise ProtocolBroken("a reply to a command that was not sent")
        return self._requested.popleft()

    def _deliver(self, channel: bytes, message: bytes | None) -> None:
        # A subscriber that gets a message continues at once, and may stop to follow.
        for subscription in tuple(self._followers.get(channel, ())):
            subscription.deliver(message)

    def _refused(self, command: tuple[str, bytes], error: Refusal) -> None:
        verb, channel = command
        if verb != "SSUBSCRIBE" or channel not in self._followers:
            return
        if error.code == "MOVED" and self._moved != self._subscribe:
            self._moved(channel)
            return
        reason, protocol = not_now(error), self._connection.protocol
        if reason is not None and protocol is not None:
            protocol.leave(reason)
            return
        # The next follower subscribes again.
        for subscription in self._followers.pop(channel, set()):
            subscription.deliver(reply_error(error, self._shown_as, command=verb))

    def _deliver_all(self, error: ConfigError | NoConnection) -> None:
        for followers in self._followers.values():
            for subscription in followers:
                subscription.deliver(again(error))
