"""A job: the queue's message that asks a worker to run a task."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from redis_state.models import TaskStatus
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.transport.key_text import escape, is_digest, unescape
from redis_state.worker.observe.tracing import carried

# One point of priority is worth as much as having been queued a minute earlier.
_SENIORITY_MS = 60_000
_HIGHEST_PRIORITY = 100_000
# In half microseconds a job's place is odd if its task waits for longer than that says.
_HALVES_OF_MS = 2_000
_UNTRACED: Mapping[str, str] = MappingProxyType({})


class RunAgain(Exception):
    """A run ended without an end of its task: its job is due again after ``defer_s``."""

    def __init__(self, *, defer_s: float) -> None:
        super().__init__(f"again in {defer_s:g} s")
        self.defer_s = defer_s


@dataclass(frozen=True, slots=True)
class JobPayload:
    """What a job says: which task, after how many runs it was queued.

    ``trace`` is the context of the span that queued it. ``place_age_s`` is how long ago its place
    in the queue was due, if that says how long it waited; its priority counts.
    """

    session_id: str
    task_id: str
    runs: int = 0
    trace: Mapping[str, str] = field(default_factory=dict[str, str])
    place_age_s: float | None = None

    @classmethod
    def read(cls, stated: Any) -> JobPayload | None:
        """Read a job's argument; None if it names no task."""
        if not isinstance(stated, dict):
            return None
        parts = cast("dict[str, Any]", stated)
        session_id, task_id = parts.get("session_id"), parts.get("task_id")
        if not isinstance(session_id, str) or not isinstance(task_id, str):
            return None
        runs = parts.get("runs")
        count = runs if type(runs) is int else 0
        return cls(session_id, task_id, count, carried(parts.get("trace")))


class Job(NamedTuple):
    """The facts of the record about a task that is ready to run.

    ``version`` is the record's version, ``since_ms`` when the task was created, if it is queued
    again. ``orphan`` is true if its last run is dead. ``at_ms`` is when it is due, by the server's
    clock. ``key`` is what its task is limited under. ``trace`` is the context of the span that
    queues it. Claims up to ``retired_ms`` have no right to run the task, by its record.
    """

    session_id: str
    task_id: str
    runs: int
    priority: int
    queue: str | None = None
    version: int = 0
    orphan: bool = False
    since_ms: int | None = None
    at_ms: int | None = None
    trace: Mapping[str, str] = _UNTRACED
    key: str = ""
    retired_ms: int = 0

    @classmethod
    def of(cls, task: TaskStatusView) -> Job:
        """Make the job of a task that waits to be run. It keeps its place in the line."""
        return cls(
            task.session_id,
            task.task_id,
            task.attempts,
            task.priority,
            queue=task.queue,
            version=task.version,
            orphan=task.status is TaskStatus.RUNNING,
            since_ms=_since_ms(task),
            # What has begun waits for it no more, also if the clock was set back since.
            at_ms=None if task.attempts else task.due_ms or None,
            key=task.key,
        )

    @classmethod
    def ready(cls, task: TaskStatusView) -> Job:
        """Make the job of a task that has just become ready to run."""
        return cls.of(task)._replace(since_ms=None)

    @classmethod
    def before(cls, task: TaskStatusView, since_ms: int) -> Job:
        """Make the job of a task that goes before one that counts as waiting since that time."""
        return cls.of(task)._replace(since_ms=since_ms - 1)

    def stated(self) -> dict[str, Any]:
        """Write what its payload says."""
        stated: dict[str, Any] = {
            "session_id": self.session_id,
            "task_id": self.task_id,
            "runs": self.runs,
        }
        if self.trace:
            stated["trace"] = self.trace
        return stated

    def claim_under(self, tag: str) -> str:
        """Return its task as claims name it."""
        return self.id_under(tag).rpartition(":")[0]

    def id_under(self, tag: str) -> str:
        """Return its id in a queue. Each run of a task has one of its own."""
        session = escape("session_id", self.session_id)
        return f"{tag}/{session}/{escape('task_id', self.task_id)}:{self.runs}"


