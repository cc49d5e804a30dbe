"""All servers that have keys: one, or each primary of a cluster."""

from __future__ import annotations

from typing import Any

from redis_state.transport.calls import CallSender
from redis_state.transport.cluster.sender import ClusterSender
from redis_state.transport.transport import Transport
from redis_state.transport.wire.resp import Argument


async def ask_each(transport: Transport, *command: Argument) -> list[Any]:
    """Send a command that is about no key to each server; list the replies."""
    return [await sender.send(*command, repeatable=True) for sender in await _senders(transport)]


async def primaries(transport: Transport) -> int:
    """Count the servers that have keys."""
    return len(await _senders(transport))


async def keys_like(transport: Transport, pattern: str) -> list[bytes]:
    """List the keys that match a pattern, on whichever server they are."""
    found: set[bytes] = set()
    for sender in await _senders(transport):
        cursor = b"0"
        while True:
            cursor, keys = await sender.send(
                "SCAN", cursor, "MATCH", pattern, "COUNT", 1000, repeatable=True
            )
            found.update(keys)
            if cursor == b"0":
                break
    return sorted(found)


async def subscribers(transport: Transport, *channels: str, sharded: bool = True) -> list[int]:
    """Count the connections that listen to each channel, to whichever server they lead."""
    count = "SHARDNUMSUB" if sharded else "NUMSUB"
    replies = await ask_each(transport, "PUBSUB", count, *channels)
    return [sum(map(int, counts)) for counts in zip(*(each[1::2] for each in replies), strict=True)]


async def _senders(transport: Transport) -> list[CallSender]:
    sender = transport.sender
    return [*await sender.primaries()] if isinstance(sender, ClusterSender) else [sender]
