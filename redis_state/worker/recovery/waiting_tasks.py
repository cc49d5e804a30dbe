"""Tasks that wait to be run: the queue has them again, and each is inspected again in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redis_state.models import TaskStatus
from redis_state.primitives.watchlist.watchlist import WatchClaim, check_after
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.worker.queue.jobs.job import QueueState
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.permits import queue_again
from redis_state.worker.recovery.queue_history import QueueHistory
from redis_state.worker.recovery.report import SweepReport
from redis_state.worker.tasks.transitions import TaskTransitions

# For how long a sweeper has what it has claimed.
HOLD_MS = 1_500
# However long the pause: a decision whose maker was stopped between the watch list and the record,
# and died before the queue, is seen by then.
LONGEST_PAUSE_MS = 60_000
# A task that waits for so long that nobody waits for it, or that the queue was seen to have.
LONGEST_DELAY_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Queueable:
    """A task that the queue must have. ``listed`` if the index had it as it is."""

    claim: WatchClaim
    task: TaskStatusView
    listed: bool


class WaitingTasks:
    """Put the tasks of a sweep that wait to be run into the queue. ``often`` as of `Sweeper`."""

    def __init__(
        self,
        store: RedisStateStore,
        transitions: TaskTransitions,
        queue: Queue,
        history: QueueHistory | None,
        *,
        patience_ms: int,
        often: bool,
    ) -> None:
        self._store = store
        self._transitions = transitions
        self._queue = queue
        self._history = history
        self._patience_ms = patience_ms
        self._waiting_ms = 2 * patience_ms
        self._longest_ms = self._waiting_ms if often else LONGEST_PAUSE_MS

    async def queue_up(
        self, waiting: Sequence[Queueable], report: SweepReport
    ) -> list[tuple[WatchClaim, int | None]]:
        """Ensure that the queue has them; return in how many ms each is inspected again."""
        tasks = [each.task for each in waiting]
        mended = await queue_again(
            *(self._store, self._transitions, self._queue, tasks), patience_ms=self._patience_ms
        )
        for task, how in zip(tasks, mended, strict=True):
            orphan = task.status is TaskStatus.RUNNING
            report.released += how is QueueState.RELEASED
            report.taken_over += how is QueueState.QUEUED and orphan
            report.requeued += how is QueueState.QUEUED and not orphan
        return [
            (each.claim, self._next_ms(each, how))
            for each, how in zip(waiting, mended, strict=True)
        ]

    def _next_ms(self, waiting: Queueable, how: QueueState) -> int:
        """Return when a task that waits is inspected again: the later, the longer it is there.

        What a worker claims and does not start is seen among the claims. So this is only for a
        job that the queue has lost. A lost history is noticed by itself, see `QueueHistory`: it
        hastens what the index lists, and what was seen in the queue before it was lost.
        """
        task, claimed_ms = waiting.task, claimed_at_ms(waiting.claim)
        if how in (QueueState.CLAIMED, QueueState.HELD):
            return self._patience_ms
        rests, was_there = self._may_rest(waiting), how is QueueState.WAITS
        longest_ms = LONGEST_DELAY_MS if rests else self._longest_ms
        delay_ms = min((claimed_ms - task.order // 1000) // 2, longest_ms)
        if task.due_ms > claimed_ms and not task.attempts:
            delay_ms = min(task.due_ms - claimed_ms, LONGEST_DELAY_MS)
        elif rests and not was_there:
            return self._waiting_ms
        delay_ms = max(self._waiting_ms, delay_ms)
        return check_after(delay_ms) if rests and was_there else delay_ms

    def _may_rest(self, waiting: Queueable) -> bool:
        """Return whether only a lost history of the queues can still keep a task from being run.

        Not one whose parent may be cancelled, or that has to interrupt another.
        """
        watched = self._history is not None and self._history.watches
        task = waiting.task
        return watched and waiting.listed and task.cancelled_with is None and not task.in_turn


def claimed_at_ms(claim: WatchClaim) -> int:
    """Return when an entry was claimed, by the server's clock."""
    return round(float(claim.mark)) - HOLD_MS
