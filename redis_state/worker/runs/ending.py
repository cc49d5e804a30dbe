"""How a run leaves its task, as it is written: an end, a hand-over, and what a pause has missed."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from redis_state.errors import (
    BackendError,
    CommandRefused,
    CorruptState,
    InvalidTransition,
    LeaseLost,
    StoreFull,
)
from redis_state.models import TaskStatus
from redis_state.store import RedisStateStore
from redis_state.worker.observe.stats import RunOutcome as Ended
from redis_state.worker.queue.jobs.parked import ParkedFor, lane_of
from redis_state.worker.runs.config import AGAIN_S, RunConfig
from redis_state.worker.runs.errors import given_up
from redis_state.worker.runs.waiting import until_written
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.children.cancelling import CancelCascade
from redis_state.worker.tasks.children.children import ChildTasks
from redis_state.worker.tasks.dead_letters import unreadable
from redis_state.worker.tasks.execution.inbox import Inbox
from redis_state.worker.tasks.handed_back import HandedBack, handed_back_for
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions

log: logging.Logger = logging.getLogger(__name__)

_ENDED = {
    TaskStatus.COMPLETE: Ended.COMPLETED,
    TaskStatus.FAILED: Ended.FAILED,
    TaskStatus.CANCELLED: Ended.CANCELLED,
    TaskStatus.PENDING: Ended.HANDED_OVER,
}


class RunEnd:
    """The end of one run. ``ended`` is what became of the run, UNWRITTEN until that is known.

    ``lost`` says that another run has the task.
    """

    def __init__(
        self,
        store: RedisStateStore,
        config: RunConfig,
        started: StartedRun,
        transitions: TaskTransitions,
        *,
        children: ChildTasks,
        inbox: Inbox,
    ) -> None:
        self._store = store
        self._config = config
        self._started = started
        self._session_id = started.state.session_id
        self._task_id = started.state.task_id
        self._transitions = transitions
        self._children = children
        self._inbox = inbox
        self.ended: Ended = Ended.UNWRITTEN
        self.lost: bool = False

    async def write(
        self, status: TaskStatus, result: Any, error: str | None, trouble: BaseException | None
    ) -> float | None:
        """Write an outcome; return after how long the task is to run again, if it is.

        ``trouble`` is what ended a run that leaves its task PENDING. Errors: LeaseLost,
        InvalidTransition, JournalRewound; BackendError if it could not be written in time.
        """
        trouble = trouble if status is TaskStatus.PENDING else None
        handed_back = None if trouble is None else self.counted(trouble)
        try:
            if trouble is not None and handed_back is not None and handed_back.is_hopeless:
                # What the server refuses every time is no end, and not to be tried for ever.
                await self._give_up(given_up(trouble, handed_back.refusals))
                return None
            await self._write_end(status, result, error, handed_back)
        except (StoreFull, CommandRefused):
            # The lease may be taken back all the same. Else this worker counted as dead.
            await self._config.leases.give_back(self._started.held)
            raise
        self.ended = _ENDED[status]
        if status is not TaskStatus.PENDING:
            return None
        return AGAIN_S if handed_back is None else handed_back.wait_s

    def counted(self, trouble: BaseException) -> HandedBack | None:
        """Count this run among those that ended in trouble with a server, see `handed_back_for`."""
        started = self._started
        return handed_back_for(trouble, started.handed_back, done=started.replay.done)

    async def hand_back(self) -> None:
        """Make the task PENDING for another run; fail it if what is damaged does not allow that.

        Errors: LeaseLost, InvalidTransition; BackendError.
        """
        try:
            await self._transitions.finish_run(self._started, TaskStatus.PENDING)
        except CorruptState as damage:
            await self._give_up(unreadable(damage))
        else:
            self.ended = Ended.HANDED_OVER

    async def take_back(self) -> None:
        """Make the task PENDING as if it had not been started: this process is to stop."""
        with suppress(BackendError, LeaseLost, InvalidTransition):
            await self._transitions.give_back(self._started, None)
            self.ended = Ended.HANDED_OVER

    async def give_back(self, version: str | None) -> None:
        """Make the task PENDING for workers that have a version of its handler.

        A crash before leaves it RUNNING under a lease that expires, one after it leaves a claim for
        the sweeper. Errors: ParkedFor; none if another run has the task, or it is terminal.
        """
        handler = self._started.handler
        log.info("task %r is left to workers with %r %s", self._task_id, handler, version or "")

        async def give_back() -> None:
            await self._transitions.give_back(self._started, version)

        try:
            await until_written(give_back, TaskStatus.PENDING, retry_s=self._config.lease_s)
        except (LeaseLost, InvalidTransition) as moved:
            log.info("task %r moved on meanwhile: %s", self._task_id, moved)
            return
        # A cancel of this moment was meant for the run.
        await self.after_pause()
        status_view = await self._store.tasks.look(self._session_id, self._task_id)
        if status_view is not None and status_view.status is TaskStatus.PENDING:
            raise ParkedFor(lane_of(handler, version), version=status_view.version)

    async def after_pause(self) -> None:
        """Check again for a CANCEL that came too late for the run and too early for the pause.

        A cancelling client writes the event first and then finds the task running. So the event is
        in the log before the pause was written.
        """
        with suppress(BackendError, InvalidTransition):
            await self._inbox.catch_up()
            if self._inbox.cancelled:
                await self._cancels().cancel_waiting(
                    self._session_id, self._task_id, self._inbox.cancel_reason
                )

    async def cancel_children(self, *, hard: bool) -> None:
        """Cancel the children of a task that was cancelled.

        What this does not reach is seen by a sweeper.
        """
        with suppress(BackendError):
            await self._cancels().cancel_children(
                self._session_id, self._task_id, self._inbox.cancel_reason, hard=hard
            )

    async def _give_up(self, reason: str) -> None:
        async def give_up() -> None:
            await self._transitions.give_up(self._started, reason)

        await until_written(give_up, TaskStatus.FAILED, retry_s=self._config.lease_s)
        self.ended = Ended.FAILED

    async def _write_end(
        self,
        status: TaskStatus,
        result: Any,
        error: str | None,
        handed_back: HandedBack | None,
    ) -> None:
        """End the run, and resume a parent that waits for this task if the task ends here."""
        parent = self._started.parent if status.is_terminal else None

        async def finish() -> None:
            if parent is not None:
                # If this process dies, a sweeper inspects the parent soon.
                await TaskBookkeeping(self._store).inspect_soon(self._session_id, parent)
            await self._transitions.finish_run(
                self._started,
                status,
                result=result,
                error=error,
                handed_back=handed_back,
                steered=self._inbox.steered,
            )

        await until_written(finish, status, retry_s=self._config.lease_s)
        if parent is not None:
            with suppress(BackendError):
                await self._children.wake(self._session_id, parent, self._task_id)

    def _cancels(self) -> CancelCascade:
        return CancelCascade(self._store, self._children)
