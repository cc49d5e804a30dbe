"""The sweeper: inspects every unfinished task in time, and repairs what a crash left.

    missing or terminal      its entry is removed, if it was marked as ended before
    PENDING                  its job is put into the queue if it is missing, and moved to the
                             place of its priority
    RUNNING, lease valid     checked again when the lease expires
    RUNNING, lease expired   queued for another worker; failed if too many have died with it
    PAUSED                   checked again at its deadline; overdue, resolved by its policy
    waits for a child        made ready to run if the child is terminal
    child of one cancelled   cancelled too
    pause that escalates     gains the deciders that are due
    not in the index as it is    corrected there
    runs in turn             kept in its session's line; interrupts what it has still to

What a worker claimed and never started is found among the claims of its queue, long before a task
that waits is inspected again.

Every worker sweeps. An entry is claimed for a short time, so that the work is shared and a sweeper
that dies loses none of it. Each repair may be done twice: the record decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from redis_state.errors import (
    BackendError,
    CorruptState,
    NoConnection,
    RedisStateError,
    StoreFull,
)
from redis_state.models import TaskStatus
from redis_state.primitives.watchlist.watchlist import Fate, WatchClaim, WatchList, check_after
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker.archiving.listing import ArchiveEntries
from redis_state.worker.queue.jobs.job import QueueState
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.ended_tasks import EndedTask, still_ended
from redis_state.worker.recovery.index_repair import IndexRepair
from redis_state.worker.recovery.old_claims import OldClaims
from redis_state.worker.recovery.pause_repair import PauseRepair
from redis_state.worker.recovery.queue_history import QueueHistory
from redis_state.worker.recovery.report import SweepReport
from redis_state.worker.recovery.waiting_tasks import (
    HOLD_MS,
    LONGEST_DELAY_MS,
    LONGEST_PAUSE_MS,
    Queueable,
    WaitingTasks,
    claimed_at_ms,
)
from redis_state.worker.tasks.children.cancelling import (
    WITH_PARENT,
    CancelCascade,
    parent_cancelled,
)
from redis_state.worker.tasks.children.children import ChildTasks
from redis_state.worker.tasks.messaging.messages import TaskMessages
from redis_state.worker.tasks.move_parts import CHECK_LATEST_MS, SKEW_MS
from redis_state.worker.tasks.submitting.turns import Turns
from redis_state.worker.tasks.transitions import MAX_CRASHES, TaskTransitions
from redis_state.worker.tasks.waitpoints.deciders import escalate_pause, pause_of
from redis_state.worker.tasks.waitpoints.deciding import (
    expire_pauses,
    is_overdue,
    pause_left_ms,
)

log: logging.Logger = logging.getLogger(__name__)

_TROUBLE_MS = 30_000
# Until a terminal task is inspected again that the index did not have as it ended.
_AGAIN_MS = 1_000


@contextmanager
def _noting(refused: list[BackendError]) -> Generator[None]:
    """Note what a full server refuses: what comes behind may make room, or need none.

    And that a server is unreachable: what comes behind may be on another node.
    """
    try:
        yield
    except (StoreFull, NoConnection) as error:
        refused.append(error)


class Sweeper:
    """Sweep the watch list of a store for the queues of one server.

    ``lease_ms`` is that of the workers: what a dead one had picked or run is given to another
    within its length and two seconds. ``limit`` bounds a round: so many entries of each of 16
    shards. A round ends with calls for all its entries at once, so it is short: a pool that was
    away has much to inspect, and runs tasks at the same time. A task goes to the queue that it was
    submitted to; ``queue`` names that of a task which does not say. The claims of ``queues`` are
    inspected. With ``often``, each task that waits is inspected as often as that: for workers whose
    claims are not listed, arq's own. ``archiving`` puts tasks that have ended on the archive's
    list, and the sessions of others. ``claiming`` is the queue of the process's claims, which knows
    where jobs were parked. ``history`` notices when the queues' server has lost jobs: so tasks that
    wait for long are inspected seldom.
    """

    def __init__(
        self,
        store: RedisStateStore,
        queue: Queue,
        *,
        lease_ms: int = 10_000,
        max_crashes: int = MAX_CRASHES,
        limit: int = 8,
        queues: Sequence[str] | None = None,
        often: bool = False,
        claiming: Queue | None = None,
        history: QueueHistory | None = None,
        archiving: bool = False,
    ) -> None:
        self.totals: SweepReport = SweepReport()
        self._store = store
        self._queue = queue
        self._max_crashes = max_crashes
        self._limit = limit
        # Together with the time between two rounds these stay below a lease and two seconds.
        self._patience_ms = min(max(lease_ms // 4, 100), 2_500)
        served = [queue.name] if queues is None else queues
        self._old_claims = OldClaims(store, queue, queues=served, patience_ms=self._patience_ms)
        self._watch = WatchList(store.base.scripts, store.base.keys)
        self._transitions = TaskTransitions(store)
        self._waiting = WaitingTasks(
            *(store, self._transitions, queue, history),
            patience_ms=self._patience_ms,
            often=often,
        )
        # Without the queue: what it wakes is queued with all else that waits.
        self._children = ChildTasks(store)
        self._cancels = CancelCascade(store, self._children)
        self._messages = TaskMessages(store)
        self._index = IndexRepair(store)
        self._pauses = PauseRepair(store)
        self._turns = Turns(store, queue)
        self._claiming = claiming
        self._history = history
        self._claims_history = ""
        self._listing = ArchiveEntries(store) if archiving else None

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
        if self._history is not None and self._history.current != self._claims_history:
            # Claims that had ended may be there again, and the entries of their tasks are not.
            self._claims_history = self._history.current
            self._old_claims.begin_again()
        try:
            claims, listed = await asyncio.gather(
                self._watch.claim_due(limit=self._limit, hold_ms=HOLD_MS),
                self._old_claims.read(),
            )
            full = await self._sweep(claims, report) if claims else None
            if isinstance(listed, BackendError):
                raise listed
            if listed:
                for how in await self._old_claims.release(listed):
                    report.released += how is QueueState.RELEASED
                    report.requeued += how is QueueState.QUEUED
            if full is not None:
                raise full
        except RedisStateError:
            # An entry may be settled whose task's claim is not ended, or a claim was only listed.
            self._old_claims.begin_again()
            raise
        finally:
            self.totals += report
        return report

    async def _sweep(
        self, claims: Sequence[WatchClaim], report: SweepReport
    ) -> BackendError | None:
        """Inspect what was claimed. Return what a full server has refused, or that a node is
        unreachable: the others are done.
        """
        report.looked += len(claims)
        waiting: list[Queueable] = []
        idle: list[EndedTask] = []
        judge = partial(self._judge, waiting=waiting, idle=idle, report=report)
        refused: list[BackendError] = []
        # Before the queue is read, which may be on another, unreachable server.
        with _noting(refused):
            if self._listing is None:
                ended, claims = await still_ended(self._store, claims)
                idle += ended
                await self._watch.settle((claim, None) for claim, *_ in ended)
                report.dropped += len(ended)
            report.dropped += await self._watch.inspect(claims, judge, trouble_ms=_TROUBLE_MS)
        with _noting(refused):
            await self._watch.settle(await self._waiting.queue_up(waiting, report))
        paused = [each for each in idle if each[2].status is TaskStatus.PAUSED]
        await self._free_permits([each for each in idle if each[2].status.is_terminal])
        # A paused task may be resumed and claimed meanwhile, by the clock of another node.
        await self._free_permits(paused, margin_ms=SKEW_MS)
        return next(iter(refused), None)

    async def _free_permits(self, idle: Sequence[EndedTask], *, margin_ms: int = 0) -> None:
        """End what is left of the claims of tasks that have ended or are paused: their workers may
        have died.

        And what is parked of them. A task that was resumed since is queued again by its next look.
        """
        by_queue: defaultdict[str | None, list[tuple[tuple[str, str], TaskStatusView | None]]]
        by_queue = defaultdict(list)
        for _, task, found in idle:
            by_queue[found.queue].append((task, found))
        if by_queue:
            before_ms = min(claimed_at_ms(claim) for claim, *_ in idle) - margin_ms
            for queue, tasks in by_queue.items():
                await self._queue.drop_claims(queue, tasks, before_ms=before_ms)

    async def _drop_gone(self, claim: WatchClaim, task: tuple[str, str]) -> None:
        """Drop what is parked of a task that is gone, in the queues where something was parked."""
        if self._claiming is None:
            return
        with suppress(BackendError):
            for queue in filter(self._claiming.parked_at, self._old_claims.queues):
                await self._queue.drop_claims(queue, [(task, None)], before_ms=claimed_at_ms(claim))

    async def _judge(
        self,
        claim: WatchClaim,
        *,
        waiting: list[Queueable],
        idle: list[EndedTask],
        report: SweepReport,
    ) -> int | Fate:
        try:
            entry = codec.decode(claim.entry)
        except codec.DecodeError:
            log.warning("an entry of the watch list cannot be read")
            return Fate.OUT
        task, pause_id = _task_of(entry), pause_of(entry)
        if pause_id is not None:
            made, verdict = await escalate_pause(self._store, pause_id)
            report.escalated += made
            return verdict
        if task is None:
            return Fate.LEFT
        fate, status_view = await self._inspect(claim, task, report)
        if status_view is not None and status_view.ours and status_view.in_turn:
            await self._turns.keep(status_view)
        indexed = await self._index.settle(
            claim, task, status_view, claimed_ms=claimed_at_ms(claim)
        )
        if status_view is None:
            if fate is Fate.OUT and claim.again:
                await self._drop_gone(claim, task)
            return fate
        if fate is Fate.LEFT:
            waiting.append(Queueable(claim, status_view, listed=indexed))
        # Only an entry whose task is in the index as it ended is removed.
        if fate is Fate.OUT and claim.again and not indexed:
            return _AGAIN_MS
        await self._enlist(claim, fate, status_view)
        if status_view.ours and (fate is Fate.OUT or status_view.status is TaskStatus.PAUSED):
            idle.append((claim, task, status_view))
        return fate

    async def _enlist(
        self, claim: WatchClaim, fate: int | Fate, status_view: TaskStatusView
    ) -> None:
        """Put a task, or its session, on the archive's lists before its entry is settled."""
        if self._listing is not None:
            await self._listing.settle(claim, fate, status_view)

    async def _inspect(
        self,
        claim: WatchClaim,
        task: tuple[str, str],
        report: SweepReport,
    ) -> tuple[int | Fate, TaskStatusView | None]:
        status_view = await self._settle_family(task, report)
        if status_view is not None and status_view.ours and status_view.status is TaskStatus.PAUSED:
            for_child = status_view.waits_for is not None
            left_ms, status_view = await self._left_of_wait(status_view)
            if status_view is not None and status_view.status is TaskStatus.PAUSED:
                await self._pauses.settle(status_view)
                # Its record may live longer by now than when it was sent something.
                await self._store.steering.hold(*task)
                age_ms = claimed_at_ms(claim) - status_view.order // 1000
                longest_ms = max(LONGEST_PAUSE_MS, min(age_ms // 2, LONGEST_DELAY_MS))
                if left_ms is not None and left_ms <= longest_ms:
                    return left_ms, status_view
                # Well before its deadline: behind others it may be late.
                return check_after(min((left_ms or 2 * longest_ms) // 2, longest_ms)), status_view
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
            return min(status_view.left_ms + 1, CHECK_LATEST_MS), status_view
        # The queue must have it.
        return Fate.LEFT, status_view

    async def _left_of_wait(self, view: TaskStatusView) -> tuple[int | None, TaskStatusView | None]:
        """Return how long a task may still wait, None without a deadline, and the task.

        What is overdue is decided before.
        """
        task = view.session_id, view.task_id
        if view.pause is not None and view.waits_for is None:
            try:
                left_ms = await pause_left_ms(self._store, view.session_id, view.pause)
            except CorruptState as damage:
                # It may be repaired in time. Later nobody would end the task.
                if not await is_overdue(self._store, view.session_id, view.pause):
                    raise
                await self._transitions.fail_paused(*task, damage)
                return None, await self._store.tasks.look(*task)
            if left_ms > 0:
                # If it was decided since, that has put its entry again.
                return left_ms, view
        by_message = view.waits_for_message
        expire = self._messages.expire if by_message else partial(expire_pauses, self._store)
        return await expire(*task), await self._store.tasks.look(*task)

    async def _settle_family(
        self, task: tuple[str, str], report: SweepReport
    ) -> TaskStatusView | None:
        """Read a task's status, after settling what its parent and its child imply."""
        status_view = await self._store.tasks.look(*task)
        if status_view is None or not status_view.ours or status_view.status.is_terminal:
            return status_view
        session_id, task_id = task
        parent = status_view.cancelled_with
        if parent is not None and await parent_cancelled(
            *(self._store, session_id, parent),
            order=status_view.parent_order,
            retry=status_view.parent_retry,
        ):
            report.parent_cancelled += 1
            await self._cancels.cancel_with(session_id, task_id, parent, reason=WITH_PARENT)
        elif status_view.waits_for is not None:
            report.woken += await self._children.wake(session_id, task_id, status_view.waits_for)
        else:
            return status_view
        return await self._store.tasks.look(*task)


def _task_of(entry: Any) -> tuple[str, str] | None:
    """Return the task of a decoded entry; None for one of another kind."""
    match entry:
        case ["task", str(session_id), str(task_id)]:
            return session_id, task_id
        case _:
            return None
