"""`asyncio.timeout`, for the first releases of Python 3.11 too.

A task group that has failed leaves its task with a cancellation that nobody takes back. Before
3.11.3 a later timeout of that task takes it for one of its own time: CancelledError comes out, not
TimeoutError. Debian 12 has such a Python.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

if sys.version_info >= (3, 11, 3) or TYPE_CHECKING:
    timeout: Callable[[float | None], asyncio.Timeout] = asyncio.timeout  # noqa: TID251
    timeout_at: Callable[[float | None], asyncio.Timeout] = asyncio.timeout_at  # noqa: TID251
else:

    class _Timeout(asyncio.Timeout):
        """A timeout that counts the cancellations from where it was entered."""

        async def __aenter__(self) -> Self:
            await super().__aenter__()
            self._before = self._task.cancelling()
            return self

        async def __aexit__(
            self,
            of_type: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> None:
            await super().__aexit__(of_type, error, traceback)
            cancelled = self.expired() and of_type is asyncio.CancelledError
            if cancelled and self._task.cancelling() <= self._before:
                raise TimeoutError from error

    def timeout(delay: float | None) -> _Timeout:
        """Limit the time of a block. Errors: TimeoutError."""
        return timeout_at(None if delay is None else asyncio.get_running_loop().time() + delay)

    def timeout_at(when: float | None) -> _Timeout:
        """Limit a block to a moment of the loop's clock. Errors: TimeoutError."""
        return _Timeout(when)
