"""Claims that are older than a worker needs to begin: what their tasks say of them.

A task that is PENDING is queued again: its worker has died, or is slow. One that is RUNNING is
inspected when its lease runs out. Its worker may not have sent that. A claim of one that has ended,
is paused or gone is a permit no more. Its worker is about to end the claim, or has died.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence

from redis_state.errors import BackendError, CorruptState
from redis_state.models import TaskStatus
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import TaskStatusView, watch_entry
from redis_state.worker.queue.jobs.job import ListedClaims, OldClaim, QueueState
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.permits import queue_again
from redis_state.worker.tasks.move_parts import CHECK_LATEST_MS
from redis_state.worker.tasks.transitions import TaskTransitions

log: logging.Logger = logging.getLogger(__name__)


class OldClaims:
    """The claims of some queues, each inspected once it is older than ``patience_ms``."""

    def __init__(
        self, store: RedisStateStore, queue: Queue, *, queues: Sequence[str], patience_ms: int
    ) -> None:
        self._store = store
        self._queue = queue
        self._patience_ms = patience_ms
        self._watch = WatchList(store.base.scripts, store.base.keys)
        self._transitions = TaskTransitions(store)
        # Which claims of each queue have been inspected.
        self._inspected = dict.fromkeys(queues, ListedClaims())

    @property
    def queues(self) -> Sequence[str]:
        """The queues' names."""
        return list(self._inspected)

    def begin_again(self) -> None:
        """Inspect all claims once more: some were not dealt with, or are there again."""
        self._inspected = dict.fromkeys(self._inspected, ListedClaims())

    async def read(self) -> list[OldClaim] | BackendError:
        """List what was claimed long enough ago, and not listed before.

        An unreachable queue is an error for later: the watch list may be on another server.
        """
        listed: list[OldClaim] = []
        try:
            found = await asyncio.gather(
                *(
                    self._queue.old_claims(queue, listed=known, patience_ms=self._patience_ms)
                    for queue, known in self._inspected.items()
                )
            )
        except BackendError as error:
            return error
        for queue, (inspected, claims) in zip(self.queues, found, strict=True):
            self._inspected[queue] = inspected
            listed += claims
        return listed

    async def release(self, claims: Sequence[OldClaim]) -> list[QueueState]:
        """Queue what was claimed and not started; return what the queue had of it.

        A task whose record is damaged keeps its claim: the watch list has it until it is repaired.
        After a failure all claims are to be inspected once more. Errors: BackendError.
        """
        looked = await asyncio.gather(*(self._look(claim) for claim in claims))
        found = [each for each in looked if each is not None]
        await self._end([each for each in found if each[1] is None or _has_no_claim(each[1])])
        ours = [task for _, task in found if task is not None and task.ours]
        running = (
            self._watch.bring_forward(
                watch_entry(task.session_id, task.task_id),
                delay_ms=min(task.left_ms + 1, CHECK_LATEST_MS),
            )
            for task in ours
            if task.status is TaskStatus.RUNNING
        )
        await asyncio.gather(*running)
        waiting = [task for task in ours if task.status is TaskStatus.PENDING]
        return await queue_again(
            *(self._store, self._transitions, self._queue, waiting), patience_ms=self._patience_ms
        )

    async def _look(self, claim: OldClaim) -> tuple[OldClaim, TaskStatusView | None] | None:
        try:
            return claim, await self._store.tasks.look(*claim.task)
        except CorruptState as damage:
            log.warning("the claim of task %r is kept: %s", claim.task[1], damage)
            await self._watch.bring_forward(watch_entry(*claim.task), delay_ms=CHECK_LATEST_MS)
            return None

    async def _end(self, found: Sequence[tuple[OldClaim, TaskStatusView | None]]) -> None:
        """End claims of tasks that were inspected after they had been listed: later ones stay."""
        by_queue: defaultdict[str, list[tuple[OldClaim, TaskStatusView | None]]]
        by_queue = defaultdict(list)
        for claim, task in found:
            by_queue[claim.queue].append((claim, task))
        for queue, old in by_queue.items():
            await self._queue.drop_claims(
                queue,
                [(claim.task, task) for claim, task in old],
                before_ms=max(claim.claimed_ms for claim, _ in old),
            )


def _has_no_claim(task: TaskStatusView) -> bool:
    return task.ours and (task.status.is_terminal or task.status is TaskStatus.PAUSED)
