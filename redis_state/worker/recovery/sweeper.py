"""The sweeper: inspects every unfinished task in time, and repairs what a crash left.

    missing or terminal      its entry is removed, the second time that it is found so
    PENDING                  its job is put into the queue if it is missing
    RUNNING, lease valid     checked again when the lease expires
    RUNNING, lease expired   queued for another worker; failed if too many have died with it
    PAUSED                   checked again at its deadline; overdue, resolved by its policy
    waits for a child        made ready to run if the child is terminal
    child of one cancelled   cancelled too
    not in the index as it is    corrected there

Every worker sweeps. An entry is claimed for a short time, so that the work is shared and a sweeper
that dies loses none of it. Each repair may be done twice: the record decides.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Self

from redis_state.errors import BackendError
from redis_state.models import TaskStatus
from redis_state.primitives.watchlist import Fate, WatchClaim, WatchList
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker.arq.job_format import Job
from redis_state.worker.arq.queue import Queue, QueueState
from redis_state.worker.observe.stats import WorkerStats
from redis_state.worker.recovery.index_repair import IndexRepair
from redis_state.worker.tasks.children import WITH_PARENT, ChildTasks
from redis_state.worker.tasks.pauses import expire_pauses
from redis_state.worker.tasks.transitions import LOOK_LATEST_MS, MAX_CRASHES, TaskTransitions

log: logging.Logger = logging.getLogger(__name__)

_HOLD_MS = 1_500
# However long the pause: a decision whose maker was stopped between the watch list and the record,
# and died before the queue, is seen by then.
_LONGEST_PAUSE_MS = 60_000
_TROUBLE_MS = 30_000
# Until a terminal task is inspected again that the index did not have as it ended.
_AGAIN_MS = 1_000
# Between two rounds of which the first had all hands full.
_NEXT_S = 0.05


@dataclass(slots=True)
class SweepReport:
    """The result of one sweep, in numbers of tasks.

    ``requeued`` tasks waited and were not in the queue. ``released`` ones were picked by a worker
    that never started them. ``taken_over`` ones were left by a dead worker. ``expired`` ones were
    paused beyond their deadline. ``failed`` ones had too many workers die with them. ``dropped``
    ones are terminal or deleted. ``woken`` ones waited for a child that is terminal.
    ``parent_cancelled`` ones were unfinished when their parent was cancelled.
    """

    looked: int = 0
    requeued: int = 0
    released: int = 0
    taken_over: int = 0
    expired: int = 0
    failed: int = 0
    dropped: int = 0
    woken: int = 0
    parent_cancelled: int = 0

    def __iadd__(self, other: SweepReport) -> Self:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        return self


class Sweeper:
    """Sweep the watch list of a store for the queues of one server.

    ``lease_ms`` is that of the workers: what a dead one had picked or run is given to another
    within its length and two seconds. ``limit`` bounds a round: so many entries of each of 16
    shards. A task goes to the queue that it was submitted to; ``queue`` names that of a task which
    does not say.
    """

    def __init__(
        self,
        store: RedisStateStore,
        queue: Queue,
        *,
        lease_ms: int = 10_000,
        max_crashes: int = MAX_CRASHES,
        limit: int = 32,
    ) -> None:
        self.totals: SweepReport = SweepReport()
        self._store = store
        self._queue = queue
        self._max_crashes = max_crashes
        self._limit = limit
        # Together with the time between two rounds these stay below a lease and two seconds.
        self._patience_ms = min(max(lease_ms // 4, 100), 2_500)
        self._waiting_ms = 2 * self._patience_ms
        self._watch = WatchList(store.base.scripts, store.base.keys)
        self._transitions = TaskTransitions(store)
        # Without the queue: what it wakes is queued with all else that waits.
        self._children = ChildTasks(store)
        self._index = IndexRepair(store)

    @property
    def pause_s(self) -> float:
        """The time between two rounds: a second, or less for short leases."""
        return min(1.0, self._patience_ms / 1000)

    @property
    def full(self) -> int:
        """From how many entries on a round is a full one, with more to come."""
        return self._limit * WATCH_SHARDS // 2

    async def run_once(self) -> SweepReport:
        """Inspect and repair what is due, once; return what was done.

        With nothing due that is one write and one read. Errors: BackendError; what was claimed and
        not settled then is due again soon.
        """
        report = SweepReport()
        claims = await self._watch.claim_due(limit=self._limit, hold_ms=_HOLD_MS)
        if claims:
            try:
                await self._sweep(claims, report)
            finally:
                self.totals += report
        return report

    async def _sweep(self, claims: Sequence[WatchClaim], report: SweepReport) -> None:
        report.looked += len(claims)
        waiting: list[tuple[WatchClaim, TaskStatusView]] = []
        judge = partial(self._judge, waiting=waiting, report=report)
        # Before the queue is read, which may be on another, unreachable server.
        report.dropped += await self._watch.inspect(claims, judge, trouble_ms=_TROUBLE_MS)
        await self._watch.settle(await self._queue_up(waiting, report))

    async def _judge(
        self,
        claim: WatchClaim,
        *,
        waiting: list[tuple[WatchClaim, TaskStatusView]],
        report: SweepReport,
    ) -> int | Fate:
        try:
            task = _task_of(claim.entry)
        except codec.DecodeError:
            log.warning("an entry of the watch list cannot be read")
            return Fate.OUT
        if task is None:
            return Fate.LEFT
        fate, status_view = await self._inspect(claim, task, waiting, report)
        indexed = await self._index.settle(claim, task, status_view)
        # Only an entry whose task is in the index as it ended is removed.
        return _AGAIN_MS if claim.again and fate is Fate.OUT and not indexed else fate

    async def _inspect(
        self,
        claim: WatchClaim,
        task: tuple[str, str],
        waiting: list[tuple[WatchClaim, TaskStatusView]],
        report: SweepReport,
    ) -> tuple[int | Fate, TaskStatusView | None]:
        status_view = await self._settle_family(task, report)
        if status_view is not None and status_view.ours and status_view.status is TaskStatus.PAUSED:
            for_child = status_view.waits_for is not None
            left_ms = await expire_pauses(self._store, *task)
            status_view = await self._store.tasks.look(*task)
            if status_view is not None and status_view.status is TaskStatus.PAUSED:
                return min(left_ms or _LONGEST_PAUSE_MS, _LONGEST_PAUSE_MS), status_view
            report.expired += not for_child
        elif (
            status_view is not None
            and status_view.is_orphan
            and status_view.crashes >= self._max_crashes
        ):
            report.failed += await self._transitions.dead_letter(
                *task, died=status_view.crashes + 1
            )
            status_view = await self._store.tasks.look(*task)
        if status_view is None or not status_view.ours or status_view.status.is_terminal:
            return Fate.OUT, status_view
        if status_view.status is TaskStatus.RUNNING and status_view.left_ms:
            return min(status_view.left_ms + 1, LOOK_LATEST_MS), status_view
        # The queue must have it.
        waiting.append((claim, status_view))
        return Fate.LEFT, status_view

    async def _settle_family(
        self, task: tuple[str, str], report: SweepReport
    ) -> TaskStatusView | None:
        """Read a task's status, after settling what its parent and its child imply."""
        status_view = await self._store.tasks.look(*task)
        if status_view is None or not status_view.ours or status_view.status.is_terminal:
            return status_view
        session_id, task_id = task
        parent = status_view.cancelled_with
        if parent is not None and await self._children.parent_cancelled(
            session_id, parent, order=status_view.parent_order
        ):
            report.parent_cancelled += 1
            await self._children.cancel_with(session_id, task_id, parent, reason=WITH_PARENT)
        elif status_view.waits_for is not None:
            report.woken += await self._children.wake(session_id, task_id, status_view.waits_for)
        else:
            return status_view
        return await self._store.tasks.look(*task)

    async def _queue_up(
        self, waiting: Sequence[tuple[WatchClaim, TaskStatusView]], report: SweepReport
    ) -> list[tuple[WatchClaim, int | None]]:
        jobs = [Job.of(status_view) for _, status_view in waiting]
        mended = await self._queue.ensure_queued(jobs, patience_ms=self._patience_ms)
        for job, how in zip(jobs, mended, strict=True):
            report.released += how is QueueState.RELEASED
            report.taken_over += how is QueueState.QUEUED and job.orphan
            report.requeued += how is QueueState.QUEUED and not job.orphan
        return [
            (claim, self._patience_ms if how is QueueState.CLAIMED else self._waiting_ms)
            for (claim, _), how in zip(waiting, mended, strict=True)
        ]


