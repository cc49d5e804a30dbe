"""Every error that leaves the library.

    RedisStateError
    ├── CallerError            the call was wrong; nothing was sent
    │   ├── ConfigError            a setting or an address cannot be used
    │   ├── InvalidField           an argument of a wrong type or shape, named
    │   │   └── PayloadTooLarge        a payload is larger than may be stored
    │   ├── InvalidDecision        a pause's value does not fit the pause's form
    │   ├── SteeringValidationError    a steering payload breaks the rules of its type
    │   ├── MissingCapability      a store lacks methods that a feature needs
    │   ├── MemoryBudgetExceeded   a turn exceeds a memory's budget
    │   └── HandlerChanged         a handler did not use an entry that earlier runs recorded
    ├── LostRace               the stored state does not allow the call: read it again
    │   ├── Conflict               another call was first; the error carries the facts
    │   │   ├── VersionConflict        another write came first
    │   │   │   └── SessionConflict        the same, for an agent's session
    │   │   ├── SessionBusy            another caller executes the session
    │   │   ├── SessionRunning         tasks of the session run, and it is to be erased
    │   │   ├── TaskInProgress         a task of the session is unfinished, and rejects another
    │   │   ├── LeaseLost              the epoch is no longer the current one
    │   │   ├── ThreadClaimed          another process has claimed the thread of LangGraph
    │   │   ├── ThreadMoved            another task has continued the thread of LangGraph
    │   │   ├── TokenResolved          the token is already resolved: by whom, when and how
    │   │   ├── AlreadyVoted           the actor has voted otherwise: when and which way
    │   │   ├── NotADecider            the pause names others to decide it
    │   │   ├── DelegationRefused      the vote cannot be handed to this actor
    │   │   ├── InvalidTransition      the task's status does not allow the change
    │   │   ├── RetryRefused           the task cannot be reopened, whatever its status
    │   │   ├── StreamRefused          the stream is closed, or another one than the call means
    │   │   ├── ProducerRefused        the producer's batch is not the next one
    │   │   └── LimitReached           the limit of pending things is reached
    │   └── NotFound               there is none, or no longer
    │       ├── SessionNotFound        an agent's session
    │       ├── ScheduleUnknown        a schedule
    │       ├── StreamUnknown          a durable stream
    │       │   └── StreamDeleted          it was deleted, and its forks are kept
    │       ├── TokenUnknown           a token
    │       └── TaskUnknown            a task
    ├── CursorGap              rows between the cursor and what is kept are missing
    ├── TaskNotCompleted       a terminal task has no result
    │   ├── TaskFailed             it is FAILED
    │   └── TaskWasCancelled       it is CANCELLED
    ├── PauseTimeout           a pause was not resolved in time
    ├── ReceiveTimeout         no message came in time
    ├── InvalidMessage         a message is not of the type that its receiver needs
    ├── RequestFailed          a request to a task got no answer
    │   ├── RequestRefused         the handler refused it
    │   ├── RequestUnanswered      the task ended before it replied
    │   └── RequestTimeout         no reply came in time
    │       └── NoReceiver             and the handler has never asked for requests of the name
    └── BackendError           trouble with the server
        ├── NoConnection           no usable connection
        │   ├── BackendUnavailable     the server cannot be reached; the call did not happen
        │   │   └── OutcomeUnknown         the connection broke; the call may have happened
        │   └── AuthenticationFailed   the server refuses the login; the call did not happen
        ├── StoreFull              the server refuses writes: no memory or disk; reads work
        ├── JournalRewound         the server lost entries of a task's journal
        ├── CommandRefused         the server refused the command for another reason
        ├── PayloadUnreadable      a payload is encrypted, and this process lacks the key
        ├── PayloadStoreUnavailable    the store of large payloads cannot be used now
        ├── ArchiveUnavailable     the archive cannot be used now
        └── CorruptState           the stored data is damaged
            └── PayloadLost            a large payload is gone from its store, or damaged there

Four branches say what to do: correct the call, read the state again, accept that there is none, or
try again later. The others are not about a call: a reader's position, a task's end, a pause's end,
messages.

No text of an error holds a payload, a token or a password.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

_NAMED_ENTRIES = 10
_GAPS: dict[str, str] = {
    "rewound": "the server lost its row and has new rows since",
    "ahead": "the server lost its row, or the log has expired",
    "foreign": "it belongs to another log, or nothing of its time is kept",
}


def _moment(at_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


_STREAM_REASONS = {
    "exists": "there is one that was created otherwise",
    "deleted": "it was deleted, and forks of it are kept",
    "closed": "it is closed",
    "type": "its rows have another content type",
    "sequence": "the sequence is not above the last one",
}
_PRODUCER_REASONS = {
    "stale": "the producer has begun a later epoch",
    "gap": "batches before this one are missing",
    "epoch": "an epoch begins at number 0",
    "many": "the stream has too many producers",
}


class RedisStateError(Exception):
    """Base class of every error of this library."""


class CallerError(RedisStateError):
    """The call is wrong. Nothing was sent. Correct it and call again."""


class ConfigError(CallerError):
    """A setting or a server address cannot be used. The text names it."""


class InvalidField(CallerError, ValueError):
    """An argument has the wrong type or shape. ``field`` names it."""

    def __init__(self, field: str, problem: str) -> None:
        # "limit must be >= 0" is how hosts word it too, and what their callers look for.
        super().__init__(f"{field}{' ' if problem.startswith('must ') else ': '}{problem}")
        self.field = field
        self.problem = problem


class PayloadTooLarge(InvalidField):
    """A payload is larger than `max_payload_bytes`. Nothing was written.

    ``size`` is that of its JSON, in bytes, before it is encrypted.
    """

    def __init__(self, field: str, *, size: int, limit: int) -> None:
        super().__init__(field, f"has {size} bytes as JSON, and may have {limit}")
        self.size = size
        self.limit = limit


class InvalidDecision(CallerError, ValueError):
    """A value does not fit the form of its pause. Nothing was written; the pause stays open.

    ``errors`` has the first ten broken rules, each with the path in the value: ``("$.limit",
    "maximum 1000")``. ``path`` and ``rule`` are those of the first. A name in a path that the form
    does not mention is ``*``: the value itself is in no part of the error.
    """

    def __init__(self, errors: Sequence[tuple[str, str]]) -> None:
        broken = "; ".join(f"{path}: {rule}" for path, rule in errors)
        super().__init__(f"the value does not fit the form: {broken}")
        self.errors: list[tuple[str, str]] = list(errors)
        self.path: str = self.errors[0][0]
        self.rule: str = self.errors[0][1]


class SteeringValidationError(CallerError, ValueError):
    """A steering payload breaks the rules of its event type. ``errors`` lists every violation."""

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
    """A turn exceeds the memory's budget, and the policy is ``error``. The turn was not added."""


