"""Read, decide, compare and set; and repeat after a conflict."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from redis_state.backoff import Backoff
from redis_state.errors import VersionConflict

T = TypeVar("T")
ItemT = TypeVar("ItemT")

_WAIT_S = Backoff(0.001, 0.05, jitter=1.0)


async def retry_on_conflict(attempt: Callable[[], Awaitable[T]], *, timeout_s: float) -> T:
    """Repeat an attempt that lost its race, until it wins or the time is up.

    Each attempt reads again. It waits a random time in between, which grows with the losses.
    Errors: the last VersionConflict.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + timeout_s
    delays = _WAIT_S.delays()
    while True:
        try:
            return await attempt()
        except VersionConflict:
            if loop.time() >= give_up_at:
                raise
        await asyncio.sleep(next(delays))


class Together(Generic[ItemT, T]):
    """Changes of the same thing: one is under way, and those that come meanwhile are the next one.

    Each by itself would refuse the others' writes. ``change`` gets what the thing is called and the
    items of all callers, and returns a result for each. What it raises, all of them get.
    """

    def __init__(self, change: Callable[[str, Sequence[ItemT]], Awaitable[Sequence[T]]]) -> None:
        self._change = change
        # A loop has changes of its own: a future is awaited in its own loop.
        self._waiting: dict[
            tuple[asyncio.AbstractEventLoop, str], list[tuple[ItemT, asyncio.Future[T]]]
        ] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, name: str, item: ItemT) -> T:
        """Change a thing together with others, and return what came of this item.

        The change is made also if this caller is cancelled.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        if (loop, name) not in self._waiting:
            self._waiting[loop, name] = []
            run = loop.create_task(self._run(loop, name))
            self._running.add(run)
            run.add_done_callback(self._running.discard)
        self._waiting[loop, name].append((item, outcome))
        return await outcome

    async def _run(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        try:
            while callers := self._waiting[loop, name]:
                self._waiting[loop, name] = []
                await self._serve(name, callers)
        finally:
            del self._waiting[loop, name]

    async def _serve(self, name: str, callers: Sequence[tuple[ItemT, asyncio.Future[T]]]) -> None:
        try:
            results = await self._change(name, [item for item, _ in callers])
        except Exception as error:  # noqa: BLE001 - each caller raises it
            for _, outcome in callers:
                if not outcome.done():
                    outcome.set_exception(error)
            return
        for (_, outcome), result in zip(callers, results, strict=True):
            if not outcome.done():
                outcome.set_result(result)
