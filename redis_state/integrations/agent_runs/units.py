"""The units that run now, and when a run may end in a pause.

A pause ends the run of the task, and with it everything that runs beside the agent that waits: its
siblings under `asyncio.gather`, or parallel tools. What they were doing would be done again. So an
agent waits to pause until no other unit runs. Units in which an agent waits too do not count.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import cast

from redis_state.worker.tasks.execution.inbox import Inbox

# The units in whose work the caller is, from the outermost to the innermost.
_WITHIN: ContextVar[tuple[int, ...]] = ContextVar("redis_state_agents_units", default=())


class Units:
    """The units of one run of a task."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        # Units in which something waits to pause, with how many do.
        self._waiting: Counter[int] = Counter()
        self._pausing = 0
        self._begun = 0
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def one(self) -> AsyncGenerator[None, None]:
        """Run a unit in the block. It does not begin while a pause is being written."""
        while self._pausing:
            await self._change()
        self._begun += 1
        number = self._begun
        self._running.add(number)
        token = _WITHIN.set((*_WITHIN.get(), number))
        try:
            yield
        finally:
            _WITHIN.reset(token)
            self._running.discard(number)
            self._wake()

    @asynccontextmanager
    async def quiet(self, inbox: Inbox) -> AsyncGenerator[None, None]:
        """Enter the block once no other unit runs. Errors: what ends the run meanwhile."""
        within = _WITHIN.get()
        self._waiting.update(within)
        self._wake()
        try:
            # Looks again behind the last await, which leaving `ended_by` is: a unit may have begun.
            while self._busy():
                async with ended_by(inbox):
                    await self._change()
            self._pausing += 1
            try:
                yield
            finally:
                self._pausing -= 1
        finally:
            self._waiting.subtract(within)
            self._wake()

    def _busy(self) -> bool:
        return any(not self._waiting[number] for number in self._running)

    async def _change(self) -> None:
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@asynccontextmanager
async def ended_by(inbox: Inbox) -> AsyncGenerator[None, None]:
    """Cancel the block when the run ends, and raise the reason: TaskCancelled, LeaseLost.

    The block runs in the caller's asyncio task, as in `asyncio.timeout`.
    """
    own = cast("asyncio.Task[object]", asyncio.current_task())
    # Others' cancellations, which were handled.
    before = own.cancelling()
    ended = False

    async def watch() -> None:
        nonlocal ended
        try:
            await inbox.until_over()
        except asyncio.CancelledError:
            raise
        except BaseException:  # noqa: BLE001 - raised in the block's own task
            ended = True
            own.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
        if ended:
            # Takes the cancellation that came after the block's last wait. The block may have
            # handled it.
            await asyncio.sleep(0)
            raise asyncio.CancelledError  # noqa: TRY301 - handled as one that came at a wait
    except BaseException as error:
        if ended and (own.uncancel() <= before or not isinstance(error, asyncio.CancelledError)):
            inbox.raise_if_over()
        raise
    finally:
        watching.cancel()
        try:
            await asyncio.wait({watching})
        except asyncio.CancelledError:
            # That of `watch` may come here, behind the reason. All others are for the caller.
            if own.cancelling() > before:
                raise
