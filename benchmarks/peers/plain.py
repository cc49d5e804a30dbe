"""redis-py's client, untyped: its own types are partly unknown, and differ between versions."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis


def connect(url: str, *, max_connections: int = 128) -> Any:
    """Return a client with a pool."""
    client: Any = Redis
    return client.from_url(url, max_connections=max_connections, socket_timeout=None)
