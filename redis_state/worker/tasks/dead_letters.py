"""Dead letters: tasks that were given up, with all that they have recorded, and their list.

Their workers kept dying, the server kept refusing what they wrote, or no worker could read them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from redis_state.errors import BackendError, CorruptState, InvalidTransition, LeaseLost
from redis_state.models import TaskStatus
from redis_state.primitives.lease import HeldLease, Leases, new_owner
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms
from redis_state.stores.sessions.task_fields import move_fields
from redis_state.worker.tasks.moves import TaskMoves, end_of, named_task
from redis_state.worker.tasks.recorded.replay import Replay
from redis_state.worker.tasks.started import NotStarted, StartedRun

log: logging.Logger = logging.getLogger(__name__)

_LEASE_MS = 10_000
_UNFINISHED = (TaskStatus.PENDING, TaskStatus.RUNNING)


async def record_dead(store: RedisStateStore, session_id: str, task_id: str) -> None:
    """List a task as dead, for as long as a finished task is kept. To be called before it is."""
    await store.base.scripts.add_member(
        store.base.keys.dead_tasks(),
        member=codec.encode([session_id, task_id]).decode(),
        ttl_ms=ms(store.settings.finished_task_ttl),
    )


def unreadable(error: Exception) -> str:
    """Return why a task cannot be read. The text of what its author wrote is left out."""
    name = type(error).__name__
    said = f": {error}" if isinstance(error, (BackendError, codec.DecodeError)) else ""
    return f"the task cannot be read: {name}{said}"


class DeadLetters(TaskMoves):
    """Fail tasks that no run can end."""

    async def dead_letter(self, session_id: str, task_id: str, *, died: int) -> bool:
        """Fail a task whose owner's lease expired, because ``died`` owners did so in a row.

        It takes a lease of its own, so an owner that is alive after all cannot write any more.
        Return False, and do nothing, if another run owns the task or the task does not run.
        """
        leases = self._leases()
        lease = self._store.tasks.keys(session_id, task_id).lease
        held = await leases.acquire(lease, duration_ms=_LEASE_MS, owner=new_owner())
        if held is None:
            return False
        # Looked at under the lease: nobody but its holder ends a run.
        found = await self._store.tasks.look(session_id, task_id)
        running = found is not None and found.status is TaskStatus.RUNNING
        if running:
            await self._dead_letter(session_id, task_id, held, died_running(died), crashes=died)
        await leases.release(held)
        return running

    async def give_up(self, started: StartedRun, reason: str) -> None:
        """Fail a task that this run cannot end, as a dead letter. Nothing is undone.

        Its record and its journal stay as they are: `retry` continues it. Errors: BackendError.
        """
        state = started.state
        await self._dead_letter(state.session_id, state.task_id, started.held, reason)

    def _leases(self) -> Leases:
        return Leases(self._scripts, keep_ms=ms(self._store.settings.active_task_ttl))

    async def _dead_letter(
        self,
        session_id: str,
        task_id: str,
        held: HeldLease,
        reason: str,
        *,
        crashes: int = 0,
        from_states: Iterable[TaskStatus] = (TaskStatus.RUNNING,),
    ) -> None:
        """List a task as a dead letter, then fail it.

        A crash in between leaves it on the list and RUNNING under a lease that expires. The list
        shows failed tasks only, and who finds it next repeats both.
        """
        await record_dead(self._store, session_id, task_id)
        await self._give_up(
            *(session_id, task_id, held, reason),
            crashes=crashes,
            dead=True,
            from_states=from_states,
        )

    async def _give_up(
        self,
        session_id: str,
        task_id: str,
        held: HeldLease,
        reason: str,
        *,
        crashes: int = 0,
        dead: bool = False,
        from_states: Iterable[TaskStatus] = (TaskStatus.RUNNING,),
    ) -> None:
        """Fail a task. One whose updates are damaged is failed without an announcement."""
        log.error("task %r is failed: %s", task_id, reason)
        state = named_task(session_id, task_id)
        try:
            found = await self._store.tasks.look(session_id, task_id)
        except CorruptState:
            # What is damaged of it may be anything. A parent's sweeper finds its end in time.
            found = None
        parent = None if found is None else found.parent
        if parent is not None:
            # It may wait for this task's end.
            await self._books.inspect_soon(session_id, parent)
        content = {"status": TaskStatus.FAILED.value, "error": reason}
        fields = move_fields(TaskStatus.FAILED, self._store.base.payloads, error=reason)
        fields["crashes"] = b"%d" % crashes
        if dead:
            # Only as long as it is not reopened.
            fields["dead"] = b"%d" % ((0 if found is None else found.retries) + 1)
        fail = partial(
            self._move,
            *(state, TaskStatus.FAILED, fields, content),
            mark=held.fence.mark,
            run=Replay(held),
            release=True,
            from_states=from_states,
            parent=parent,
            ended=end_of(TaskStatus.FAILED, None, reason),
            steered=True,
        )
        with suppress(LeaseLost, InvalidTransition):
            try:
                await fail()
            except CorruptState as damage:
                log.error("the end of task %r is not announced: %s", task_id, damage)  # noqa: TRY400 - it is no bug
                await fail(silent=True)

    async def fail_unstarted(
        self, session_id: str, task_id: str, owner: str, damage: CorruptState
    ) -> NotStarted:
        """Fail a task whose start is refused by what is damaged. Errors: CorruptState."""
        return await self._fail_damaged(session_id, task_id, owner, damage, _UNFINISHED)

    async def fail_paused(self, session_id: str, task_id: str, damage: CorruptState) -> bool:
        """Fail a task whose pause is damaged; return whether it is terminal. Errors: CorruptState.

        `retry` waits for the pause again, once that is repaired.
        """
        paused = (TaskStatus.PAUSED,)
        await self._fail_damaged(session_id, task_id, new_owner(), damage, paused)
        found = await self._store.tasks.look(session_id, task_id)
        return found is None or found.status.is_terminal

    async def _fail_damaged(
        self,
        session_id: str,
        task_id: str,
        owner: str,
        damage: CorruptState,
        from_states: Iterable[TaskStatus],
    ) -> NotStarted:
        """Fail a task that is in one of these states.

        Under a lease, as any end of a task that another worker may start at the same moment.
        """
        leases = self._leases()
        lease = self._store.tasks.keys(session_id, task_id).lease
        held = await leases.take(lease, duration_ms=_LEASE_MS, owner=owner)
        if isinstance(held, int):
            return NotStarted("held", left_ms=held)
        reason = unreadable(damage)
        try:
            await self._dead_letter(session_id, task_id, held, reason, from_states=from_states)
        finally:
            await leases.release(held)
        return NotStarted(reason)


def died_running(workers: int) -> str:
    """Return why a task is given up with which so many workers in a row died."""
    return f"given up: {workers} workers in a row died, or stalled, while they ran it"
