"""What a gateway needs in a running loop, from its first request to the loop's end.

A server runs the lifespan of the outermost application only. So a mounted gateway opens what it
needs at its first request, in a task of its own. The task closes it when it is cancelled: by the
gateway's lifespan where that runs, else by the end of the loop, which cancels all tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class PerLoop(Generic[T]):
    """One thing for each event loop that asks for it."""

    def __init__(self, open_one: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._open_one = open_one
        self._kept: WeakKeyDictionary[asyncio.AbstractEventLoop, _Kept[T]] = WeakKeyDictionary()

    async def get(self) -> T:
        """Return this loop's, which the first caller opens. Errors: those of opening it."""
        loop = asyncio.get_running_loop()
        kept = self._kept.get(loop)
        if kept is None or kept.ended:
            kept = self._kept[loop] = _Kept(self._open_one)
        return await asyncio.shield(kept.opened)

    async def aclose(self) -> None:
        """Close this loop's, if it was opened."""
        kept = self._kept.pop(asyncio.get_running_loop(), None)
        if kept is not None:
            await kept.aclose()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[T]:
        """Open this loop's for the length of the block."""
        try:
            yield await self.get()
        finally:
            await self.aclose()


class _Kept(Generic[T]):
    def __init__(self, open_one: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self.opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep(open_one), name="redis_state gateway")

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _keep(self, open_one: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        async with AsyncExitStack() as stack:
            try:
                opened = await stack.enter_async_context(open_one())
            except BaseException as error:
                if not self.opened.done():
                    self.opened.set_exception(error)
                    # The caller gets it; nobody else has to.
                    self.opened.exception()
                if isinstance(error, Exception):
                    return
                raise
            self.opened.set_result(opened)
            with suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()
