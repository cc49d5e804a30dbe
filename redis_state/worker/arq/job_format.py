"""What the queue says of a task: which one is to be run, after how many runs, since when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from redis_state.models import TaskStatus
from redis_state.serialization import codec
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.transport.keys import escape
from redis_state.worker.observe.tracing import carried

RUN_TASK = "run_task"
# How arq names cron jobs. They carry no arguments.
CRON_PREFIX = "cron:"

_RUNS_BACK = 10
_NO_JOB: Mapping[str, Any] = {"t": None, "f": RUN_TASK, "a": [None], "k": {}, "et": 0}
# What datetime still reads.
_END_OF_TIME_MS = 253_402_300_799_000


def serialize(job: dict[str, Any]) -> bytes:
    """Write a job as JSON. What is not JSON, an exception say, is its text: nothing to execute."""
    return codec.encode(job)


def deserialize(data: bytes) -> dict[str, Any]:
    """Read a job. What is none becomes one that names no task, and is dropped by its worker.

    arq itself would end the worker for some of them.
    """
    try:
        job: Any = codec.decode(data)
    except ValueError:
        job = None
    return cast("dict[str, Any]", job) if _is_job(job) else dict(_NO_JOB)


def _is_job(job: Any) -> bool:
    if not isinstance(job, dict):
        return False
    parts = cast("dict[str, Any]", job)
    arguments, made, tries = parts.get("a"), parts.get("et"), parts.get("t")
    called = parts.get("f")
    is_cron = isinstance(called, str) and called.startswith(CRON_PREFIX)
    return (
        (called == RUN_TASK or is_cron)
        and type(arguments) is list
        and len(arguments) == int(not is_cron)  # pyright: ignore[reportUnknownArgumentType]
        and parts.get("k") == {}
        and type(made) is int
        and 0 <= made < _END_OF_TIME_MS
        and (tries is None or type(tries) is int)
    )


@dataclass(frozen=True, slots=True)
class JobPayload:
    """What a job in the queue says: which task, after how many runs it was queued, and when.

    ``at_ms`` is by the store's clock, ``trace`` the context of the span that queued it.
    """

    session_id: str
    task_id: str
    runs: int = 0
    at_ms: int | None = None
    trace: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, stated: Any) -> JobPayload | None:
        """Read a job's argument; None if it names no task."""
        if not isinstance(stated, dict):
            return None
        parts = cast("dict[str, Any]", stated)
        session_id, task_id = parts.get("session_id"), parts.get("task_id")
        if not isinstance(session_id, str) or not isinstance(task_id, str):
            return None
        runs, at_ms = parts.get("runs"), parts.get("at")
        return cls(
            session_id,
            task_id,
            runs if type(runs) is int else 0,
            at_ms if type(at_ms) is int else None,
            carried(parts.get("trace")),
        )

    def waited_s(self, now_ms: int | None, *, run: int) -> float | None:
        """Return how long the task waited for its run of this number.

        None if that is not known: another run came in between, and it waited for that one.
        """
        if now_ms is None or self.at_ms is None or run != self.runs + 1:
            return None
        return (now_ms - self.at_ms) / 1000


@dataclass(frozen=True, slots=True)
class Job:
    """The facts of the record about a task that is ready to run.

    ``version`` is the record's version, ``since_ms`` when the task was created. ``orphan`` is true
    if its last run is dead, and so is a worker that picked an earlier job. ``at_ms`` is when it is
    queued, by the store's clock, and ``trace`` the context of the span that queues it.
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
    trace: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, task: TaskStatusView) -> Job:
        """Make the job of a task that is to be run."""
        return cls(
            task.session_id,
            task.task_id,
            task.attempts,
            task.priority,
            queue=task.queue,
            version=task.version,
            orphan=task.status is TaskStatus.RUNNING,
            since_ms=task.order // 1000,
        )

    def ticket(self) -> dict[str, Any]:
        """Write what its job in the queue says."""
        stated = {"session_id": self.session_id, "task_id": self.task_id, "runs": self.runs}
        more = {"at": self.at_ms, "trace": self.trace}
        return stated | {name: value for name, value in more.items() if value}

    def names(self, owner: str) -> list[str]:
        """Return its job ids, newest first: a task that was handed off keeps its earlier one."""
        oldest = max(0, self.runs - _RUNS_BACK)
        counts = range(self.runs, oldest - 1, -1)
        return [job_id(owner, self.session_id, self.task_id, runs) for runs in counts]


def is_anothers(job_id: str, owner: str) -> bool:
    """Return whether a job is one of another namespace's tasks than the owner's."""
    its_owner, slash, task = job_id.partition("/")
    # Session, task: what looks otherwise is nobody's, or arq's own.
    return bool(slash) and task.count("/") == 1 and its_owner != owner


def job_id(owner: str, session_id: str, task_id: str, runs: int) -> str:
    """Return the job of a task's run that follows so many."""
    task = f"{escape('session_id', session_id)}/{escape('task_id', task_id)}"
    return f"{owner}/{task}:{runs}"
