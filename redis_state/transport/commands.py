"""The single commands that the library sends beside its scripts: reads, mostly.

Each is queued at once and gives a future, so that several share a write. All may be repeated. What
decides, or removes what another client may write again meanwhile, is a script.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from redis_state.errors import CommandRefused
from redis_state.transport.sending.calls import CallSender
from redis_state.transport.wire.resp import Argument, Command, PackedCommand, packed_command

# What they are, for the rights of a user.
COMMANDS = (
    *("EXISTS", "GET", "GETEX", "HEXISTS", "HGET", "HGETALL", "HMGET", "INFO", "PING", "PTTL"),
    *("SCAN", "SET", "TIME", "TYPE", "UNLINK", "XLEN", "XRANGE", "ZCARD", "ZRANGE"),
    *("ZRANGEBYLEX", "ZRANGEBYSCORE", "ZREVRANGE", "ZREVRANGEBYLEX", "ZREVRANGEBYSCORE"),
    *("ZSCAN", "ZSCORE", "SPUBLISH"),
)
# Those that change nothing, here or in a script.
READING = frozenset(
    (
        *("EXISTS", "GET", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "INFO"),
        *("HSCAN", "LINDEX", "LLEN", "LRANGE", "PEXPIRETIME", "PING", "PTTL", "SCAN", "TIME"),
        *("TYPE", "XINFO|STREAM", "XLEN", "XRANGE", "XREVRANGE", "ZCARD", "ZCOUNT", "ZLEXCOUNT"),
        *("ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE", "ZREVRANGE", "ZREVRANGEBYLEX"),
        *("ZREVRANGEBYSCORE", "ZSCAN", "ZSCORE"),
    )
)

_RUN = re.compile(rb"run_id:(\w+)")


class Commands:
    """The commands of one sender. Errors, on each future: those of `Sender.send`."""

    def __init__(self, sender: CallSender) -> None:
        self._sender = sender

    def get(self, key: str) -> asyncio.Future[Any]:
        """Read a string: bytes, or None."""
        return self._send("GET", key)

    def get_and_renew(self, key: str, ttl_ms: int) -> asyncio.Future[Any]:
        """Read a string, and give it a new lifetime."""
        return self._send("GETEX", key, "PX", ttl_ms)

    def set_if_absent(self, key: str, value: Argument, ttl_ms: int) -> asyncio.Future[Any]:
        """Write a string with a lifetime unless there is one."""
        return self._send("SET", key, value, "NX", "PX", ttl_ms)

    def exists(self, key: str) -> asyncio.Future[Any]:
        """Return 1 if the key exists, else 0."""
        return self._send("EXISTS", key)

    def type_of(self, key: str) -> asyncio.Future[Any]:
        """Read what a key holds, as the server names it; ``none`` without the key."""
        return self._send("TYPE", key)

    def pttl(self, key: Argument) -> asyncio.Future[Any]:
        """Return what is left of a lifetime in ms; -1 without one, -2 without the key."""
        return self._send("PTTL", key)

    def unlink(self, key: Argument) -> asyncio.Future[Any]:
        """Remove a key that nobody writes again: any other is removed by `run_once`."""
        return self._send("UNLINK", key)

    def hget(self, key: Argument, field: Argument) -> asyncio.Future[Any]:
        """Read a field of a hash: bytes, or None."""
        return self._send("HGET", key, field)

    def hmget(self, key: Argument, *fields: Argument) -> asyncio.Future[Any]:
        """Read fields of a hash, None for each that it has not."""
        return self._send("HMGET", key, *fields)

    def hgetall(self, key: str) -> asyncio.Future[Any]:
        """Read a hash: its fields and values in turn."""
        return self._send("HGETALL", key)

    def record(self, key: str, names: tuple[str, ...] = ()) -> asyncio.Future[Any]:
        """Read a hash, or some of its fields. Packed once for keys that are read again."""
        return self._sender.ask(_packed_record(key, names))

    def hexists(self, key: str, field: Argument) -> asyncio.Future[Any]:
        """Return 1 if a hash has the field, else 0."""
        return self._send("HEXISTS", key, field)

    def zcard(self, key: str) -> asyncio.Future[Any]:
        """Count the members of a sorted set."""
        return self._send("ZCARD", key)

    def zrange(self, key: str, start: int, stop: int) -> asyncio.Future[Any]:
        """List members of a sorted set by rank, the lowest first."""
        return self._send("ZRANGE", key, start, stop)

    def zrange_scored(self, key: str, start: int, stop: int) -> asyncio.Future[Any]:
        """List members of a sorted set by rank, each followed by its score."""
        return self._send("ZRANGE", key, start, stop, "WITHSCORES")

    def zscore(self, key: str, member: Argument) -> asyncio.Future[Any]:
        """Read a member's score, or None."""
        return self._send("ZSCORE", key, member)

    def zrevrange(self, key: str, start: int, stop: int) -> asyncio.Future[Any]:
        """List members of a sorted set by rank, the highest first."""
        return self._send("ZREVRANGE", key, start, stop)

    def zrange_up_to(
        self, key: str, highest: Argument, *, offset: int, count: int
    ) -> asyncio.Future[Any]:
        """List members of a sorted set up to a score, the lowest first."""
        return self._send("ZRANGEBYSCORE", key, "-inf", highest, "LIMIT", offset, count)

    def zrevrange_above(self, key: str, lowest: int, *, count: int = -1) -> asyncio.Future[Any]:
        """List members of a sorted set with more than a score, the highest first."""
        return self._send(*("ZREVRANGEBYSCORE", key, "+inf", f"({lowest}"), *("LIMIT", 0, count))

    def zrevrange_from(self, key: str, lowest: Argument, *, count: int) -> asyncio.Future[Any]:
        """List members of a sorted set from a score on, the highest first, with their scores."""
        return self._send(
            *("ZREVRANGEBYSCORE", key, "+inf", lowest), "WITHSCORES", *("LIMIT", 0, count)
        )

    def zrevrange_up_to(self, key: str, highest: Argument, *, count: int) -> asyncio.Future[Any]:
        """List members of a sorted set up to a score, the highest first, with their scores."""
        return self._send(
            *("ZREVRANGEBYSCORE", key, highest, "-inf"), "WITHSCORES", *("LIMIT", 0, count)
        )

    def zrange_from(self, key: str, lowest: Argument, *, count: int) -> asyncio.Future[Any]:
        """List members of a sorted set from a score on, the lowest first, with their scores."""
        return self._send(
            *("ZRANGEBYSCORE", key, lowest, "+inf"), "WITHSCORES", *("LIMIT", 0, count)
        )

    def zrange_by_lex(
        self, key: str, lowest: Argument, highest: Argument, count: int = -1
    ) -> asyncio.Future[Any]:
        """List members of a sorted set by their names, in order."""
        return self._send("ZRANGEBYLEX", key, lowest, highest, "LIMIT", 0, count)

    def zrevrange_by_lex(
        self, key: str, highest: Argument, lowest: Argument, *, count: int
    ) -> asyncio.Future[Any]:
        """List members of a sorted set by their names, in reverse order."""
        return self._send("ZREVRANGEBYLEX", key, highest, lowest, "LIMIT", 0, count)

    def zscan_all(self, key: str, *, count: int) -> AsyncGenerator[list[bytes]]:
        """Read the members of a sorted set in pages. Not by rank: others may remove some meanwhile.

        A member that is there all the time is in a page, and may be in two.
        """

        async def process() -> list[bytes]:
            await self.zcard(key)
            return []

        return self._scan(("ZSCAN", key), ("COUNT", count), process, step=2)

    def xlen(self, key: str) -> asyncio.Future[Any]:
        """Count a stream's rows."""
        return self._send("XLEN", key)

    def xrange(
        self, key: str, start: Argument, end: Argument, *, count: int | None = None
    ) -> asyncio.Future[Any]:
        """Read a stream's rows, in order."""
        limit: tuple[Argument, ...] = () if count is None else ("COUNT", count)
        return self._send("XRANGE", key, start, end, *limit)

    def publish(self, channel: str, message: bytes) -> asyncio.Future[Any]:
        """Publish a message to those who follow a channel."""
        return self._send("SPUBLISH", channel, message)

    def scan_all(self, pattern: str) -> AsyncGenerator[list[bytes]]:
        """Read the keys that match, in pages. Of a cluster's, those of one node.

        A key that is there all the time is in a page, and may be in two.
        """

        async def process() -> list[bytes]:
            with suppress(CommandRefused):
                return _RUN.findall(await self._send("INFO", "server"))
            return []

        return self._scan(("SCAN",), ("MATCH", pattern, "COUNT", 1000), process, step=1)

    async def _scan(
        self,
        before: Command,
        behind: Command,
        process: Callable[[], Awaitable[list[bytes]]],
        *,
        step: int,
    ) -> AsyncGenerator[list[bytes]]:
        """Follow a cursor to its end; again if another process of a server may have answered.

        Each has an order of its own: with the cursor of another one it leaves some out. ``process``
        names the one that answers, or returns nothing.
        """
        asked = await process()
        while True:
            cursor: Argument = b"0"
            connections = self._sender.connections
            while True:
                cursor, page = await self._send(*before, cursor, *behind)
                yield page[::step]
                if cursor == b"0":
                    break
            if self._sender.connections == connections:
                return
            was, asked = asked, await process()
            if asked and asked == was:
                return

    def time(self) -> asyncio.Future[Any]:
        """Read the server's clock, for `clock.ms_of`."""
        return self._send("TIME")

    def info(self) -> asyncio.Future[Any]:
        """Read what the server says of itself."""
        return self._send("INFO")

    def ping(self) -> asyncio.Future[Any]:
        """Ask whether the server answers."""
        return self._send("PING")

    def _send(self, *command: Argument) -> asyncio.Future[Any]:
        return self._sender.send(*command, repeatable=True)


@lru_cache(maxsize=4096)
def _packed_record(key: str, names: tuple[str, ...]) -> PackedCommand:
    return packed_command("HMGET", key, *names) if names else packed_command("HGETALL", key)
