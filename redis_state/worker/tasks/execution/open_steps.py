"""The steps of a run that work now, and the end of the run by a pause, which waits for them.

A pause ends the run, and with it all asyncio tasks of the handler. The work of a step that is not
recorded yet would be done again. So a run does not end while a step works, and no step begins while
it ends. A step whose own work waits for a decision, a child or a message does not count: its work
ends with the run in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any


class OpenSteps:
    """The steps of one run that are not recorded yet, in all branches of its handler."""

    def __init__(self) -> None:
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
    def waiting(self, within: Sequence[str]) -> Generator[None, None, None]:
        """Count the steps in whose work the caller is as waiting, in this block."""
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

    async def until_open(self) -> None:
        """Wait until no call is ending the run: it has ended, or it has not."""
        while self.ends:
            await self._change()

    async def _change(self) -> None:
        moved = self._moved = self._moved or asyncio.Event()
        self.watched += 1
        moved.clear()
        try:
            await moved.wait()
        finally:
            self.watched -= 1
