"""The counters of a worker process, for its heartbeat and its metrics.

Counting is always on, costs an addition, and never waits or raises. The registry of workers, and a
metrics server in a thread of its own, only read the numbers.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

# Seconds. From a queue that is nearly empty to one that nobody empties.
WAIT_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
RUN_BOUNDS = (0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
# What was not counted for so many of its periods is shown no more: during an outage of the server
# its last value would keep alerts from firing, or keep them firing.
SHOWN_PERIODS = 5
# A task may name any handler; a name that no worker knows must not make a series of its own.
UNKNOWN = "(unknown)"

T = TypeVar("T")


class RunOutcome(StrEnum):
    """How a run ended, as far as this worker is concerned."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PAUSED = "paused"
    HANDED_OVER = "handed_over"
    # Another worker took the task over, or it moved on in another way: nothing was written.
    DROPPED = "dropped"
    # The end could not be written: the lease expires, and another worker begins again.
    UNWRITTEN = "unwritten"


class Histogram:
    """How many values fell under each bound, and their sum."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds: tuple[float, ...] = tuple(bounds)
        self.counts: list[int] = [0] * (len(self.bounds) + 1)
        self.total: float = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A run in progress."""

    session_id: str
    task_id: str
    handler: str
    begun: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class Polls:
    """When a worker last looked at its queues, or began to. Safe to ask in another thread."""

    at: float = field(default_factory=time.monotonic)
    # It has looked at all of them at least once.
    ever: bool = False

    def now(self) -> None:
        """Record that all queues were polled now."""
        self.at, self.ever = time.monotonic(), True

    def age_s(self) -> float:
        """Return how long ago the last poll was."""
        return time.monotonic() - self.at


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many jobs are due in a queue, are put off, are claimed; how long the oldest is due."""

    waiting: int
    later: int
    claimed: int
    oldest_s: float


class Counted(Generic[T]):
    """What was counted at the server, until it is too old. Safe to ask in another thread."""

    def __init__(self) -> None:
        self._found: tuple[T, float] | None = None

    def put(self, found: T, *, for_s: float) -> None:
        """Record a count, which is shown for so long."""
        self._found = found, time.monotonic() + for_s

    @property
    def value(self) -> T | None:
        """What was counted last; None if nothing was, or too long ago."""
        found = self._found
        return None if found is None or time.monotonic() > found[1] else found[0]


class WorkerStats:
    """The numbers of one worker process since it started."""

    def __init__(self, handlers: Iterable[str] = (), *, polls: Polls | None = None) -> None:
        self.handlers: frozenset[str] = frozenset(handlers)
        # None under arq's own loop, which does not report its polls.
        self.polls: Polls | None = polls
        self.draining: bool = False
        self.taken_over: int = 0
        self.lease_lost: int = 0
        self.scheduled: int = 0
        self.started: Counter[str] = Counter()
        self.runs: dict[tuple[str, RunOutcome], Histogram] = {}
        self.waits: dict[str, Histogram] = {}
        self.swept: Counter[str] = Counter()
        self.archived: Counter[str] = Counter()
        # What was removed from the archive because it had expired, in rows of each class.
        self.retained: Counter[str] = Counter()
        # Tasks that wait to be archived, and for how many seconds the first of them, or the first
        # of the sessions that are behind.
        self.archive_backlog: Counted[tuple[int, float]] = Counted()
        self.sessions_behind: Counted[int] = Counted()
        # Records of other classes, likewise.
        self.record_backlog: Counted[tuple[int, float]] = Counted()
        # Traces with events that PostgreSQL lacks, and for how many seconds the first of them.
        self.event_backlog: Counted[tuple[int, float]] = Counted()
        # What is in each queue of the namespace.
        self.queues: Counted[Mapping[str, QueueCounts]] = Counted()
        # How many live workers take tasks of each of them.
        self.queue_workers: Counted[Mapping[str, int]] = Counted()
        # For how many seconds the first entry of each band of the tasks' watch list is due.
        self.sweep_overdue: Counted[Mapping[str, float]] = Counted()
        # How many pauses are open for longer than each of some ages, in seconds.
        self.open_pauses: Counted[Mapping[float, int]] = Counted()
        self._running: dict[int, RunningTask] = {}

    @property
    def running(self) -> list[RunningTask]:
        """What runs now. Safe to ask in another thread."""
        return list(self._running.copy().values())

    def begin(
        self,
        session_id: str,
        task_id: str,
        handler: str,
        *,
        taken_over: bool,
        queue: str,
        waited_s: float | None,
    ) -> RunningTask:
        """Count a run that begins. ``waited_s`` is the time since its task was queued, if known."""
        known = handler if handler in self.handlers else UNKNOWN
        run = RunningTask(session_id, task_id, known)
        self._running[id(run)] = run
        self.started[known] += 1
        self.taken_over += taken_over
        if waited_s is not None:
            self.waits.setdefault(queue, Histogram(WAIT_BOUNDS)).add(max(0.0, waited_s))
        return run

    def end(self, run: RunningTask, outcome: RunOutcome, *, lost: bool) -> None:
        """Count a run that has ended; ``lost`` if another worker had taken its lease."""
        if self._running.pop(id(run), None) is None:
            return
        key = (run.handler, outcome)
        spent_s = time.monotonic() - run.begun
        self.runs.setdefault(key, Histogram(RUN_BOUNDS)).add(spent_s)
        self.lease_lost += lost

    def ended(self) -> dict[str, int]:
        """Count the runs that have ended, by each outcome that there is."""
        ended: Counter[str] = Counter({outcome.value: 0 for outcome in RunOutcome})
        for (_, outcome), runs in self.runs.copy().items():
            ended[outcome.value] += sum(runs.counts)
        return dict(ended)

    def counters(self) -> dict[str, int]:
        """Return the totals by name."""
        return {
            "started": sum(self.started.copy().values()),
            **self.ended(),
            "taken_over": self.taken_over,
            "lease_lost": self.lease_lost,
        }


def stale_writes_refused(lost: Counter[str]) -> int:
    """Count the writes among what scripts have refused: to renew or give back a lease is none."""
    return sum(times for name, times in lost.copy().items() if not name.endswith("_lease"))
