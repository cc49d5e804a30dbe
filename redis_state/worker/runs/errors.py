"""What a handler's error means for its run: which one ends it, also in a group, and how."""

from __future__ import annotations

import logging
from itertools import islice

from redis_state.errors import (
    BackendError,
    CorruptState,
    JournalRewound,
    NoConnection,
    PayloadStoreUnavailable,
    PayloadUnreadable,
    StoreFull,
)
from redis_state.errors.groups import found_in, leaves
from redis_state.models import TaskStatus
from redis_state.serialization import codec
from redis_state.serialization.payloads import Payloads
from redis_state.worker.runs.config import RunOutcome
from redis_state.worker.tasks.execution.exits import Exited, TaskHandedBack, TaskPaused
from redis_state.worker.tasks.execution.inbox import TaskCancelled
from redis_state.worker.tasks.handed_back import REFUSALS

log: logging.Logger = logging.getLogger(__name__)


# Of an error's text: it stands in the task, its updates, lists and pages.
_LONGEST_TEXT = 16_384
# Errors of a group that its task names.
_NAMED = 10


_ENDS_OF_RUNS: tuple[type[BaseException], ...] = (
    *(TaskPaused, TaskCancelled, NoConnection, JournalRewound, TaskHandedBack),
    *(PayloadUnreadable, PayloadStoreUnavailable, StoreFull, *REFUSALS),
)


def cause_of(error: BaseException) -> BaseException:
    """Search a group: tasks of the handler itself may have been paused or cancelled."""
    found = (found_in(error, kind) for kind in _ENDS_OF_RUNS)
    return next((leaf for leaf in found if leaf is not None), error)


def failure_outcome(error: BaseException, task_id: str, payloads: Payloads) -> RunOutcome:
    """Return the outcome of a run whose handler raised, and log it. PENDING hands the task back."""
    match error:
        case TaskCancelled():
            return TaskStatus.CANCELLED, None, error.reason
        case BackendError() if not isinstance(error, CorruptState):
            # A server was unreachable, full, or refused: it is not the handler's failure. What is
            # damaged stays damaged.
            log.warning("task %r is handed back: %s", task_id, error)
            return TaskStatus.PENDING, None, None
        case TaskHandedBack():
            log.debug("task %r is handed back by its handler: %s", task_id, error)
            return TaskStatus.PENDING, None, None
        case Exited():
            return TaskStatus.FAILED, None, str(error)
        case _:
            kind = type(error).__name__
            log.warning(
                "the handler of task %r failed: %s",
                task_id,
                kind,
                exc_info=payloads.loggable(error),
            )
            return TaskStatus.FAILED, None, _cut(f"{kind}: {codec.text_of(error)}{_in(error)}")


def given_up(error: BaseException, times: int) -> str:
    """Return why a task is a dead letter that the server refused so often."""
    return _cut(f"given up: refused {times} times in a row: {_named(error)}")


def _in(error: BaseException) -> str:
    """Return what a group holds, which its own text does not say."""
    named = list(islice(leaves(error), _NAMED))
    return "" if named == [error] else f": {'; '.join(map(_named, named))}"


def _named(error: BaseException) -> str:
    # The text of an exit begins with its class.
    return (
        str(error)
        if isinstance(error, Exited)
        else f"{type(error).__name__}: {codec.text_of(error)}"
    )


def _cut(text: str) -> str:
    more = len(text) - _LONGEST_TEXT
    return text if more <= 0 else f"{text[:_LONGEST_TEXT]}… ({more} more characters)"
