"""Put or stream artifacts from a process of its own; print what came of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import resource
import sys
from collections.abc import AsyncIterator
from typing import Any

from redis_state import RedisStateStore
from redis_state.models import ArtifactRetentionConfig, ArtifactScope
from redis_state.stores.artifacts import ArtifactStore

SCOPE = ArtifactScope(session_id="s", trace_id="t")
PIECE = 100_000


async def put(artifacts: ArtifactStore, argument: dict[str, Any]) -> list[str]:
    """Put many at once, reading some meanwhile; list their ids."""
    texts = [f"{argument['name']} {number}".ljust(100) for number in range(argument["times"])]

    async def one(text: str) -> str:
        ref = await artifacts.put_text(text, scope=SCOPE)
        assert await artifacts.get(ref.id) in (None, text.encode())
        return ref.id

    return await asyncio.gather(*map(one, texts))


async def same(artifacts: ArtifactStore, argument: dict[str, Any]) -> list[str]:
    """Put the same bytes from many callers at once; list the ids."""
    data = b"the same" * 100_000
    calls = [artifacts.put_bytes(data, scope=SCOPE) for _ in range(argument["callers"])]
    return [ref.id for ref in await asyncio.gather(*calls)]


async def stream(artifacts: ArtifactStore, argument: dict[str, Any]) -> dict[str, Any]:
    """Stream one large artifact in and out again; tell by how much memory grew, in KiB."""
    sent = hashlib.sha256()

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(argument["bytes"] // PIECE):
            piece = number.to_bytes(4, "big") * (PIECE // 4)
            sent.update(piece)
            yield piece

    async def small() -> AsyncIterator[bytes]:
        yield b"small"

    # What is imported and connected by the first call is no growth of the second.
    first = await artifacts.put_stream(small(), scope=SCOPE)
    assert await artifacts.get(first.id) == b"small"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ref = await artifacts.put_stream(pieces(), scope=SCOPE)
    read = hashlib.sha256()
    async for chunk in artifacts.open_read(ref.id):
        read.update(chunk)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert sent.hexdigest() == read.hexdigest() == ref.sha256
    await artifacts.delete(ref.id)
    return {"size": ref.size_bytes, "grown": grown}


async def main(argument: dict[str, Any]) -> Any:
    """Do what the argument says."""
    retention = ArtifactRetentionConfig(**argument.get("retention", {}))
    does = {f.__name__: f for f in (put, same, stream)}
    async with RedisStateStore.from_url(argument["url"], namespace=argument["namespace"]) as store:
        artifacts = ArtifactStore(store.base, retention)
        return await does[argument["does"]](artifacts, argument)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
