"""The steps of a run that work now, and the end of the run by a pause, which waits for them.

A pause ends the run, and with it all asyncio tasks of the handler. The work of a step that is not
recorded yet would be done again. So a run does not end while a step works, and no step begins while
it ends. A step whose own work waits for a decision, a child or a message does not count: its work
ends with the run in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from redis_state.worker.tasks.execution.inbox import Inbox
from redis_state.worker.tasks.execution.names import ENDED, WORKING, NameScope

T = TypeVar("T")

# How often a call that waits for other steps looks for what it waits for.
_CHECK_EVERY_S = 1.0
# How long a handler has to end by the failure of a step before a pause ends the run.
_SETTLES_S = 0.02


class OpenSteps:
    """The steps of one run that are not recorded yet, in all branches of its handler."""

    def __init__(self, inbox: Inbox, root: NameScope) -> None:
        self._inbox = inbox
        self._root = root
        # Each with the asyncio task that does it.
        self.callers: dict[str, asyncio.Task[Any] | None] = {}
        # How many calls wait for a change here: a run without one pays nothing for it.
        self.watched: int = 0
        # How many calls are ending the run.
        self.ends: int = 0
        # How many calls in the work of a step wait.
        self._waiting: dict[str, int] = {}
        self._moved: asyncio.Event | None = None

    @property
    def are_quiet(self) -> bool:
        """Whether no step works: each only waits for what ends the run."""
        return self.callers.keys() <= self._waiting.keys()

    def move(self) -> None:
        """Wake those who wait for a change."""
        if self._moved is not None:
            self._moved.set()

    @contextmanager
    def waiting(self) -> Generator[None, None, None]:
        """Count the steps in whose work the caller is as waiting, in this block."""
        working = WORKING.get()
        within = () if working is None else working.entries
        for entry in within:
            self._waiting[entry] = self._waiting.get(entry, 0) + 1
        self.move()
        try:
            yield
        finally:
            for entry in within:
                self._waiting[entry] -= 1
                if not self._waiting[entry]:
                    del self._waiting[entry]

    @contextmanager
    def ending(self) -> Generator[None, None, None]:
        """Hold back every step that would begin in this block, which may end the run."""
        self.ends += 1
        try:
            yield
        finally:
            self.ends -= 1
            self.move()

    async def until_quiet(self) -> None:
        """Wait until no step works."""
        while not self.are_quiet:
            await self._change()

    async def end_run(
        self,
        end: Callable[[], Awaitable[T | None]],
        look: Callable[[], Awaitable[tuple[T | None, float]]],
    ) -> T | None:
        """End the run by ``end`` once no other step works; return None if it has ended.

        Until then ``look`` is called now and then. What either of them finds is returned, and the
        run continues. ``look`` also returns for how many seconds it need not be called. Errors:
        theirs; TaskCancelled, LeaseLost.
        """
        settled = True
        with self.waiting():
            while True:
                if not self.are_quiet:
                    settled = False
                    found, left_s = await look()
                    if found is not None:
                        break
                    await self._quiet_within(min(left_s, _CHECK_EVERY_S))
                elif self._has_returned:
                    await self._inbox.until_over()
                elif not settled:
                    # The failure of a step that has just ended may be about to end the handler.
                    await asyncio.sleep(_SETTLES_S)
                    settled = True
                else:
                    with self.ending():
                        found = await end()
                    if found is None:
                        return None
                    break
            await self.passable()
            return found

    async def passable(self) -> None:
        """Wait while another call is ending the run. Errors: those of a run that has ended."""
        if self.ends:
            while self.ends:
                await self._change()
            self._inbox.raise_if_over()

    @property
    def _has_returned(self) -> bool:
        """Whether the handler has ended: what it left behind does not pause its task."""
        home: Any = self._root.home
        return home is ENDED or (isinstance(home, asyncio.Task) and bool(home.done()))

    async def _quiet_within(self, within_s: float) -> None:
        quiet = asyncio.ensure_future(self.until_quiet())
        over = asyncio.ensure_future(self._inbox.until_over())
        both = {quiet, over}
        try:
            await asyncio.wait(both, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                over.result()
        finally:
            quiet.cancel()
            over.cancel()
            await asyncio.gather(quiet, over, return_exceptions=True)

    async def _change(self) -> None:
        moved = self._moved = self._moved or asyncio.Event()
        self.watched += 1
        moved.clear()
        try:
            await moved.wait()
        finally:
            self.watched -= 1
