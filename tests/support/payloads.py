"""What the tests of payloads share: stores with keys, and all that a server has."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from cryptography.fernet import Fernet
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings

KEYS: Sequence[str] = [Fernet.generate_key().decode() for _ in range(3)]


def with_keys(settings: Settings, *keys: str, **options: Any) -> Settings:
    """Return settings with keys, the first of which encrypts."""
    listed = SecretStr(",".join(keys)) if keys else None
    return settings.model_copy(update={"payload_keys": listed, **options})


@asynccontextmanager
async def opened(settings: Settings, *keys: str, **options: Any) -> AsyncGenerator[RedisStateStore]:
    """Open a store with keys."""
    async with RedisStateStore(with_keys(settings, *keys, **options)) as store:
        yield store


async def dump(store: RedisStateStore) -> dict[str, bytes]:
    """Return each key of the namespace with all that it holds, as bytes one after the other."""
    found: dict[str, bytes] = {}
    send = store.transport.sender.send
    for server in await store.transport.each_primary():
        async for keys in server.scan_all(f"*{store.settings.namespace}*"):
            for key in keys:
                name = key.decode("utf-8", "replace")
                kind = (await send("TYPE", key, repeatable=True)).decode()
                read: dict[str, tuple[Any, ...]] = {
                    "string": ("GET", key),
                    "hash": ("HGETALL", key),
                    "list": ("LRANGE", key, 0, -1),
                    "set": ("SMEMBERS", key),
                    "zset": ("ZRANGE", key, 0, -1, "WITHSCORES"),
                    "stream": ("XRANGE", key, "-", "+"),
                }
                if kind == "none":  # it has expired meanwhile
                    continue
                found[name] = key + b" " + _flat(await send(*read[kind], repeatable=True))
    return found


def _flat(value: Any) -> bytes:
    if isinstance(value, list | tuple):
        return b" ".join(_flat(item) for item in cast("list[Any]", value))
    if isinstance(value, dict):
        pairs = cast("Any", value).items()
        return b" ".join(_flat(item) for pair in pairs for item in pair)
    return value if isinstance(value, bytes) else str(value).encode()
