"""streaq: needs its environment."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.tasks.process import SLOTS, Engine, Marks


async def prepare(url: str, marks: Marks) -> Engine:
    """Give its worker, which is its client too."""
    streaq: Any = importlib.import_module("streaq")

    def make() -> tuple[Any, Any]:
        worker = streaq.Worker(
            redis_url=url, concurrency=SLOTS, prefetch=SLOTS, handle_signals=False
        )

        async def noop(i: int) -> None:
            del i
            marks()

        return worker, worker.task(ttl=0, silent=True)(noop)

    client, task = make()
    await client.__aenter__()
    return Streaq(task, make)


class Streaq:
    """No results are kept, no task is logged."""

    settings: str = f"concurrency={SLOTS}, prefetch={SLOTS}, ttl=0, silent"

    def __init__(self, task: Any, make: Any) -> None:
        self._task = task
        self._make = make

    async def submit(self, handler: str, number: int) -> None:
        """Enqueue one task."""
        del handler
        await self._task.enqueue(number)

    async def serve(self) -> None:
        """Work until cancelled."""
        worker, _ = self._make()
        await worker.run_async()
