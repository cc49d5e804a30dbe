"""Users with fewer rights than the test's own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.servers.sets.nodes import ask_each


@asynccontextmanager
async def without_channels(scripts: Scripts, keys: Keys) -> AsyncGenerator[None]:
    """Call as a user that may publish nothing, for the length of the block."""
    user = f"{keys.namespace}-writer"
    rules = ("on", "nopass", "allkeys", "+@all", "resetchannels")
    await ask_each(scripts.transport, "ACL", "SETUSER", user, *rules)
    await ask_each(scripts.transport, "AUTH", user, "any")
    try:
        yield
    finally:
        await ask_each(scripts.transport, "AUTH", "default", "any")
        await ask_each(scripts.transport, "ACL", "DELUSER", user)
