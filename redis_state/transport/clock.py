"""The server's clock: the only one that decides anything."""

from __future__ import annotations

import asyncio
from typing import Any

from redis_state.transport.sender import Sender


def ask_time(sender: Sender) -> asyncio.Future[Any]:
    """Ask for the time without waiting: among other calls it costs no round trip of its own."""
    return sender.send("TIME", repeatable=True)


async def now_ms(sender: Sender) -> int:
    """Return the time in milliseconds."""
    return ms_of(await ask_time(sender))


def ms_of(told: Any) -> int:
    """Read a reply to TIME in milliseconds."""
    seconds, micros = told
    return int(seconds) * 1000 + int(micros) // 1000
