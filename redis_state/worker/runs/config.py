"""What a worker gives its runs: handlers, the lease, the limits."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from redis_state.errors import LeaseLost
from redis_state.models import TaskStatus
from redis_state.primitives.lease import HeldLease, Leases, Renewal
from redis_state.timers import SharedTimers
from redis_state.worker.handler.context import TaskContext
from redis_state.worker.handler.guards import Guard
from redis_state.worker.observe.registry import WorkerRecord
from redis_state.worker.observe.stats import WorkerStats
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.execution.policy import StepPolicy
from redis_state.worker.tasks.transitions import MAX_CRASHES

log: logging.Logger = logging.getLogger(__name__)

Handler = Callable[[TaskContext], Awaitable[Any]]
RunOutcome = tuple[TaskStatus, Any, str | None]

# How long after trouble with the server something is tried again.
AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The configuration of runs: handlers, the worker's name, the lease, the time limit, steps.

    ``keep_s`` is how long a run's lease is renewed at most, whatever the run does. More than
    ``max_crashes`` workers that die with one task in a row end it. ``queue`` is where children and
    woken parents are put. ``guards`` watch every task. ``presence`` is this worker's own record.
    Handlers ``may_block`` the loop where a thread renews the leases.
    """

    handlers: Mapping[str, Handler]
    worker: str
    lease_s: float
    limit_s: float
    keep_s: float
    leases: Leases
    stats: WorkerStats = field(default_factory=WorkerStats)
    steps: StepPolicy | None = None
    max_crashes: int = MAX_CRASHES
    queue: Queue | None = None
    guards: Sequence[Guard] = ()
    presence: WorkerRecord | None = None
    may_block: bool = False
    timers: SharedTimers = field(default_factory=SharedTimers)

    @property
    def lease_ms(self) -> int:
        """The lease, in milliseconds."""
        return round(self.lease_s * 1000)

    def keep(
        self,
        held: HeldLease,
        task_id: str,
        *,
        ends_s: float,
        on_lost: Callable[[LeaseLost], object],
    ) -> Renewal:
        """Renew a run's lease from now on, until a time of the monotonic clock at most."""

        def in_time() -> bool:
            if monotonic() <= ends_s:
                return True
            log.warning("the lease of task %r is not renewed any more", task_id)
            return False

        return self.leases.keep(held, duration_ms=self.lease_ms, on_lost=on_lost, wanted=in_time)
