"""Slots: which one a key has, and which node has it."""

from __future__ import annotations

import asyncio
import random
from binascii import crc_hqx
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from redis.exceptions import RedisError, ResponseError

from redis_state.errors import BackendUnavailable, ConfigError, NoConnection
from redis_state.timeouts import timeout
from redis_state.transport.connections.address import Address, Endpoint
from redis_state.transport.connections.login import connect_and_log_in
from redis_state.transport.wire.reply_errors import connect_error
from redis_state.transport.wire.resp import Argument

SLOTS = 16384
# How many nodes are queried at once, and after how long a silence so many more.
_AT_ONCE = 3
_SILENT_S = 1.0
# Sooner than a first call is given up, whose error would not say that no node has answered.
_ANSWER_PART = 0.8


@lru_cache(maxsize=8192)
def slot_of(key: Argument) -> int:
    """Return the slot of a key: of the text in its first braces, if there is any."""
    data = key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogatepass")
    opened = data.find(b"{")
    closed = data.find(b"}", opened + 1) if opened >= 0 else -1
    return crc_hqx(data[opened + 1 : closed] if closed > opened + 1 else data, 0) % SLOTS


class SlotRange(NamedTuple):
    """Slots from the first to the last, and the primary that has them."""

    first: int
    last: int
    owner: Endpoint


@dataclass(frozen=True, slots=True)
class SlotMap:
    """Which primary has which slots, and all nodes. A slot that nobody has is in no range."""

    ranges: tuple[SlotRange, ...]
    nodes: tuple[Endpoint, ...]

    @property
    def primaries(self) -> set[Endpoint]:
        """The nodes that have slots."""
        return {each.owner for each in self.ranges}


async def read_slot_map(
    address: Address, nodes: Collection[Endpoint], *, timeout_s: float
) -> SlotMap:
    """Ask nodes of a cluster, some at a time, until one knows who has which slot.

    Each has nearly ``timeout_s``. Nodes that say nothing hold no other up.
    Errors: NoConnection, of the last that did not.
    """
    waiting, most = random.sample(list(nodes), len(nodes)), _AT_ONCE
    failure: NoConnection = BackendUnavailable(str(address), "no node of the cluster is known")
    asking: set[asyncio.Task[SlotMap | NoConnection]] = set()
    try:
        while waiting or asking:
            while waiting and len(asking) < most:
                asking.add(
                    asyncio.create_task(_ask(address, waiting.pop(), timeout_s * _ANSWER_PART))
                )
            done, asking = await asyncio.wait(
                asking, timeout=_SILENT_S, return_when=asyncio.FIRST_COMPLETED
            )
            most += 0 if done else _AT_ONCE
            for task in done:
                found = task.result()
                if isinstance(found, SlotMap):
                    return found
                failure = found
    finally:
        for task in asking:
            task.cancel()
    raise failure


async def _ask(address: Address, node: Endpoint, timeout_s: float) -> SlotMap | NoConnection:
    try:
        connection = address.server(node).connection(connect_timeout_s=timeout_s)
    except ConfigError as error:
        return BackendUnavailable(str(address.server(node)), str(error), final=True)
    try:
        async with timeout(timeout_s):
            await connect_and_log_in(connection)
            query = connection.pack_command("CLUSTER", "SLOTS")
            await connection.send_packed_command(query, check_health=False)
            stated: Any = await connection.read_response()
        if not stated:
            # Started again without what it knew, or not a part of the cluster any more.
            return BackendUnavailable(str(address.server(node)), "this node knows of no slots")
        return _read(stated, node)
    except (RedisError, OSError, TimeoutError) as error:
        return _failure(error, address.server(node))
    finally:
        with suppress(RedisError, OSError):
            await connection.disconnect(nowait=True)


def _failure(error: Exception, address: Address) -> NoConnection:
    if isinstance(error, ResponseError) and "cluster support disabled" in str(error):
        reason = "this server is not in cluster mode: write redis:// instead of redis+cluster://"
        return BackendUnavailable(str(address), reason, final=True)
    return connect_error(error, str(address), changing=address.login is not None)


def _read(stated: Iterable[Any], source: Endpoint) -> SlotMap:
    ranges: list[SlotRange] = []
    nodes: dict[Endpoint, None] = {}
    for first, last, *holders in stated:
        found = [_endpoint(holder, source) for holder in holders]
        owner = found[0]
        if owner is not None:
            ranges.append(SlotRange(first, last, owner))
        nodes.update(dict.fromkeys(each for each in found if each is not None))
    return SlotMap(tuple(ranges), tuple(nodes))


def _endpoint(holder: list[Any], source: Endpoint) -> Endpoint | None:
    """Read a node's place. Without a host it is that of the node that answers."""
    host: bytes | None = holder[0]
    if host == b"?":
        return None
    return (host.decode() if host else source[0], int(holder[1]))
