"""Every error that leaves the library.

    RedisStateError
    ├── CallerError            the call was wrong; nothing was sent
    │   ├── ConfigError            a setting or an address cannot be used
    │   ├── InvalidField           an argument of a wrong type or shape, named
    │   ├── SteeringValidationError    a steering payload breaks the rules of its type
    │   ├── MissingCapability      a store lacks methods that a feature needs
    │   └── MemoryBudgetExceeded   a turn is more than a memory may hold
    ├── LostRace               somebody else was first; the error carries the facts
    │   ├── VersionConflict        the document moved on
    │   │   └── SessionConflict        an agent's session did
    │   ├── SessionNotFound        no such agent's session, or no longer
    │   ├── SessionBusy            somebody else executes the session
    │   ├── LeaseLost              the epoch is no longer the current one
    │   ├── TokenResolved          the token was used: by whom, when and how
    │   ├── TokenUnknown           no such token, or no longer
    │   ├── TaskUnknown            no such task, or no longer
    │   ├── PauseTimeout           nobody decided a pause in time
    │   ├── InvalidTransition      the task's state does not allow this step
    │   └── LimitReached           as many wait already as may
    ├── CursorGap              rows between the cursor and what is kept are gone
    ├── TaskNotCompleted       a task whose result was asked for has none
    │   ├── TaskFailed             it is FAILED
    │   └── TaskWasCancelled       it is CANCELLED
    ├── HandlerChanged         a handler ended without asking for what earlier runs noted
    └── BackendError           trouble with the server
        ├── NoConnection           there is no connection that could be used
        │   ├── BackendUnavailable     it cannot be reached; the call did not happen
        │   │   └── OutcomeUnknown         the connection broke: it may have happened
        │   └── AuthenticationFailed   it refuses the user and password; the call did not happen
        ├── StoreFull              it refuses writes for want of memory or disk; reads go on
        ├── JournalRewound         it has lost entries of a task's journal that its run knows
        ├── CommandRefused         it answered with an error that none of the others explains
        └── CorruptState           what is stored cannot be what was written

No text of an error holds a payload, a token or a password.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_NAMED_ENTRIES = 10
_GAPS: dict[str, str] = {
    "rewound": "the server lost its row and has new ones since",
    "ahead": "the server lost its row, or the log has expired",
    "foreign": "it is of another log, or nothing of its time is kept",
}


class RedisStateError(Exception):
    """Base of every error of this library."""


class CallerError(RedisStateError):
    """The call itself is wrong. Nothing was sent; correct it and call again."""


class ConfigError(CallerError):
    """A setting or a server address cannot be used."""


class InvalidField(CallerError, ValueError):
    """An argument has the wrong type or shape. ``field`` names it."""

    def __init__(self, field: str, problem: str) -> None:
        # "limit must be >= 0" is how hosts word it too, and what their callers look for.
        super().__init__(f"{field}{' ' if problem.startswith('must ') else ': '}{problem}")
        self.field = field
        self.problem = problem


class SteeringValidationError(CallerError, ValueError):
    """A steering payload breaks the rules of its event type. ``errors`` lists how."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("invalid steering payload: " + "; ".join(errors))
        self.errors: list[str] = list(errors)


class MissingCapability(CallerError, TypeError):
    """A store lacks methods that a feature needs. ``missing`` names them."""

    def __init__(self, feature: str, missing: Sequence[str]) -> None:
        super().__init__(f"{feature} needs a store with {', '.join(missing)}")
        self.feature = feature
        self.missing: list[str] = list(missing)


class MemoryBudgetExceeded(CallerError, RuntimeError):
    """A turn is more than the memory may hold, and its policy is ``error``. It was not taken."""


class LostRace(RedisStateError):
    """Somebody else was first. Read the state again before deciding what to do."""


class VersionConflict(LostRace):
    """The document is at ``actual``, not at ``expected``. Load it and apply the change again.

    Both may have one number, given twice: after a rollback of the server, or a deletion.
    """

    def __init__(self, what: str, *, expected: int | str, actual: int | str) -> None:
        same = str(actual) == str(expected)
        other = "which another write made since" if same else f"not {expected}"
        super().__init__(f"{what} is at version {actual}, {other}")
        self.expected = expected
        self.actual = actual


class SessionConflict(VersionConflict):
    """The session is at ``actual``, not at ``expected``, or of another life of its id.

    ``actual`` is 0 if there is none. Load it and apply the change anew.
    """

    def __init__(self, session_id: str, *, expected: int, actual: int) -> None:
        super().__init__(f"session {session_id!r}", expected=expected, actual=actual)
        self.session_id = session_id


class SessionNotFound(LostRace):
    """There is no such session. It was never created, was deleted, or has expired."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no session {session_id!r}")
        self.session_id = session_id


class SessionBusy(LostRace):
    """Somebody else executes the session. Try again, or wait for it."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id!r} is executed by somebody else")
        self.session_id = session_id


