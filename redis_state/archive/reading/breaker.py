"""A circuit breaker: calls of an archive that must not hold up who asks, and when none is made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

from redis_state.archive.protocol import CallTurns, answered, patience
from redis_state.errors import ArchiveUnavailable
from redis_state.futures import unawaited
from redis_state.timeouts import timeout

T = TypeVar("T")

# How long a caller who has an answer without the archive waits for it from its turn on, and for its
# turn. After so many failures, one after the other, the archive is left alone for a time. Then one
# caller asks it.
_PATIENCE_S, _TURN_S, _FAILURES, _LEFT_ALONE_S = 5.0, 10.0, 2, 5.0


class CallBreaker:
    """The calls of one archive, each with a short deadline, and what their failures forbid.

    A call that waits for others waits for its turn: many callers are no reason to leave an archive
    alone, and fail no call that would be answered.
    """

    def __init__(self) -> None:
        self._failures, self._failed_s, self._is_probed = 0, 0.0, False
        self._turns = CallTurns()

    async def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call. Errors: see `ArchiveReader.soon`."""
        self._refuse_if_left_alone()
        try:
            async with timeout(_TURN_S):
                await self._turns.acquire()
        except TimeoutError:
            raise ArchiveUnavailable("read", f"other calls took all of {_TURN_S:g} s") from None
        try:
            # Those before it may have failed meanwhile.
            self._refuse_if_left_alone()
            return await self._tried(call)
        finally:
            self._turns.release()

    def _refuse_if_left_alone(self) -> None:
        if self._failures < _FAILURES:
            return
        if self._is_probed or monotonic() < self._failed_s + _LEFT_ALONE_S:
            raise ArchiveUnavailable("read", "it could not be read some seconds ago")

    async def _tried(self, call: Callable[[], Awaitable[T]]) -> T:
        if self._failures < _FAILURES:
            return await self._within_patience(call)
        self._is_probed = True
        try:
            return await self._within_patience(call)
        finally:
            self._is_probed = False

    async def _within_patience(self, call: Callable[[], Awaitable[T]]) -> T:
        began, heard = monotonic(), asyncio.Event()
        token = patience.set(asyncio.get_running_loop().time() + _PATIENCE_S)
        hearing = answered.set(heard)
        try:
            doing = asyncio.ensure_future(call())
        finally:
            patience.reset(token)
            answered.reset(hearing)
        try:
            done, _ = await asyncio.wait({doing}, timeout=_PATIENCE_S)
        finally:
            if not doing.done():
                # What is cancelled may wait for a server that says nothing. Nobody waits for that.
                doing.cancel()
                unawaited(doing)
        if not done:
            self._fail(began, heard)
            raise ArchiveUnavailable("read", f"no answer in {_PATIENCE_S:g} s")
        try:
            found = doing.result()
        except ArchiveUnavailable as error:
            if not error.refused:
                self._fail(began, heard)
            raise
        self._failures = 0
        return found

    def _fail(self, began: float, heard: asyncio.Event) -> None:
        if heard.is_set():
            # What was asked takes several calls, of which it has answered one.
            self._failures = 0
        # Calls that waited at the same time fail for one reason.
        elif began > self._failed_s:
            self._failures += 1
            self._failed_s = monotonic()
