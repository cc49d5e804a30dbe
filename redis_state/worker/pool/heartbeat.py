"""The renewal of a worker's leases, by its event loop or by a thread.

Renewing from the loop proves that the loop is responsive. The thread tolerates handlers that
compute for long without yielding. The thread cannot distinguish such a handler from one that hangs,
so it stops renewing when the task's time is up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Literal

from redis_state.errors import BackendError
from redis_state.store import RedisStateStore

Heartbeat = Literal["loop", "thread"]

_JOIN_S = 5.0


class HeartbeatThread:
    """A daemon thread with an event loop of its own, and so a connection of its own."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=self._live, name="redis_state heartbeat", daemon=True
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    async def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        await asyncio.to_thread(self._ready.wait)

    @property
    def is_started(self) -> bool:
        """Whether its loop runs, or has run."""
        return self._loop is not None

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the thread's loop."""
        assert self._loop is not None, "start it first"  # noqa: S101 - an invariant
        return self._loop

    def spawn(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Run work in the thread's loop. Cancelling the future cancels the work."""
        return asyncio.run_coroutine_threadsafe(work, self.loop())

    async def aclose(self) -> None:
        """Cancel the thread's work, disconnect it and end it."""
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):  # its loop has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
            await asyncio.to_thread(self._thread.join, _JOIN_S)

    def _live(self) -> None:
        async def until_stopped() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            self._ready.set()
            await self._stop.wait()
            with suppress(BackendError):
                await self._store.transport.aclose(drain_s=0)

        asyncio.run(until_stopped())
