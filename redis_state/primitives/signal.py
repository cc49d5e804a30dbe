"""The signal: rows are delivered to subscribers, over one connection for all of them.

A message carries the row, so a subscriber needs no read. The log is the truth, so a missed message
is harmless.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

from redis_state.scripts import topic_text
from redis_state.transport.subscriber import Subscription
from redis_state.transport.transport import Transport


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


@asynccontextmanager
async def listening(transport: Transport, channel: str) -> AsyncGenerator[Subscription, None]:
    """Listen to a channel for the length of the block; `read_message` returns what is published.

    The first message is None, once the server has confirmed the subscription.
    """
    subscriber = transport.subscriber
    subscription = subscriber.subscribe(channel)
    try:
        yield subscription
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