class HandlerChanged(CallerError):
    """A handler did not use ``entries`` that earlier runs of the task recorded.

    It has made the new call ``called`` instead, or has ended: then ``called`` is None. A step was
    renamed, removed or added, or the handler decides differently in each run. The effects of those
    steps have happened.
    """

    def __init__(self, task_id: str, entries: Sequence[str], *, called: str | None = None) -> None:
        more = len(entries) - _NAMED_ENTRIES
        named = ", ".join(entries[:_NAMED_ENTRIES]) + (f" and {more} more" if more > 0 else "")
        did = "never used what was recorded"
        if called is not None:
            did = f"called {called} where another call is recorded"
        super().__init__(f"the handler of task {task_id} {did}: {named}")
        self.task_id = task_id
        self.entries: list[str] = list(entries)
        self.called = called


class LostRace(RedisStateError):
    """The stored state does not allow the call. Read it again before you decide what to do."""


class Conflict(LostRace):
    """Another caller was first. The error carries the facts."""


class NotFound(LostRace):
    """The thing does not exist, or no longer."""


class VersionConflict(Conflict):
    """The document is at ``actual``, not at ``expected``. Load it and apply the change again.

    Both may be the same number: the server gives it again after a rollback or a deletion.
    """

    def __init__(self, what: str, *, expected: int | str, actual: int | str) -> None:
        same = str(actual) == str(expected)
        other = "which another write made since" if same else f"not {expected}"
        super().__init__(f"{what} is at version {actual}, {other}")
        self.expected = expected
        self.actual = actual


class SessionConflict(VersionConflict):
    """The session is at ``actual``, not at ``expected``, or was created again under its id.

    ``actual`` is 0 if there is no session. Load it and apply the change again.
    """

    def __init__(self, session_id: str, *, expected: int, actual: int) -> None:
        super().__init__(f"session {session_id!r}", expected=expected, actual=actual)
        self.session_id = session_id


class SessionNotFound(NotFound):
    """The session does not exist. It was never created, was deleted, or has expired."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no session {session_id!r}")
        self.session_id = session_id


class SessionBusy(Conflict):
    """Another process executes the session. Retry, or wait for it."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id!r} is executed by another process")
        self.session_id = session_id


class TaskInProgress(Conflict):
    """A task of the session is unfinished, and ``on_busy="reject"`` refuses a new one.

    Nothing was written. ``task_id`` is in the way, in this ``status``. Wait for it, cancel it, or
    submit with another policy.
    """

    def __init__(self, session_id: str, task_id: str, *, status: str) -> None:
        super().__init__(f"task {task_id!r} of session {session_id!r} is {status}")
        self.session_id = session_id
        self.task_id = task_id
        self.status = status


