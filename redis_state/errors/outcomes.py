"""No fault of a call: a reader's position, a task's end, a pause's end, messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_state.errors.base import RedisStateError

_GAPS: dict[str, str] = {
    "rewound": "the server lost its row and has new rows since",
    "ahead": "the server lost its row, or the log has expired",
    "foreign": "it belongs to another log, or nothing of its time is kept",
}


class CursorGap(RedisStateError):
    """Rows after ``cursor`` are missing. Reading from it would skip them silently.

    ``reason`` is one of these:

    - ``"trimmed"``: retention removed ``missed`` rows.
    - ``"rewound"``: the server lost its newest rows, and new rows have their numbers.
    - ``"ahead"``: the server lost them, and there are no new rows yet.
    - ``"foreign"``: the cursor belongs to another log, or nothing of its time is kept.

    Continue from ``resume_after``. After a lost history it reads exactly the new rows. Otherwise it
    reads all that is kept.
    """

    def __init__(self, cursor: str, *, reason: str, missed: int | None, resume_after: str) -> None:
        why = (
            f"{missed} rows after it were dropped"
            if missed is not None
            else _GAPS.get(reason, "rows are gone")
        )
        super().__init__(f"cursor {cursor!r} is {reason}: {why}; read on after {resume_after!r}")
        self.cursor = cursor
        self.reason = reason
        self.missed = missed
        self.resume_after = resume_after


class TaskNotCompleted(RedisStateError):
    """A terminal task has no result. ``reason`` is the task's own text, if there is one."""

    how: str = "not completed"

    def __init__(self, session_id: str, task_id: str, reason: str | None) -> None:
        super().__init__(f"task {task_id!r} is {self.how}: {reason or 'no reason was given'}")
        self.session_id = session_id
        self.task_id = task_id
        self.reason = reason


class TaskFailed(TaskNotCompleted):
    """The task is FAILED."""

    how: str = "FAILED"


class TaskWasCancelled(TaskNotCompleted):
    """The task is CANCELLED. A caller that waits for its result is not cancelled by that."""

    how: str = "CANCELLED"


class PauseTimeout(RedisStateError):
    """The pause ``name`` was not resolved in time, and its policy is to fail."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the pause {name!r} was not resolved in time")
        self.name = name


class PauseRejected(RedisStateError):
    """The pause ``name`` was rejected by ``actor``, and all that its handler can do is end."""

    def __init__(self, name: str, *, actor: str) -> None:
        super().__init__(f"the pause {name!r} was rejected by {actor!r}")
        self.name = name
        self.actor = actor


class ReceiveTimeout(RedisStateError):
    """No message ``name`` came in time. That is recorded: a later run gets the same error."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no message {name!r} came in time")
        self.name = name


class InvalidMessage(RedisStateError, ValueError):
    """A message, a reply or a value ``name`` is not of the type that its receiver needs.

    ``problems`` names the places and what is wrong there. ``payload`` is what was sent. Nothing is
    lost: a later run gets the same message at the same place.
    """

    def __init__(self, name: str, problems: Sequence[str], *, payload: Any) -> None:
        super().__init__(f"{name!r} is not of the type that is needed: {'; '.join(problems)}")
        self.name = name
        self.problems: list[str] = list(problems)
        self.payload = payload


class RequestFailed(RedisStateError):
    """A request ``name`` to a task got no answer. ``request_id`` repeats it: the reply may come."""

    def __init__(self, task_id: str, name: str, problem: str, *, request_id: str) -> None:
        super().__init__(f"request {name!r} to task {task_id!r}: {problem}")
        self.task_id = task_id
        self.name = name
        self.request_id = request_id


class RequestRefused(RequestFailed):
    """The handler refused the request. ``reason`` is the handler's own."""

    def __init__(self, task_id: str, name: str, reason: str, *, request_id: str) -> None:
        super().__init__(task_id, name, f"it was refused: {reason}", request_id=request_id)
        self.reason = reason


class RequestUnanswered(RequestFailed):
    """The task ended in ``status`` without a reply, and no reply can come any more."""

    def __init__(self, task_id: str, name: str, status: str, *, request_id: str) -> None:
        super().__init__(task_id, name, f"the task is {status}", request_id=request_id)
        self.status = status


class RequestTimeout(RequestFailed, TimeoutError):
    """No reply came in time. The request stays: repeat the call to wait on."""


class NoReceiver(RequestTimeout):
    """No reply came in time, and the handler has not called for a request of this name."""
