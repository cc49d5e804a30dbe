"""The stored state does not allow the call: read it again, then decide what to do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from redis_state.errors.base import LostRace

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


def _moment(at_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


class Conflict(LostRace):
    """Another caller was first. The error carries the facts."""


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


class ErasureOutOfReach(Conflict):
    """Redis says that an archive or durable events have more, and this process has no address.

    Nothing was removed. Set `archive_url` or `durable_events` here as elsewhere, and repeat the
    call. With ``leave_unset`` only what is set here is erased. ``reasons`` say what is out of
    reach.
    """

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(f"more is kept than can be erased here: {'; '.join(reasons)}")
        self.reasons: list[str] = list(reasons)


class ArchiveInUse(Conflict):
    """Something archives, and what is held for the archive would be let go of unarchived.

    Nothing was changed behind this. Stop what archives and take the setting away everywhere, or
    release with ``force``. ``reasons`` say what is in use.
    """

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(f"the archive is in use: {'; '.join(reasons)}")
        self.reasons: list[str] = list(reasons)


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

    Or the thread was deleted, or has expired, while the task waited. What it waited for is not
    there any more. Submit tasks of one thread in turn.
    """

    def __init__(self, thread_id: str) -> None:
        super().__init__(
            f"thread {thread_id!r} was continued by another task or caller, or is gone"
        )
        self.thread_id = thread_id


class TokenResolved(Conflict):
    """The token is already resolved: by ``actor``, at ``at_ms``, with ``decision``."""

    def __init__(self, *, actor: str, at_ms: int, decision: Any) -> None:
        super().__init__(f"the token was resolved by {actor!r} at {_moment(at_ms)}")
        self.actor = actor
        self.at_ms = at_ms
        self.decision = decision


class AlreadyVoted(Conflict):
    """``actor`` has voted on the pause: at ``at_ms``, and ``approved`` or not. A vote stands."""

    def __init__(self, actor: str, *, at_ms: int, approved: bool) -> None:
        way = "approved" if approved else "rejected"
        super().__init__(f"{actor!r} has {way} the pause at {_moment(at_ms)}: a vote stands")
        self.actor = actor
        self.at_ms = at_ms
        self.approved = approved


class NotADecider(Conflict):
    """``actor`` is not, or no longer, among those who decide the pause.

    ``delegated_to`` has the vote now, if the actor has delegated it.
    """

    def __init__(self, actor: str, *, delegated_to: str | None = None) -> None:
        why = f"the vote was delegated to {delegated_to!r}" if delegated_to else "others are named"
        super().__init__(f"{actor!r} does not decide this pause: {why}")
        self.actor = actor
        self.delegated_to = delegated_to


class DelegationRefused(Conflict):
    """``actor`` cannot hand the vote to ``to``, for ``reason``. Name another one."""

    def __init__(self, actor: str, to: str, *, reason: str) -> None:
        super().__init__(f"{actor!r} cannot hand the vote to {to!r}: {reason}")
        self.actor = actor
        self.to = to
        self.reason = reason


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


class KeyReused(Conflict):
    """The key of this ``what``, or its id, was used before, with another content.

    Nothing was written, and what was sent before stands. Choose a new key for each call; keep one
    only to repeat a call as it was. ``key`` is the id of a task that was submitted, else None.
    """

    def __init__(self, what: str, *, key: str | None = None) -> None:
        named = f"the key of this {what}" if key is None else f"the id {key!r} of this {what}"
        super().__init__(f"{named} was used before, with another content")
        self.what = what
        self.key = key


class LimitReached(Conflict, RuntimeError):
    """The ``limit`` of pending ``what`` is reached. Resolve one first.

    The text begins with ``code``, the host's own name of the error.
    """

    def __init__(self, what: str, *, limit: int, code: str) -> None:
        super().__init__(f"{code}: {limit} {what} are pending, and no more may")
        self.what = what
        self.limit = limit
