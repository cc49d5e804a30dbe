"""One run of one task: hold its lease, run its handler, and leave the task in a true state.

Every end of a run leaves the task so that another worker can continue: terminal, paused, or handed
off. A worker that dies leaves it RUNNING under a lease that expires.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, NoReturn

from redis_state.errors import (
    BackendError,
    CorruptState,
    InvalidTransition,
    JournalRewound,
    LeaseLost,
    RedisStateError,
)
from redis_state.futures import unawaited
from redis_state.models import TaskStatus
from redis_state.store import RedisStateStore
from redis_state.worker.handler.context import TaskContext
from redis_state.worker.handler.guards import GuardChecks, Spent, TaskStopped, guards_of
from redis_state.worker.handler.versions import choose, is_served_elsewhere
from redis_state.worker.observe.stats import RunOutcome as Ended
from redis_state.worker.queue.jobs.job import RunAgain
from redis_state.worker.runs.config import AGAIN_S, RunConfig, RunOutcome
from redis_state.worker.runs.ending import RunEnd
from redis_state.worker.runs.errors import cause_of, failure_outcome
from redis_state.worker.runs.execution import CLEAN_UP_S, HandlerExecution
from redis_state.worker.runs.waiting import done_within, shielded
from redis_state.worker.tasks.changes import TaskChanges
from redis_state.worker.tasks.children.cancelling import (
    WITH_PARENT,
    parent_cancelled,
)
from redis_state.worker.tasks.children.children import ChildTasks
from redis_state.worker.tasks.execution.compensation import AGAIN, Compensations
from redis_state.worker.tasks.execution.exits import TaskPaused
from redis_state.worker.tasks.execution.inbox import Inbox, TaskCancelled
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions

log: logging.Logger = logging.getLogger(__name__)

# When a task is looked at again of which it is not known whether a worker has its handler.
_UNSURE_S = (5.0, 15.0)


class TaskRun(HandlerExecution):
    """A run of a task that was started."""

    def __init__(
        self,
        store: RedisStateStore,
        config: RunConfig,
        started: StartedRun,
        transitions: TaskTransitions,
        *,
        on_begun: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._config = config
        self._started = started
        self._task_id = started.state.task_id
        self._payloads = store.base.payloads
        self._on_begun = on_begun
        self._children = ChildTasks(store, config.queue)
        self._inbox = Inbox(
            store,
            started.state.session_id,
            self._task_id,
            after=started.inbox,
            heard_from_ms=started.heard_from_ms,
            replay=started.replay,
            on_hard_cancel=self._cancel_hard,
            on_priority=self._set_priority,
            void=started.void,
            timers=config.timers,
        )
        self._chosen = choose(config.handlers, started)
        self._inbox.guarding = self._guarding()
        self._compensations = Compensations(store, started, self._inbox)
        self._end = RunEnd(
            *(store, config, started, transitions), children=self._children, inbox=self._inbox
        )
        self._undoing: asyncio.Task[RunOutcome] | None = None
        self._settled: RunOutcome | None = None
        self._failed: tuple[BaseException, RunOutcome] | None = None
        self._ends_s = monotonic() + config.keep_s
        self._handling: asyncio.Task[Any] | None = None
        self._context: TaskContext | None = None
        self._lost: LeaseLost | None = None
        self._hard_cancelled = False
        self._overdue = False
        self._chores: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run the handler and write its outcome; hand the task off if cancelled."""
        try:
            with self._config.keep(
                self._started.held, self._task_id, ends_s=self._ends_s, on_lost=self._lose
            ):
                try:
                    await self._prepare()
                    await self._until_done()
                    await self._stop_rest()
                    await self._compensate()
                except asyncio.CancelledError:
                    await shielded(self._hand_off())
                    raise
                await shielded(self._leave())
        finally:
            # Behind the outcome, for which a caller waits.
            await self._inbox.follower.end()
            self._let_go()

    @property
    def ended(self) -> Ended:
        """What became of the run, UNWRITTEN until that is known."""
        return self._end.ended

    @property
    def lost(self) -> bool:
        """Whether another run has the task."""
        return self._end.lost

    @property
    def lacks_code(self) -> bool:
        """Whether this worker lacks the task's handler, or its version."""
        return self._chosen.code is None

    async def left_to_others(self, queue: str) -> bool:
        """Leave a task whose code this worker lacks to the workers that have it.

        Return False if no worker of the queue has the handler at all, or had it of late: then its
        name is wrong, and the task fails. Errors: ParkedFor if it waits now; RunAgain for trouble
        with the server, and after it.
        """
        chosen, presence = self._chosen, self._config.presence
        if chosen.version is None:
            try:
                if not await is_served_elsewhere(self._store, self._started.handler, queue):
                    if presence is None or presence.is_steady:
                        return False
                    # Right after an outage those that have it may not have written so again.
                    await shielded(self._end.take_back())
                    raise RunAgain(defer_s=random.uniform(*_UNSURE_S))
            except BackendError as error:
                await self._hand_back_for(error)
            except asyncio.CancelledError:
                await shielded(self._end.take_back())
                raise
        await shielded(self._end.give_back(chosen.version))
        return True

    async def _prepare(self) -> None:
        """Read what the handler needs at its start. Errors: RunAgain."""
        try:
            if self._started.steered:
                # The record of a task that has begun again lives longer than it did.
                session_id = self._started.state.session_id
                await self._store.steering.hold(session_id, self._task_id)
                await self._inbox.catch_up()
            if self._started.parent is not None:
                await self._follow_parent()
        except BackendError as error:
            await self._hand_back_for(error)

    async def _hand_back_for(self, error: BackendError) -> NoReturn:
        """Leave a task whose handler has not begun to another run. Errors: RunAgain.

        Trouble with the server does not count as a crash, so the task is handed off. If the
        hand-off fails too, the lease expires, and that counts as one. A refusal may never pass: it
        is counted.
        """
        log.warning("task %r is handed back: %s", self._task_id, error)
        if self._inbox.cancelled or self._end.counted(error) is None:
            await shielded(self._hand_off())
        else:
            self._settled, self._failed = AGAIN, (error, AGAIN)
            await shielded(self._leave())
        raise RunAgain(defer_s=AGAIN_S) from None

    def _guarding(self) -> GuardChecks:
        started, state = self._started, self._started.state
        own = guards_of(self._chosen.code)
        about = Spent(state.session_id, state.task_id, started.handler, started.attempts, 0.0, 0, 0)
        return GuardChecks(started.meter, (*self._config.guards, *own), self._inbox, about)

    async def _follow_parent(self) -> None:
        """Cancel a child that starts after its parent was cancelled."""
        started = self._started
        parent, session_id = None if started.isolated else started.parent, started.state.session_id
        if parent is not None and await parent_cancelled(
            *(self._store, session_id, parent),
            order=started.parent_order,
            retry=started.parent_retry,
        ):
            self._inbox.cancel(WITH_PARENT)

    async def _until_done(self) -> None:
        self._handling = handling = asyncio.create_task(self._handle())
        self._inbox.follower.begin()
        try:
            await done_within(handling, self._config.limit_s, self._config.timers)
            if not handling.done():
                self._overdue = True
                await self._stop(handling)
        finally:
            self._inbox.follower.stop()
            if self._chores:
                await asyncio.wait(self._chores)

    async def _compensate(self) -> None:
        """Undo what a handler that has failed has done, see `Compensations`."""
        outcome = None if self._lost else self._outcome()
        if outcome is None or not self._compensations.needed(outcome):
            return
        stuck = self._handling is not None and not self._handling.done()
        await self._inbox.follower.end()
        # Another run does it, if this one is interrupted.
        self._settled = AGAIN
        settling = self._compensations.settle(outcome, stuck=stuck, ends_s=self._ends_s)
        self._undoing = asyncio.create_task(settling)
        try:
            await asyncio.wait({self._undoing})
        finally:
            self._undoing.cancel()
            await asyncio.wait({self._undoing}, timeout=CLEAN_UP_S)
        if not self._undoing.cancelled():
            try:
                self._settled = self._undoing.result()
            except LeaseLost as lost:
                self._lost = lost

    async def _leave(self) -> None:
        """Write down how the run ended."""
        if self._lost is not None:
            log.warning("task %r was taken over, this run is dropped", self._task_id)
            self._end.ended, self._end.lost = Ended.DROPPED, True
            return
        outcome = self._settled or self._outcome()
        if outcome is None:
            self._end.ended = Ended.PAUSED
            await self._end.after_pause()
            return
        try:
            again_s = await self._end.write(*outcome, self._trouble())
        except (JournalRewound, CorruptState) as rewound:
            await self._begin_again(rewound)
        except LeaseLost as lost:
            log.warning("task %r was taken over, this run is dropped: %s", self._task_id, lost)
            self._end.ended, self._end.lost = Ended.DROPPED, True
        except InvalidTransition as denied:
            log.warning("task %r moved on without this run: %s", self._task_id, denied)
            self._end.ended = Ended.DROPPED
            if denied.current == TaskStatus.PAUSED.value:
                await self._end.after_pause()
        else:
            if again_s is not None:
                raise RunAgain(defer_s=again_s)
            if outcome[0] is TaskStatus.CANCELLED:
                await self._end.cancel_children(hard=self._hard_cancelled)
        finally:
            self._inbox.close(TaskCancelled("the run is over"))

    async def _begin_again(self, why: BackendError) -> None:
        """Leave the task to a run that reads what is there. Errors: RunAgain.

        What is damaged ends that run, or this one if it cannot even hand the task back.
        """
        log.warning("task %r begins again: %s", self._task_id, why)
        await self._end.hand_back()
        if self._end.ended is Ended.HANDED_OVER:
            raise RunAgain(defer_s=AGAIN_S)

    def _let_go(self) -> None:
        """Break the rings of objects of a run that has ended, see `Inbox.let_go`."""
        if self._handling is not None:
            # A run that was taken over has not read how its handler ended.
            unawaited(self._handling)
            if not self._handling.done():
                return  # It could not be stopped, and needs them.
        self._inbox.let_go()
        if self._context is not None:
            self._context.let_go()
        # What ended them refers back to this by its traceback.
        self._handling = self._undoing = self._failed = None

    def _trouble(self) -> BaseException | None:
        """Return what ended the run, or stopped it while it undid what was done."""
        return self._compensations.trouble or (self._failed and self._failed[0])

    async def _hand_off(self) -> None:
        """Set the task pending again, because this process is to stop."""
        self._inbox.leaving = True
        if self._handling is not None:
            await self._stop(self._handling)
            await self._stop_rest()
        outcome = self._outcome()
        ended = outcome is None or outcome[0] is TaskStatus.COMPLETE
        ended = ended or self._inbox.cancelled or self._overdue
        if self._settled is not None:
            ended = self._settled is not AGAIN
        if ended or self._lost:
            await self._leave()
            return
        self._inbox.close(TaskCancelled("the run is over"))
        with suppress(BackendError, LeaseLost, InvalidTransition):
            await self._end.hand_back()

    def _outcome(self) -> RunOutcome | None:
        """Return status, result and error of the run; None if it ended in a pause."""
        handling = self._handling
        stopped = handling is None or not handling.done() or handling.cancelled()
        rewound = self._started.replay.rewound
        # Read in any case, or asyncio warns that it was never retrieved.
        error = None if handling is None or stopped else handling.exception()
        if isinstance(self._inbox.over, TaskPaused):
            return None
        # What a handler makes of a part that the cancel has stopped is no result of the task's.
        met = self._inbox.cancel_met or (stopped and self._inbox.cancelled)
        if self._hard_cancelled or met:
            return TaskStatus.CANCELLED, None, self._inbox.cancel_reason
        if self._overdue or isinstance(self._inbox.over, TaskStopped):
            text = f"TimeoutError: not done after {self._config.limit_s:g} s"
            if isinstance(self._inbox.over, TaskStopped):
                text = f"TaskStopped: {self._inbox.over.reason}"
            return TaskStatus.FAILED, None, text
        failure = rewound or (error and cause_of(error))
        if failure is not None:
            # It is logged, and so judged once.
            if self._failed is None or self._failed[0] is not failure:
                outcome = failure_outcome(failure, self._task_id, self._payloads)
                self._failed = (failure, outcome)
            return self._failed[1]
        if handling is None or stopped:
            return TaskStatus.CANCELLED, None, "the handler cancelled itself"
        return TaskStatus.COMPLETE, handling.result(), None

    def _lose(self, error: LeaseLost) -> None:
        # A waiting run has released its lease: it may clean up, also while another run works.
        if error.released or isinstance(self._inbox.over, TaskPaused):
            return
        self._lost = error
        self._inbox.close(error)
        if self._undoing is not None:
            self._undoing.cancel()
        if self._handling is not None:
            self._handling.cancel()

    def _cancel_hard(self) -> None:
        if self._handling is not None and not self._handling.done():
            self._hard_cancelled = True
            self._handling.cancel()

    def _set_priority(self, priority: int) -> None:
        async def save() -> None:
            try:
                await TaskChanges(self._store).set_priority(self._started, priority)
            except (BackendError, LeaseLost, InvalidTransition):
                pass
            except RedisStateError as error:
                log.warning("the priority of task %r is not changed: %s", self._task_id, error)

        chore = asyncio.create_task(save())
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)
