"""An embedded server for the length of a block, also of one that is cancelled while it starts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from redis_state.embedded.server import EmbeddedServer, start_embedded


@asynccontextmanager
async def embedded_server(
    directory: str | os.PathLike[str] | None,
) -> AsyncGenerator[EmbeddedServer]:
    """Start the server of a directory, or join it, and release it after the block.

    Arguments and errors are those of `start_embedded`. Does not block the event loop.
    """
    starting = asyncio.create_task(asyncio.to_thread(start_embedded, directory))
    try:
        server = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # Its thread goes on: what it starts would stay as long as this process. So does the stop if
        # the block is cancelled again.
        await asyncio.shield(_stop(starting))
        raise
    try:
        yield server
    finally:
        await asyncio.to_thread(server.stop)


async def _stop(starting: asyncio.Task[EmbeddedServer]) -> None:
    with suppress(Exception):
        await asyncio.to_thread((await starting).stop)
