"""SAQ: needs its environment."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.tasks.process import CALLERS, SLOTS, Engine, Marks


async def prepare(url: str, marks: Marks) -> Engine:
    """Give its queue and its worker."""
    saq: Any = importlib.import_module("saq")
    queue = saq.Queue.from_url(url, max_concurrent_ops=CALLERS)
    await queue.connect()
    return Saq(saq, queue, marks)


class Saq:
    """Finished jobs are deleted at once."""

    settings: str = f"concurrency={SLOTS}, ttl=-1, max_concurrent_ops={CALLERS}, hiredis"

    def __init__(self, saq: Any, queue: Any, marks: Marks) -> None:
        self._saq = saq
        self._queue = queue
        self._marks = marks

    async def submit(self, handler: str, number: int) -> None:
        """Enqueue one job."""
        await self._queue.enqueue(handler, i=number, ttl=-1)

    async def serve(self) -> None:
        """Work until cancelled."""

        async def noop(ctx: Any, *, i: int) -> None:
            del ctx, i
            self._marks()

        worker = self._saq.Worker(self._queue, functions=[("noop", noop)], concurrency=SLOTS)
        worker.SIGNALS = []
        try:
            await worker.start()
        finally:
            await worker.stop()
