"""Futures whose outcome nobody may await."""

from __future__ import annotations

import asyncio
from typing import Any


def unawaited(future: asyncio.Future[Any]) -> None:
    """Retrieve the error of a future once it is done: asyncio is not to report it as lost."""
    if future.done():
        _retrieve(future)
    else:
        future.add_done_callback(_retrieve)


def _retrieve(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()