class SessionRunning(Conflict):
    """Tasks of a session are running, and ``running="refuse"`` refuses to erase it.

    Nothing was removed. Cancel the tasks, or erase with another policy.
    """

    def __init__(self, session_id: str, running: int) -> None:
        super().__init__(f"{running} tasks of session {session_id!r} are running")
        self.session_id = session_id
        self.running = running


class LeaseLost(Conflict):
    """Another owner holds the lease. Stop working: the server refuses every further write.

    ``released`` is true if this owner released the lease and no other took it.
    """

    def __init__(self, what: str, *, epoch: int, current: int, released: bool = False) -> None:
        how = "was released" if released else f"is at epoch {current}"
        super().__init__(f"the lease on {what} {how}, held at {epoch}")
        self.epoch = epoch
        self.current = current
        self.released = released


class ThreadClaimed(Conflict):
    """Another process has claimed the thread, for ``left_ms`` at least unless it gives it back.

    Nothing was written. Wait, or leave the thread to that process.
    """

    def __init__(self, thread_id: str, *, left_ms: int) -> None:
        super().__init__(f"thread {thread_id!r} is claimed by another process")
        self.thread_id = thread_id
        self.left_ms = left_ms


class ThreadMoved(Conflict):
    """Another task, or a caller of the graph, has continued the thread since the task began.

    What the task waited for is not there any more. Submit tasks of one thread in turn.
    """

    def __init__(self, thread_id: str) -> None:
        super().__init__(f"thread {thread_id!r} was continued by another task")
        self.thread_id = thread_id


class TokenResolved(Conflict):
    """The token is already resolved: by ``actor``, at ``at_ms``, with ``decision``."""

    def __init__(self, *, actor: str, at_ms: int, decision: Any) -> None:
        super().__init__(f"the token was resolved by {actor} at {_moment(at_ms)}")
        self.actor = actor
        self.at_ms = at_ms
        self.decision = decision


class AlreadyVoted(Conflict):
    """``actor`` has voted on the pause: at ``at_ms``, and ``approved`` or not. A vote stands."""

    def __init__(self, actor: str, *, at_ms: int, approved: bool) -> None:
        way = "approved" if approved else "rejected"
        super().__init__(f"{actor} has {way} the pause at {_moment(at_ms)}: a vote stands")
        self.actor = actor
        self.at_ms = at_ms
        self.approved = approved


class NotADecider(Conflict):
    """``actor`` is not, or no longer, among those who decide the pause.

    ``delegated_to`` has the vote now, if the actor has delegated it.
    """

    def __init__(self, actor: str, *, delegated_to: str | None = None) -> None:
        why = f"the vote was delegated to {delegated_to}" if delegated_to else "others are named"
        super().__init__(f"{actor} does not decide this pause: {why}")
        self.actor = actor
        self.delegated_to = delegated_to


class DelegationRefused(Conflict):
    """``actor`` cannot hand the vote to ``to``, for ``reason``. Name another one."""

    def __init__(self, actor: str, to: str, *, reason: str) -> None:
        super().__init__(f"{actor} cannot hand the vote to {to}: {reason}")
        self.actor = actor
        self.to = to
        self.reason = reason


class TokenUnknown(NotFound):
    """The token does not exist or has expired. ``expired`` is known for some time only."""

    def __init__(self, *, expired: bool) -> None:
        super().__init__("the token has expired" if expired else "no such token")
        self.expired = expired


