"""Checkpoints of a graph, in short."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence

from redis_state.scripts import (
    Fence,
    Reply,
    Scripts,
)
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import graph_keys
from tests.support.scripts.replies import HOUR

# A checkpoint of a thread of LangGraph: no parent, no run, and the value ``i1 c``.
GRAPH_ROW = b"\x93\xc0\xa0\x91\xa4i1 c" + b"document" + b"\x00\x00\x00\x09"


async def watch_graph_puts(scripts: Scripts, keys: Keys) -> Reply:
    """Have the puts of a thread listed under the id ``w``."""
    return await scripts.watch_graph_puts(graph_keys(keys), watch="w", ttl_ms=HOUR)


def drop_checkpoints(
    scripts: Scripts,
    keys: Keys,
    *places: bytes,
    thread: str = "h",
    needed: Mapping[bytes, bytes] | None = None,
    names: Sequence[bytes] = (b"%:i1 c",),
    known: int = 1,
    newest: bytes = b"%:9",
    seen: tuple[int, bytes] = (1, b"w"),
    forks: bool = True,
    claim: Fence | None = None,
) -> Awaitable[Reply]:
    """Drop checkpoints of a thread, whose puts are listed. Of some the needed parent is given."""
    return scripts.drop_checkpoints(
        graph_keys(keys, thread),
        mark=claim,
        namespace="%:",
        watch=b"w",
        seen=seen[0],
        last=seen[1],
        known=known,
        newest=newest,
        forks=forks,
        ttl_ms=HOUR,
        places=[part for place in places for part in (place, (needed or {}).get(place, b""))],
        names=names,
    )
