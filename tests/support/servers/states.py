"""All that a server keeps of a namespace, read by another client than the library's."""

from __future__ import annotations

import time
from typing import Any, cast

from redis import Redis
from redis.cluster import RedisCluster

# A key is copied with what is left of its lifetime, some time after that was read.
_SAME_LIFE_MS = 10_000


def state_of(url: str, namespace: str, *, pattern: str = "v1:*") -> dict[str, tuple[Any, int]]:
    """Read every key of a namespace: what it holds, and when it expires; -1 for never."""
    if "cluster" in url:
        nodes = url.partition("://")[2].partition(",")[0]
        client: Any = cast("Any", RedisCluster).from_url(f"redis://{nodes}")
    else:
        client = cast("Any", Redis).from_url(url)
    with client:
        return {
            name.decode(): (_content(client, name), client.pexpiretime(name))
            for name in client.scan_iter(f"{namespace}:{pattern}", count=1000)
        }


def assert_alike(here: dict[str, tuple[Any, int]], there: dict[str, tuple[Any, int]]) -> None:
    """Compare two states: contents to the byte, lifetimes about.

    What expires meanwhile, as it does on a busy machine, is left out.
    """
    soon_ms = time.time() * 1000 + _SAME_LIFE_MS
    states = [*here.items(), *there.items()]
    gone = {name for name, (_, at_ms) in states if 0 < at_ms < soon_ms}
    assert {name: content for name, (content, _) in here.items() if name not in gone} == {
        name: content for name, (content, _) in there.items() if name not in gone
    }
    for name in here.keys() - gone:
        assert abs(here[name][1] - there[name][1]) < _SAME_LIFE_MS, name


def _content(client: Any, name: bytes) -> Any:
    kind = client.type(name).decode()
    match kind:
        case "string":
            return client.get(name)
        case "hash":
            return client.hgetall(name)
        case "list":
            return client.lrange(name, 0, -1)
        case "zset":
            return client.zrange(name, 0, -1, withscores=True)
        case "stream":
            about = client.xinfo_stream(name)
            counts = {"entries-added", "max-deleted-entry-id", "last-generated-id"}
            return client.xrange(name), {each: about[each] for each in counts}
        case _:
            return kind
