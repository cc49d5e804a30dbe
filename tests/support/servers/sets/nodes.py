"""All servers that have keys: one, or each primary of a cluster; with the right to do anything."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from redis_state.transport.cluster.sender import ClusterSender
from redis_state.transport.sending.calls import CallSender
from redis_state.transport.transport import Transport
from redis_state.transport.wire.resp import Argument
from tests.support.servers.choice import SUITE_USER
from tests.support.servers.faults import sender_to

# These are about a server and not about a key.
_OF_SERVERS = frozenset({"ACL", "CLIENT", "CONFIG", "INFO", "PUBSUB", "SCRIPT", "TIME"})


async def ask_beside(transport: Transport, *command: Argument) -> Any:
    """Send a command that the library itself never sends: to the server that has its key.

    One that is about no key goes to each server; the first one's reply is returned.
    """
    if command[0] in _OF_SERVERS:
        return (await ask_each(transport, *command))[0]
    if isinstance(transport.sender, ClusterSender):
        return await transport.sender.send(*command, repeatable=True)
    async with _senders(transport) as (sender, *_):
        return await sender.send(*command, repeatable=True)


async def ask_each(transport: Transport, *command: Argument) -> list[Any]:
    """Send a command that is about no key to each server; list the replies."""
    async with _senders(transport) as senders:
        return [await sender.send(*command, repeatable=True) for sender in senders]


async def sent_so_far(transport: Transport) -> tuple[int, int]:
    """Count the commands that the servers have run, and the bytes that they have answered."""
    infos: list[bytes] = await ask_each(transport, "INFO", "commandstats")
    calls = [
        int(line.partition(b"calls=")[2].partition(b",")[0])
        for info in infos
        for line in info.splitlines()
        if line.startswith(b"cmdstat_")
    ]
    stats: list[bytes] = await ask_each(transport, "INFO", "stats")
    sent = [
        int(line.partition(b":")[2])
        for each in stats
        for line in each.splitlines()
        if line.startswith(b"total_net_output_bytes:")
    ]
    return sum(calls), sum(sent)


async def primaries(transport: Transport) -> int:
    """Count the servers that have keys."""
    async with _senders(transport) as senders:
        return len(senders)


async def keys_like(transport: Transport, pattern: str) -> list[bytes]:
    """List the keys that match a pattern, on whichever server they are."""
    found: set[bytes] = set()
    async with _senders(transport) as senders:
        for sender in senders:
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


@asynccontextmanager
async def _senders(transport: Transport) -> AsyncGenerator[list[CallSender]]:
    sender, options = transport.sender, transport.address.options
    if isinstance(sender, ClusterSender):
        yield [*await sender.primaries()]
    elif options.get("username") == SUITE_USER and transport.address.scheme == "unix":
        async with sender_to(f"unix://{options['path']}") as beside:
            yield [beside]
    else:
        yield [sender]
