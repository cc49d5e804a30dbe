"""Helpers for tests of what is built on the store: real servers, no stand-ins.

pytest finds the fixtures by itself where redis_state is installed, see `pytest_redis_state`::

    @pytest.mark.asyncio
    async def test_mine(redis_state_store): ...

A worker and a client in the test, and time that the test skips, see `redis_state.testing.pool`::

    async def remind(ctx: TaskContext) -> str:
        await ctx.sleep(timedelta(days=3))
        return f"reminded {ctx.input}"

    async def test_ann_is_reminded() -> None:
        async with Pool({"remind": remind}) as pool:
            task = await pool.client.submit("remind", "ann", session_id="s")
            await pool.skip(timedelta(days=3))
            assert await pool.client.result("s", task) == "reminded ann"

What a test's own processes use is here, and needs no pytest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, TypeVar, overload

from redis_state.settings import Settings
from redis_state.transport.transport import Transport

# Read by pytest, where this module is named as one of its plugins. Found twice, it is there once,
# because the entry point in pyproject.toml has the module's own name.
pytest_plugins: list[str] = ["pytest_redis_state"]

T = TypeVar("T")


@overload
async def eventually(
    condition: Callable[[], Awaitable[T]], described: str, *, timeout_s: float = 30.0
) -> T: ...


@overload
async def eventually(
    condition: Callable[[], T], described: str, *, timeout_s: float = 30.0
) -> T: ...


async def eventually(
    condition: Callable[[], Any], described: str, *, timeout_s: float = 30.0
) -> Any:
    """Wait until a condition holds, and return its value. Errors: AssertionError names it."""
    deadline = time.monotonic() + timeout_s
    pause_s = 0.01
    while True:
        value = condition()
        if isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {described}")
        await asyncio.sleep(pause_s)
        # What takes long is asked for less often.
        pause_s = min(0.05, pause_s * 1.1)


async def leaked_keys(settings: Settings) -> list[str]:
    """Return the namespace's keys that have no lifetime."""
    transport = Transport(settings)
    try:
        found: list[str] = []
        for server in await transport.each_primary():
            async for keys in server.scan_all(f"{settings.namespace}:*"):
                lives = await asyncio.gather(*map(transport.commands.pttl, keys))
                expiring = zip(keys, lives, strict=True)
                found += [key.decode() for key, life in expiring if life == -1]
        return sorted(found)
    finally:
        await transport.aclose()
