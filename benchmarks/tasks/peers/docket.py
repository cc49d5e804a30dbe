"""docket: needs its environment."""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import Any

from benchmarks.tasks.process import SLOTS, Engine, Marks

_CHECK_MS = 5


async def prepare(url: str, marks: Marks) -> Engine:
    """Give its docket and its worker."""
    docket: Any = importlib.import_module("docket")
    opened = docket.Docket(name="bench", url=url, execution_ttl=timedelta(0))
    await opened.__aenter__()
    return Docket(docket, opened, marks)


class Docket:
    """Records of finished tasks are deleted at once."""

    settings: str = (
        f"concurrency={SLOTS}, execution_ttl=0, minimum_check_interval={_CHECK_MS} ms, hiredis"
    )

    def __init__(self, docket: Any, opened: Any, marks: Marks) -> None:
        async def noop(i: int) -> None:
            del i
            marks()

        self._docket = docket
        self._opened = opened
        self._noop = noop
        opened.register(noop)

    async def submit(self, handler: str, number: int) -> None:
        """Add one task."""
        del handler
        await self._opened.add(self._noop)(number)

    async def serve(self) -> None:
        """Work until cancelled."""
        worker = self._docket.Worker(
            self._opened,
            concurrency=SLOTS,
            minimum_check_interval=timedelta(milliseconds=_CHECK_MS),
        )
        async with worker:
            await worker.run_forever()