class TaskUnknown(NotFound):
    """The task does not exist. It was never created, has expired, or was cleaned up."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"there is no task {task_id!r}")
        self.task_id = task_id


class ScheduleUnknown(NotFound):
    """The schedule does not exist. It was never saved, was deleted, or has ended and expired."""

    def __init__(self, schedule_id: str) -> None:
        super().__init__(f"there is no schedule {schedule_id!r}")
        self.schedule_id = schedule_id


class StreamUnknown(NotFound):
    """The durable stream does not exist. It was never created, has expired, or was deleted."""

    def __init__(self, path: str) -> None:
        super().__init__(f"there is no stream {path!r}")
        self.path = path


class StreamDeleted(StreamUnknown):
    """The durable stream was deleted. Its path stays taken as long as forks of it are kept."""


class StreamRefused(Conflict):
    """The durable stream at ``path`` does not take the call, for ``reason``.

    - ``"exists"``: there is a stream that was created otherwise.
    - ``"deleted"``: there was one, and forks of it are kept.
    - ``"closed"``: nothing is appended any more; ``offset`` is its end.
    - ``"type"``: its rows have another content type.
    - ``"sequence"``: the writer's sequence is not above the last one.
    """

    def __init__(self, path: str, reason: str, *, offset: str | None = None) -> None:
        super().__init__(f"stream {path!r}: {_STREAM_REASONS[reason]}")
        self.path = path
        self.reason = reason
        self.offset = offset


class ProducerRefused(Conflict):
    """A producer's batch was not appended to a durable stream, for ``reason``.

    - ``"stale"``: the producer has begun ``epoch`` meanwhile.
    - ``"gap"``: the number to come is ``expected``.
    - ``"epoch"``: an epoch begins at number 0.
    - ``"many"``: the stream has as many producers as the settings allow.
    """

    def __init__(
        self, reason: str, *, epoch: int | None = None, expected: int | None = None
    ) -> None:
        super().__init__(_PRODUCER_REASONS[reason])
        self.reason = reason
        self.epoch = epoch
        self.expected = expected


class InvalidTransition(Conflict):
    """The task is in state ``current``, from which ``wanted`` cannot be reached."""

    def __init__(self, task_id: str, *, current: str, wanted: str) -> None:
        super().__init__(f"task {task_id!r} is {current}: it cannot become {wanted}")
        self.task_id = task_id
        self.current = current
        self.wanted = wanted


class RetryRefused(Conflict):
    """The task cannot be reopened: ``reason`` says why. `TaskClient.rerun` submits a new one."""

    def __init__(self, task_id: str, reason: str) -> None:
        super().__init__(f"task {task_id!r} cannot be reopened: {reason}")
        self.task_id = task_id
        self.reason = reason


class LimitReached(Conflict, RuntimeError):
    """The ``limit`` of pending ``what`` is reached. Resolve one first.

    The text begins with ``code``, the host's own name of the error.
    """

    def __init__(self, what: str, *, limit: int, code: str) -> None:
        super().__init__(f"{code}: {limit} {what} are pending, and no more may")
        self.what = what
        self.limit = limit


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


class BackendError(RedisStateError):
    """Trouble with the server."""


class NoConnection(BackendError):
    """There is no usable connection to the server at ``address``, for ``reason``.

    ``final`` is true if a retry is useless until the URL, a certificate or a password is changed.
    Such an error is raised at once, the others at the call's deadline.
    """

    def __init__(self, address: str, reason: str, *, final: bool = False) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason
        self.final = final


class BackendUnavailable(NoConnection):
    """The server at ``address`` cannot be reached. The call did not happen. Repeat it later."""


class AuthenticationFailed(NoConnection):
    """The server refuses the user and password, or requires them. The call did not happen.

    Correct the URL or the server's users. ``final`` is true, but with credentials that may change.
    """

    def __init__(self, address: str, reason: str, *, final: bool = True) -> None:
        super().__init__(address, reason, final=final)


class OutcomeUnknown(BackendUnavailable):
    """The connection broke after the call was sent. It may have happened: repeat it by its id."""


class StoreFull(BackendError):
    """The server has no memory or disk for writes. Nothing was written. Reads work."""


class JournalRewound(BackendError):
    """The server's history went back: it lost entries of a task's journal that the run knows.

    Nothing was written. The run ends here. The task begins again from what the server has left.
    """

    def __init__(self, what: str, *, known: int, found: int) -> None:
        super().__init__(f"{what}: the server has {found} entries of {known} that this run knows")
        self.known = known
        self.found = found


class CommandRefused(BackendError):
    """The server refused the command. The text has the reason, such as a missing right."""


class CorruptState(BackendError):
    """The stored data is damaged. ``key`` is its place, ``problem`` what is wrong."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


class PayloadUnreadable(BackendError):
    """A payload cannot be read in this process, which lacks the key of its codec.

    ``of`` says whose it is, ``field`` which one. Nothing was changed: another process may have the
    key. Give this one `payload_keys`, or its codec.
    """

    def __init__(self, of: str, field: str, problem: str) -> None:
        super().__init__(f"{field} of {of} cannot be read: {problem}")
        self.of = of
        self.field = field


class PayloadStoreUnavailable(BackendError):
    """The store of large payloads cannot be used now. Nothing was written to the server."""

    def __init__(self, action: str, problem: str) -> None:
        super().__init__(f"the store of large payloads: cannot {action} an object: {problem}")


class ArchiveUnavailable(BackendError):
    """The archive cannot be used now. What was not verified there stays in Redis.

    ``refused`` if it can be reached, and does not take what it was given.
    """

    def __init__(self, action: str, problem: str, *, refused: bool = False) -> None:
        super().__init__(f"the archive: cannot {action}: {problem}")
        self.refused = refused


class PayloadLost(CorruptState):
    """A large payload is gone from its store, or is not what was written there.

    ``of`` says whose it is, ``field`` which one, ``object_key`` where it should be.
    """

    def __init__(self, of: str, field: str, object_key: str, problem: str) -> None:
        super().__init__(f"{field} of {of}", f"its object {object_key} {problem}")
        self.of = of
        self.field = field
        self.object_key = object_key