class LeaseLost(LostRace):
    """Another owner holds the lease. Stop working: every further write will be refused.

    ``released`` tells that this very owner gave it back, and that nobody has taken it since.
    """

    def __init__(self, what: str, *, epoch: int, current: int, released: bool = False) -> None:
        how = "was released" if released else f"is at epoch {current}"
        super().__init__(f"the lease on {what} {how}, held at {epoch}")
        self.epoch = epoch
        self.current = current
        self.released = released


class TokenResolved(LostRace):
    """The token was used before. ``by``, ``at_ms`` and ``decision`` say by whom, when and how."""

    def __init__(self, *, by: str, at_ms: int, decision: Any) -> None:
        super().__init__(f"the token was resolved by {by} at {at_ms} ms")
        self.by = by
        self.at_ms = at_ms
        self.decision = decision


class TokenUnknown(LostRace):
    """No such token, or it has expired (``expired`` tells, while its trace is kept)."""

    def __init__(self, *, expired: bool) -> None:
        super().__init__("the token has expired" if expired else "no such token")
        self.expired = expired


class TaskUnknown(LostRace):
    """No such task, or no longer: its time was over, or it was cleaned up."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"there is no task {task_id!r}")
        self.task_id = task_id


class PauseTimeout(LostRace):
    """Nobody decided the pause ``name`` in time, and its policy is to fail."""

    def __init__(self, name: str) -> None:
        super().__init__(f"nobody decided the pause {name!r} in time")
        self.name = name


class InvalidTransition(LostRace):
    """The task is in state ``current``, from which ``wanted`` cannot be reached."""

    def __init__(self, task_id: str, *, current: str, wanted: str) -> None:
        super().__init__(f"task {task_id!r} is {current}: it cannot become {wanted}")
        self.task_id = task_id
        self.current = current
        self.wanted = wanted


class LimitReached(LostRace, RuntimeError):
    """As many of ``what`` are waiting as may: ``limit``. Have one decided first.

    The text begins with ``code``, the host's own word for it.
    """

    def __init__(self, what: str, *, limit: int, code: str) -> None:
        super().__init__(f"{code}: {limit} {what} are waiting, and no more may")
        self.what = what
        self.limit = limit


class CursorGap(RedisStateError):
    """Rows after ``cursor`` are gone, so going on from it would skip them silently.

    ``reason`` is ``"trimmed"`` (``missed`` rows were dropped by retention), ``"rewound"`` (the
    server lost its newest rows, among them that of the cursor, and new ones took their numbers),
    ``"ahead"`` (it lost them, and there are no new ones yet) or ``"foreign"`` (the cursor belongs
    to another log, or nothing of its time is kept). ``resume_after`` is the cursor that reads on:
    after a lost history what is new since, without a hole or a repeat; else all that is kept.
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


class HandlerChanged(RedisStateError):
    """A handler ended without asking for ``entries``, which earlier runs of the task noted.

    A step was renamed or removed, or the handler does not decide alike in each run. What those
    steps did has happened.
    """

    def __init__(self, task_id: str, entries: Sequence[str]) -> None:
        more = len(entries) - _NAMED_ENTRIES
        named = ", ".join(entries[:_NAMED_ENTRIES]) + (f" and {more} more" if more > 0 else "")
        super().__init__(f"the handler of task {task_id} never asked for what was noted: {named}")
        self.task_id = task_id
        self.entries: list[str] = list(entries)


class TaskNotCompleted(RedisStateError):
    """A task is over and has no result. ``reason`` says why, in its own words, if it did."""

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
    """The task is CANCELLED. Who waits for its result is not cancelled by that."""

    how: str = "CANCELLED"


class BackendError(RedisStateError):
    """Trouble with the server."""


class NoConnection(BackendError):
    """There is no connection to the server at ``address`` that could be used, for ``reason``.

    ``final`` if another try is in vain until something is changed: the URL, a certificate, a
    password. Such an error is raised at once, the others at the call's deadline.
    """

    def __init__(self, address: str, reason: str, *, final: bool = False) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason
        self.final = final


class BackendUnavailable(NoConnection):
    """The server at ``address`` cannot be reached. The call did not happen; it may be repeated."""


class AuthenticationFailed(NoConnection):
    """The server refuses the user and password, or asks for them. The call did not happen.

    Correct them, or what the server knows of them; ``final`` is always true.
    """

    def __init__(self, address: str, reason: str, *, final: bool = True) -> None:
        super().__init__(address, reason, final=final)


class OutcomeUnknown(BackendUnavailable):
    """The connection broke after the call was sent: it may or may not have happened."""


class StoreFull(BackendError):
    """The server has no memory or no disk to write to. Nothing was written; reads go on."""


class JournalRewound(BackendError):
    """The server's history went back: it has lost entries of a task's journal that its run knows.

    Nothing was written. The run ends here, and the task begins again from what the server has left.
    """

    def __init__(self, what: str, *, known: int, found: int) -> None:
        super().__init__(f"{what}: the server has {found} entries of {known} that this run knows")
        self.known = known
        self.found = found


class CommandRefused(BackendError):
    """The server refused the command: its rights, its version, its disk. The text says which."""


class CorruptState(BackendError):
    """What is stored cannot be what was written. ``key`` says where."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem
