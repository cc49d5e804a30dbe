"""Stores that wait for a replica, servers of their own, and what those have been asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from redis_state import RedisStateStore, Settings
from redis_state.settings import make_settings
from tests.support.servers.faults import run_server, sender_to, short_directory

WRITERS = 24
SHORT_S = 1.5


def settings_of(url: str, **options: Any) -> Settings:
    """Make the settings of a `replicated` store."""
    return make_settings(url, namespace="safe", guarantee="replicated", **options)


def late() -> asyncio.Future[None]:
    """Give a moment at which a replica would have confirmed long ago."""
    return asyncio.ensure_future(asyncio.sleep(0.4))


async def commands(store: RedisStateStore, name: str) -> int:
    """Count the calls of a command that the server has seen."""
    stated: bytes = await store.transport.sender.send("INFO", "commandstats", repeatable=True)
    return counted(stated, name)


def counted(stated: bytes, name: str) -> int:
    """Read how often a command was called from what a server says of its commands."""
    lines = dict(line.split(":", 1) for line in stated.decode().splitlines() if ":" in line)
    fields = lines.get(f"cmdstat_{name}", "calls=0").split(",")
    return int(fields[0].removeprefix("calls="))


@asynccontextmanager
async def own_server(*options: str) -> AsyncGenerator[str]:
    """Run a server with options."""
    with short_directory() as directory, run_server(directory, *options) as url:
        async with sender_to(url) as sender:
            await sender.send("PING", repeatable=True)
        yield url
