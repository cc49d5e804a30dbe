"""The signals that end a worker process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any

# Ctrl-C reaches the processes of a terminal, and some of them pass it on to their children.
_SAME_S = 0.3


class WorkerSignals:
    """SIGTERM, SIGINT and SIGHUP ask a worker to stop. A second SIGINT asks it not to wait."""

    def __init__(self) -> None:
        self.stop: asyncio.Event = asyncio.Event()
        self._at_once = asyncio.Event()
        self._stopped_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._heard: list[signal.Signals] = []

    def listen(self) -> None:
        """Take the signals from now on. A SIGHUP that the process ignores stays ignored."""
        names = [signal.SIGTERM, signal.SIGINT]
        hangup = getattr(signal, "SIGHUP", None)
        # `nohup` has the process ignore it, a host may have a handler of its own.
        if hangup is not None and signal.getsignal(hangup) is signal.SIG_DFL:
            names.append(hangup)
        for name in names:
            # Not in every thread, and not on every system.
            with suppress(NotImplementedError, RuntimeError, ValueError):
                self._loop.add_signal_handler(name, self._hear, name)
                self._heard.append(name)

    def leave(self) -> None:
        """Leave the signals to others."""
        while self._heard:
            with suppress(NotImplementedError, RuntimeError, ValueError):
                self._loop.remove_signal_handler(self._heard.pop())

    async def patience(self, running: AbstractSet[asyncio.Task[Any]], *, timeout_s: float) -> None:
        """Wait until tasks have ended, for so long at most, and not after a second SIGINT."""
        waits = {
            asyncio.create_task(asyncio.wait(running)),
            asyncio.create_task(self._at_once.wait()),
        }
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.wait(waits)

    def _hear(self, name: signal.Signals) -> None:
        if not self.stop.is_set():
            self._stopped_at = self._loop.time()
            self.stop.set()
        elif name == signal.SIGINT and self._loop.time() - self._stopped_at > _SAME_S:
            self._at_once.set()
