"""The move of a task: one script changes its record and publishes its update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from redis_state.errors import (
    BackendError,
    InvalidTransition,
    LeaseLost,
)
from redis_state.models import (
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
)
from redis_state.primitives.lease import HeldLease
from redis_state.primitives.record import new_write_id
from redis_state.scripts import TaskKeys
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_fields import move_fields
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.handed_back import HandedBack
from redis_state.worker.tasks.move_parts import announcement, raise_refused, status_update
from redis_state.worker.tasks.recorded.replay import Replay


class TaskMoves:
    """Move tasks, whatever for."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._scripts = store.base.scripts
        self._books = TaskBookkeeping(store)

    async def _give_back(
        self,
        session_id: str,
        task_id: str,
        held: HeldLease,
        reason: str = "its payloads cannot be read",
        handed_back: HandedBack | None = None,
    ) -> None:
        """Make a task PENDING that this process has started and cannot run."""
        content = {"status": TaskStatus.PENDING.value, "reason": reason}
        counted = {} if handed_back is None else {"handed_back": handed_back.field}
        with suppress(LeaseLost, InvalidTransition):
            await self._move(
                named_task(session_id, task_id),
                TaskStatus.PENDING,
                move_fields(TaskStatus.PENDING) | counted,
                content,
                mark=held.fence.mark,
                run=Replay(held),
                release=True,
            )

    async def _move(
        self,
        state: TaskState,
        status: TaskStatus,
        fields: dict[str, bytes],
        content: dict[str, Any],
        *,
        mark: bytes = b"",
        run: Replay | None = None,
        release: bool = False,
        silent: bool = False,
        from_states: Iterable[TaskStatus] = (TaskStatus.RUNNING,),
        parent: str | None = None,
        ended: Mapping[str, Any] | None = None,
        steered: bool = False,
    ) -> None:
        of_child = parent is not None and status.is_terminal
        update = status_update(state, status)
        update.content = content
        write = new_write_id()
        reply = await self._scripts.move_task(
            self._keys(state),
            fields,
            mark=mark,
            from_states=[name.value for name in from_states],
            release=release,
            silent=silent,
            write=write,
            ttl_ms=self._store.tasks.ttl_ms(status.value),
            hold_ms=self._store.tasks.hold_ms(status.value),
            announcement=announcement(self._store, update, run=run.epoch if run else None),
            parent=self._store.tasks.keys(state.session_id, parent) if parent else None,
            ended=self._ended(ended) if of_child and ended is not None else b"",
        )
        raise_refused(reply, state, run=run, wanted=status.value)
        self._books.record_move(
            state,
            status,
            version=reply.facts[0],
            write=write,
            ended_us=int(fields["updated_at"]) if status.is_terminal else None,
        )
        if steered and status.is_terminal:
            # Otherwise it is kept for longer, and no harm is done.
            with suppress(BackendError):
                await self._store.steering.settle(state.session_id)

    def _ended(self, ended: Mapping[str, Any]) -> bytes:
        return self._store.base.payloads.document(ended, "result", "error")

    def _keys(self, state: TaskState) -> TaskKeys:
        return self._store.tasks.keys(state.session_id, state.task_id)


def end_of(status: TaskStatus, result: Any, error: str | None) -> dict[str, Any]:
    """Write a task's end as its parent's journal keeps it."""
    return {"status": status.value, "result": result, "error": error}


def named_task(session_id: str, task_id: str) -> TaskState:
    """Return a running task of which nothing is known but its name."""
    return TaskState(
        task_id=task_id,
        session_id=session_id,
        status=TaskStatus.RUNNING,
        task_type=TaskType.BACKGROUND,
        priority=0,
        context_snapshot=TaskContextSnapshot(session_id=session_id, task_id=task_id),
    )