class QueueState(StrEnum):
    """What the queue had of a job, and what was done."""

    WAITS = "WAITS"  # it is there for any worker
    MISPLACED = "MISPLACED"  # so it is, at the place of another priority, see `place_by_record`
    CLAIMED = "CLAIMED"  # a worker has claimed it and may be about to start it
    RELEASED = "RELEASED"  # who claimed it never started it: it is there for any worker again
    QUEUED = "QUEUED"  # it was not there, and is now
    HELD = "HELD"  # its claim is a permit, and who has it could still run the task


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job that this process has claimed, and when. Its ``task`` is None if it names none.

    ``is_limited`` if its claim may be a permit. ``place`` is where it was in the queue. What the
    claim took of a rate is there again after its end, unless a run has ``begun``.
    """

    id: bytes
    queue: str
    claimed: bytes
    task: JobPayload | None
    is_limited: bool = False
    place: bytes = b"0"
    begun: bool = True


@dataclass(frozen=True, slots=True)
class OldClaim:
    """A claim that its worker has had time to begin: which task's, and when it was made.

    ``claimed_ms`` is 0 for one that was made before the server's clock was set back.
    """

    queue: str
    task: tuple[str, str]
    claimed_ms: int


@dataclass(frozen=True, slots=True)
class ListedClaims:
    """Up to when the claims of a queue were listed: those of the past, and those of the future.

    The latter were made before the server's clock was set back. They are listed again and again.
    """

    after_ms: int = 0
    ahead_ms: int = 0

    def read(self, queue: str, now: Any, *found: Any) -> tuple[ListedClaims, list[OldClaim]]:
        """Read what `list_claims` has found; return what is listed by now, too."""
        now_ms, claims = int(now), list[OldClaim]()
        after_ms, ahead_ms = min(self.after_ms, now_ms), 0
        for claim, claimed in zip(found[::2], found[1::2], strict=True):
            at_ms = int(claimed)
            ahead = at_ms > now_ms
            after_ms, ahead_ms = (after_ms, at_ms) if ahead else (at_ms, ahead_ms)
            # One whose id is hashed is found by the watch list, later.
            with suppress(ValueError):
                task = names_of(claim.decode())
                claims += [] if task is None else [OldClaim(queue, task, 0 if ahead else at_ms)]
        return ListedClaims(after_ms, ahead_ms), claims


def _since_ms(task: TaskStatusView) -> int:
    """Return since when a task counts as waiting: one that goes before others, since before."""
    created_ms = task.order // 1000
    return min(created_ms, task.due_ms) if task.in_turn and task.due_ms else created_ms


def task_of(job_id: bytes) -> JobPayload | None:
    """Read which task an id names. None if it names none, or one whose id it only has the hash of.

    Errors: ValueError for what no job is called.
    """
    claim, colon, runs = job_id.decode().rpartition(":")
    if not colon:
        raise ValueError("no run")
    names = names_of(claim)
    return None if names is None else JobPayload(*names, runs=int(runs))


def names_of(claim: str) -> tuple[str, str] | None:
    """Read which task a claim names: session and task. As `task_of`. Errors: ValueError."""
    _, session, task = claim.split("/")
    if is_digest(session) or is_digest(task):
        return None
    return unescape(session), unescape(task)


def seniority_ms(priority: int) -> int:
    """Return by how many ms a priority makes a job earlier."""
    return min(max(0, priority), _HIGHEST_PRIORITY) * _SENIORITY_MS


def waited_s(job: JobPayload, *, priority: int) -> float | None:
    """Return how long a task of this priority waited for its run, if that is known."""
    if job.place_age_s is None:
        return None
    return max(0.0, job.place_age_s - seniority_ms(priority) / 1000)


def age_s(place: bytes, now: bytes) -> float | None:
    """Return how long a job at a place has waited, in seconds; None if that is not known."""
    if round(float(place) * _HALVES_OF_MS) % 2:
        return None
    return (int(now) - float(place)) / 1000
