"""Appends and reads of logs and streams, in short."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate, chain
from typing import Any

from redis_state.scripts import (
    Fence,
    LogLimits,
    Reply,
    Scripts,
    topic_bytes,
)
from redis_state.scripts.stores.streams import StreamLimits
from redis_state.transport.key_groups import LogKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, T, ask


async def end_of(scripts: Scripts, log: LogKeys) -> list[int]:
    """Return the number and the time of a log's newest row."""
    head = await scripts.transport.commands.hget(log.ids, "")
    return [int(part) for part in head.split(b" ")[0].split(b"-")]


async def append(
    scripts: Scripts,
    log: LogKeys,
    *ids: str,
    topic: str | None = None,
    max_rows: int = 0,
    ttl_ms: int = HOUR,
    announce: bool = False,
    fence: Fence | None = None,
) -> Reply:
    """Append a row for each id."""
    return await scripts.append_log(
        log,
        tuple(chain.from_iterable((row_id.encode(), b"row " + row_id.encode()) for row_id in ids)),
        LogLimits(max_rows, ttl_ms, announce),
        topic=topic,
        fence=fence,
    )


async def rows_of(scripts: Scripts, log: LogKeys) -> list[tuple[int, str]]:
    """List what the log's stream holds: number and id."""
    entries = await ask(scripts, "XRANGE", log.rows, "-", "+")
    return [(int(entry.split(b"-")[0]), found[1].decode()) for entry, found in entries]


async def ids_hash(scripts: Scripts, log: LogKeys) -> dict[bytes, bytes]:
    """Read all that a log keeps beside its rows."""
    flat: list[bytes] = await ask(scripts, "HGETALL", log.ids)
    return dict(zip(flat[::2], flat[1::2], strict=True))


async def topic_of(scripts: Scripts, log: LogKeys, topic: str) -> list[int]:
    """List what a topic's index holds, of all its blocks."""
    name, found = topic_bytes(topic), await ids_hash(scripts, log)
    if b"\xff" + name not in found:
        return []
    last, oldest, newest, block = found[b"\xff" + name].split(b" ", 3)
    places = range(int(oldest), int(newest))
    blocks = [*(found[b"\xfe%d " % place + name] for place in places), block]
    numbers = [n for each in blocks for n in accumulate(map(int, each.split()))]
    assert numbers[-1] == int(last)
    return numbers


async def ids_of(scripts: Scripts, log: LogKeys) -> list[bytes]:
    """List the ids that the log knows, without its head and the indexes of its topics."""
    return [
        name for name in await ids_hash(scripts, log) if name[:1] not in (b"", b"\xfe", b"\xff")
    ]


def matching(topic: str | None, rows: Iterable[T], of: Callable[[T], str | None]) -> list[T]:
    """Pick a topic's rows; all for None."""
    return [row for row in rows if topic is None or topic_bytes(of(row)) == topic_bytes(topic)]


async def make_stream(scripts: Scripts, keys: Keys, path: str = "s", **given: Any) -> Reply:
    """Create a durable stream of bytes."""
    requested: dict[str, Any] = {
        "stream_id": "id",
        "content_type": "application/octet-stream",
        "life": HOUR,
        "expires": None,
        "closed": False,
        "about": b'{"type":"application/octet-stream","ttl":null,"expires":null}',
        "creator": b"",
        "origin": b"",
        "first": "0-0",
        "hold_ms": 0,
        "data": b"",
    }
    return await scripts.create_stream(keys.stream(path), **(requested | given))


async def add_row(scripts: Scripts, keys: Keys, data: bytes = b"p", **given: Any) -> Reply:
    """Append a row to a durable stream."""
    requested: dict[str, Any] = {
        "content_type": "application/octet-stream" if data else "",
        "seq": "",
        "producer": "",
        "epoch": 0,
        "number": 0,
        "closing": False,
    }
    bounds = given.pop("limits", StreamLimits(0, 0, 9))
    keys_of = keys.stream(given.pop("path", "s"))
    return await scripts.append_stream(keys_of, bounds, data=data, **(requested | given))
