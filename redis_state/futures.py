"""Futures whose outcome nobody may await."""

from __future__ import annotations

import asyncio
from typing import Any


def unawaited(future: asyncio.Future[Any]) -> None:
    """Retrieve the error of a future once it is done: asyncio is not to report it as lost."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
