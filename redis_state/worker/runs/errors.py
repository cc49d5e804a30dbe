"""Which of a handler's errors ends its run: that of the task itself, also in a group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from redis_state.errors import (
    JournalRewound,
    NoConnection,
    PayloadStoreUnavailable,
    PayloadUnreadable,
)
from redis_state.worker.handler.calls import TaskHandedBack, TaskPaused
from redis_state.worker.tasks.execution.inbox import TaskCancelled


class Exited(Exception):
    """A handler requested the end of the process. It gets the end of its run."""


_ENDS_OF_RUNS: tuple[type[BaseException], ...] = (
    *(TaskPaused, TaskCancelled, NoConnection, JournalRewound, TaskHandedBack),
    *(PayloadUnreadable, PayloadStoreUnavailable),
)


def cause_of(error: BaseException) -> BaseException:
    """Search a group: tasks of the handler itself may have been paused or cancelled."""
    leaves = list(_leaves(error))
    for kind in _ENDS_OF_RUNS:
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return error


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(inner)
    else:
        yield error
