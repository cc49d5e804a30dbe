"""Calls of a sender whose end is awaited, whichever it is."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from redis_state.transport.sending.sender import Sender


async def outcome_of(call: asyncio.Future[Any]) -> tuple[Any, float]:
    """Await a call; give its result or error, and when it came."""
    await asyncio.wait({call})
    return call.exception() or call.result(), time.monotonic()


async def has(check: Sender, key: str, length: int) -> bool:
    """Return whether a list has a length."""
    found: int = await check.send("LLEN", key, repeatable=True)
    return found == length
