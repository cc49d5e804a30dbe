"""The signal: rows are told to whoever listens, over one connection for all of them.

A signal carries the row, so that hearing it is enough; the log is the truth, so that missing it
is harmless.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

from redis_state.transport.connect import Transport
from redis_state.transport.scripts import topic_text
from redis_state.transport.subscriber import Subscription


class Row(NamedTuple):
    """One row as it is stored. ``id`` is the entry id, ``data`` the bytes that were appended."""

    n: int
    ms: int
    id: bytes
    topic: str | None
    data: bytes

    @property
    def cursor(self) -> str:
        """The cursor that reads on after this row."""
        return f"{self.n}-{self.ms}"


class Signal:
    """The messages of one channel, for one listener."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    async def next(self, *, within_s: float | None = None) -> Row | None:
        """Return the next row told, or None when some may have been missed: read the log.

        None comes first of all, once the server has confirmed that it will tell, and after
        ``within_s`` of silence.
        """
        message = await self._subscription.next(within_s=within_s)
        return None if message is None else read_message(message)


class Signals:
    """Where to listen."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @asynccontextmanager
    async def following(self, channel: str) -> AsyncGenerator[Signal, None]:
        """Listen to a channel for the length of the block."""
        subscriber = self._transport.subscriber
        subscription = subscriber.subscribe(channel)
        try:
            yield Signal(subscription)
        finally:
            subscriber.unsubscribe(subscription)


def read_message(message: bytes) -> Row | None:
    """Read ``<n>-<ms> <id length> <topic length> <id><topic><row>``; None if it is not one."""
    try:
        entry, id_size, topic_size, rest = message.split(b" ", 3)
        n, ms = entry.split(b"-")
        id_end = int(id_size)
        topic_end = id_end + int(topic_size)
        topic = topic_text(rest[id_end:topic_end])
        return Row(int(n), int(ms), rest[:id_end], topic, rest[topic_end:])
    except ValueError:
        return None
