"""Cancel tasks, and their children with them, unless these are isolated.

The process that cancels a task cancels its children. If it dies between the two, a sweeper does it:
every unfinished task is on its list.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from redis_state.errors import InvalidTransition
from redis_state.models import SteeringEvent, SteeringEventType, TaskState, TaskStatus
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.tasks.children.children import ChildTasks
from redis_state.worker.tasks.recorded.compensations import ON_CANCEL
from redis_state.worker.tasks.transitions import TaskTransitions

WITH_PARENT = "its parent was cancelled"
_AT_ONCE = 50


class CancelCascade:
    """Cancel tasks that no worker runs, from the first to the last of their children."""

    def __init__(self, store: RedisStateStore, children: ChildTasks) -> None:
        self._store = store
        self._children = children
        self._transitions = TaskTransitions(store)

    async def cancel_with(
        self, session_id: str, task_id: str, parent: str, *, reason: str, hard: bool = False
    ) -> None:
        """Cancel a child whose parent was cancelled. The same event however often it is sent.

        A child that was reopened since gets another one.
        """
        child = await self._store.tasks.look(session_id, task_id)
        reopened = [child.retries] if child is not None and child.retries else []
        event = SteeringEvent(
            session_id=session_id,
            task_id=task_id,
            event_id=codec.fingerprint("cancelled with", session_id, parent, task_id, *reopened),
            event_type=SteeringEventType.CANCEL,
            payload={"reason": reason, "hard": hard},
            source=f"task:{parent}",
        )
        await self._store.save_steering(event)
        await self.cancel_waiting(session_id, task_id, reason, hard=hard)

    async def cancel_waiting(
        self, session_id: str, task_id: str, reason: str | None, *, hard: bool = False
    ) -> None:
        """End a task that no worker runs, then its children. A running task has received the event.

        A terminal task does not change, and neither do its children.
        """
        state = await self._store.tasks.load(session_id, task_id)
        if state is None or state.status.is_terminal:
            return
        status_view = await self._store.tasks.look(session_id, task_id)
        parent = None if status_view is None else status_view.parent
        if await self._compensates(session_id, task_id):
            await self._run_to_cancel(state, reason)
            return
        with suppress(InvalidTransition):
            async with self._children.ending(session_id, task_id, parent):
                cancel = partial(self._transitions.cancel, state, reason, parent=parent)
                if status_view is None or status_view.ours:
                    cancelled = await cancel()
                else:
                    # No sweeper lists a host's task for the archive.
                    tasks = self._store.tasks
                    cancelled = await tasks.archiving(session_id, task_id, cancel, finished=True)
            if cancelled:
                await self.cancel_children(session_id, task_id, reason, hard=hard)

    async def cancel_children(
        self, session_id: str, task_id: str, reason: str | None, *, hard: bool = False
    ) -> None:
        """Cancel the unfinished children of a task that was cancelled, unless they are isolated.

        No more can come: only a running task spawns.
        """
        why = reason or WITH_PARENT
        if not why.startswith(WITH_PARENT):
            why = f"{WITH_PARENT}: {why}"
        parent = await self._store.tasks.look(session_id, task_id)
        if parent is None:
            return
        names = await self._children.children(session_id, task_id)
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            sights = await asyncio.gather(
                *(self._store.tasks.look(session_id, one) for one in some)
            )
            await asyncio.gather(
                *(
                    self.cancel_with(session_id, name, task_id, reason=why, hard=hard)
                    for name, status_view in zip(some, sights, strict=True)
                    if status_view is not None
                    and (status_view.cancelled_with, status_view.parent_order)
                    == (task_id, parent.order)
                    and status_view.parent_retry <= parent.retries
                    and not status_view.status.is_terminal
                )
            )

    async def _compensates(self, session_id: str, task_id: str) -> bool:
        journal = self._store.tasks.keys(session_id, task_id).journal
        return bool(await self._store.transport.commands.hexists(journal, ON_CANCEL))

    async def _run_to_cancel(self, state: TaskState, reason: str | None) -> None:
        """Run a waiting task once more, to undo what it did before it is CANCELLED.

        Its inbox has the CANCEL. A run that began before the status was read received it, and a
        later one begins with it.
        """
        if state.status is not TaskStatus.PAUSED:
            return
        session_id, task_id = state.session_id, state.task_id
        with suppress(InvalidTransition):
            await self._transitions.wake_to_cancel(state, reason)
            status_view = await self._store.tasks.look(session_id, task_id)
            if status_view is not None and status_view.status is TaskStatus.PENDING:
                await self._children.put(Job.of(status_view))


async def parent_cancelled(
    store: RedisStateStore, session_id: str, parent: str, *, order: int, retry: int
) -> bool:
    """Return whether a task's parent was cancelled, so that it is to be cancelled too.

    ``order`` is the parent's: a later task of its id is none. ``retry`` is the parent's with which
    the task was reopened, 0 for none: a cancel before that retry is not the task's.
    """
    status_view = await store.tasks.look(session_id, parent)
    return (
        status_view is not None
        and status_view.order == order
        and status_view.status is TaskStatus.CANCELLED
        and status_view.retries >= retry
    )
