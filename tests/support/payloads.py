"""What the tests of payloads share: stores with keys, and all that a server has."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any, cast

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from tests.support.servers.ports import free_port

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


class Reversed:
    """A codec of an application's own."""

    def encode(self, data: bytes) -> bytes:
        """Turn it around."""
        return b"own" + data[::-1]

    def decode(self, data: bytes) -> bytes:
        """Turn it back."""
        if not data.startswith(b"own"):
            raise ValueError
        return data[:2:-1]


REVERSED = f"{__name__}:Reversed"


@contextmanager
def s3_bucket(monkeypatch: pytest.MonkeyPatch) -> Generator[tuple[str, Any]]:
    """Run a server of S3 with a bucket; give the address of a folder there, and a client.

    Processes that are started meanwhile find it by their environment.
    """
    pytest.importorskip("obstore", reason="needs the claims extra")
    server: Any = import_module("moto.server")
    boto3: Any = import_module("boto3")
    running = server.ThreadedMotoServer("127.0.0.1", free_port(), verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        url = f"http://{host}:{port}"
        for name, value in {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        s3 = boto3.client("s3", endpoint_url=url)
        s3.create_bucket(Bucket="payloads")
        yield "s3://payloads/agents", s3
    finally:
        running.stop()


def in_bucket(s3: Any) -> list[str]:
    """List the objects of the bucket."""
    return [each["Key"] for each in s3.list_objects_v2(Bucket="payloads").get("Contents", ())]