async def sweep_regularly(
    store: RedisStateStore,
    *,
    queue: str,
    lease_s: float,
    max_crashes: int = MAX_CRASHES,
    stats: WorkerStats | None = None,
) -> None:
    """Sweep until cancelled. Any trouble with the servers is survived."""
    jobs = Queue(store.settings, name=queue)
    sweeper = Sweeper(store, jobs, lease_ms=round(lease_s * 1000), max_crashes=max_crashes)
    failing = False
    try:
        while True:
            report = SweepReport()
            try:
                report = await sweeper.run_once()
                failing = False
            except Exception as error:
                if not failing:
                    unknown = None if isinstance(error, BackendError) else error
                    log.warning("sweeping fails, trying again: %s", error, exc_info=unknown)
                failing = True
            if stats is not None:
                stats.swept.update(asdict(report))
            pause_s = _NEXT_S if report.looked >= sweeper.full else sweeper.pause_s
            # Workers that began together need not sweep together.
            await asyncio.sleep(pause_s * random.uniform(0.75, 1.25))
    finally:
        await jobs.aclose()


def _task_of(entry: bytes) -> tuple[str, str] | None:
    """Read an entry as `watch_entry` wrote it; None for one of another kind."""
    match codec.decode(entry):
        case ["task", str(session_id), str(task_id)]:
            return session_id, task_id
        case _:
            return None
