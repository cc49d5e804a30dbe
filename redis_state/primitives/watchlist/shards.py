"""Calls of all shards of a list at once, which continue while some of them have no server.

On a cluster the shards are on several nodes. A node that is down, or stands still, answers nothing
until the deadline of a call: nobody waits that long for what the others have answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from redis_state.errors import BackendError, NoConnection
from redis_state.futures import unawaited
from redis_state.scripts import Reply

log: logging.Logger = logging.getLogger(__name__)

# For how long what has come is kept for what has not. The shards of one server answer together.
PATIENCE_S = 0.5


class ShardCalls:
    """The calls of a list's shards, one at a time of each. Each node in trouble is logged once."""

    def __init__(self, shards: int) -> None:
        self._shards = range(shards)
        # Calls that were left behind. What they return is for the next caller.
        self._late: dict[int, asyncio.Task[Reply]] = {}
        self._troubles: dict[int, str] = {}

    async def replies(self, call: Callable[[int], Coroutine[Any, Any, Reply]]) -> list[Reply]:
        """Call the shards; return the replies of those whose servers answer.

        Errors: those of the first shard if none has replied.
        """
        begun = {n: asyncio.create_task(call(n)) for n in self._shards if n not in self._late}
        waited, self._late = self._late | begun, {}
        try:
            left = set(waited.values())
            while left and not any(map(_has_replied, waited.values())):
                _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            if left:
                await asyncio.wait(left, timeout=PATIENCE_S)
        except asyncio.CancelledError:
            for task in waited.values():
                task.cancel()
            raise
        self._late = {n: task for n, task in waited.items() if not task.done()}
        for task in left:
            # There may be no next caller.
            unawaited(task)
        return self._replies_of({n: task for n, task in waited.items() if task.done()})

    def _replies_of(self, ended: dict[int, asyncio.Task[Reply]]) -> list[Reply]:
        replies = list[Reply]()
        failures = list[BaseException]()
        for shard, task in ended.items():
            failure = task.exception()
            if failure is None:
                self._troubles.pop(shard, None)
                replies.append(task.result())
                continue
            failures.append(failure)
            if not isinstance(failure, BackendError):
                raise failure
        if not replies:
            raise failures[0]
        for shard, task in ended.items():
            self._note(shard, task.exception())
        return replies

    def _note(self, shard: int, failure: BaseException | None) -> None:
        if failure is None:
            return
        trouble = failure.address if isinstance(failure, NoConnection) else str(failure)
        if trouble not in self._troubles.values():
            log.warning("a part of a watch list cannot be read, the others are: %s", failure)
        self._troubles[shard] = trouble


def _has_replied(task: asyncio.Task[Reply]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
