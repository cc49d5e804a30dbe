"""The renewal of a worker's leases, by its event loop or by a thread.

Renewing from the loop proves that the loop is responsive. The thread tolerates handlers that
compute for long without yielding. The thread cannot distinguish such a handler from one that hangs,
so it stops renewing when the task's time is up.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Literal, Protocol

from redis_state.errors import BackendError, LeaseLost
from redis_state.primitives.lease import HeldLease, Leases
from redis_state.store import RedisStateStore

log: logging.Logger = logging.getLogger(__name__)

Heartbeat = Literal["loop", "thread"]

_JOIN_S = 5.0


class LeaseRenewer(Protocol):
    """Who keeps a lease for the length of a run."""

    def keep(
        self,
        held: HeldLease,
        *,
        duration_ms: int,
        on_lost: Callable[[LeaseLost], object],
        wanted: Callable[[], bool] | None = None,
    ) -> AbstractContextManager[object]:
        """Renew a lease for the length of the block. See `Leases.keep`."""
        ...


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

    def spawn(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Run work in the thread's loop. Cancelling the future cancels the work."""
        assert self._loop is not None, "start it first"  # noqa: S101 - an invariant
        return asyncio.run_coroutine_threadsafe(work, self._loop)

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


class ThreadLeaseRenewer:
    """Keep leases from the heartbeat's thread."""

    def __init__(self, thread: HeartbeatThread, leases: Leases) -> None:
        self._thread = thread
        self._leases = leases

    @contextmanager
    def keep(
        self,
        held: HeldLease,
        *,
        duration_ms: int,
        on_lost: Callable[[LeaseLost], object],
        wanted: Callable[[], bool] | None = None,
    ) -> Generator[None, None, None]:
        """Renew a lease for the length of the block, as long as it is ``wanted``.

        ``on_lost`` is called in the loop of the block, as soon as that gives way, but ``wanted`` in
        the thread.
        """
        home = asyncio.get_running_loop()
        over = False

        def report(lost: LeaseLost) -> None:
            if not over:
                on_lost(lost)

        def lose(lost: LeaseLost) -> None:
            with suppress(RuntimeError):  # the block's loop has ended
                home.call_soon_threadsafe(report, lost)

        async def renew() -> None:
            with self._leases.keep(held, duration_ms=duration_ms, on_lost=lose, wanted=wanted):
                await asyncio.Event().wait()

        renewing = self._thread.spawn(renew())
        try:
            yield
        finally:
            over = True
            renewing.cancel()
