"""The transitions of a task: each move from one status to another is one script.

    PENDING ──start──▶ RUNNING ──finish──▶ COMPLETE | FAILED | CANCELLED
       ▲                 │ │
       │◀────hand off────┘ └──wait, join──▶ PAUSED
       │◀────────decide, wake────────────────┘
       └──cancel──▶ CANCELLED ◀───cancel─────┘

A move checks the status it starts from and, for a worker, the epoch of its lease. It changes the
record and publishes the update in the same step. Waiting for a decision is in `pauses`, for a child
in `children`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, TypeAlias

from redis_state.errors import (
    BackendError,
    CommandRefused,
    CorruptState,
    InvalidTransition,
    LeaseLost,
    PayloadLost,
    PayloadStoreUnavailable,
    PayloadUnreadable,
)
from redis_state.models import (
    TaskState,
    TaskStatus,
    UpdateType,
)
from redis_state.primitives.lease import HeldLease
from redis_state.primitives.record import fields_of, new_write_id
from redis_state.scripts import STARTED_BYTES, Reply, ReplyCode
from redis_state.stores.sessions.task_fields import move_fields
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.stores.sessions.updates import NewUpdate
from redis_state.worker.tasks.dead_letters import DeadLetters, died_running, unreadable
from redis_state.worker.tasks.handed_back import MOST_UNREAD, HandedBack
from redis_state.worker.tasks.move_parts import announcement
from redis_state.worker.tasks.moves import end_of
from redis_state.worker.tasks.started import (
    UNREAD,
    NotStarted,
    StartedRun,
    handed_back_of,
    load_started,
    number_in,
)
from redis_state.worker.tasks.task_format import format_fields, latest_read

log: logging.Logger = logging.getLogger(__name__)

# More workers than these that die with one task, one after the other, are its fault.
MAX_CRASHES = 3
# For how long a start that was refused is held while it is undone.
_REFUSED_LEASE_MS = 10_000

_OUTCOMES = (TaskStatus.COMPLETE, TaskStatus.FAILED)

# Renews a lease in a block, and calls back once if it is lost.
KeepLease: TypeAlias = Callable[
    [HeldLease, Callable[[LeaseLost], object]], AbstractContextManager[object]
]


def _unkept(
    held: HeldLease, on_lost: Callable[[LeaseLost], object]
) -> AbstractContextManager[object]:
    """Renew nothing: the lease is longer than any read."""
    del held, on_lost
    return nullcontext()


class TaskTransitions(DeadLetters):
    """Move tasks."""

    async def start(
        self,
        session_id: str,
        task_id: str,
        *,
        owner: str,
        lease_ms: int,
        worker: str,
        keep: KeepLease = _unkept,
        max_crashes: int = MAX_CRASHES,
        claimed: bytes | None = None,
    ) -> StartedRun | NotStarted:
        """Take a task's lease and set it running; take it over if its holder's lease ran out.

        One that more than ``max_crashes`` holders in a row left that way is failed instead. With
        ``claimed`` it is not started if that claim was retired, see `retire`. ``keep`` renews the
        lease while its journal and its input are read, which may take longer than the lease lasts.
        One of which a part is damaged, or what its start is announced in, is a dead letter; `retry`
        continues it once that is repaired. Errors: PayloadUnreadable, PayloadStoreUnavailable: it
        is PENDING again; CommandRefused, which counts as no death of a worker; CorruptState for a
        record or a lease that is none.
        """
        keys = self._store.tasks.keys(session_id, task_id)
        update = NewUpdate(
            session_id=session_id,
            task_id=task_id,
            update_type=UpdateType.STATUS_CHANGE,
            content={"status": TaskStatus.RUNNING.value, "worker": worker},
        )
        try:
            reply = await self._scripts.start_task(
                keys,
                move_fields(TaskStatus.RUNNING) | {"worker": worker.encode()} | format_fields(),
                owner=owner,
                lease_ms=lease_ms,
                write=new_write_id(),
                ttl_ms=self._store.tasks.ttl_ms(TaskStatus.RUNNING.value),
                # The script writes the epoch that it gives.
                announcement=announcement(self._store, update, run=0),
                steering=self._store.steering.keys(session_id),
                reads=latest_read(),
                claimed=None if claimed is None else int(claimed),
                most_bytes=STARTED_BYTES,
            )
        except CorruptState as damage:
            return await self.fail_unstarted(session_id, task_id, owner, damage)
        except CommandRefused:
            await self._leave_refused(session_id, task_id, owner)
            raise
        if reply.word is not ReplyCode.OK:
            return _refused(reply)
        epoch, flat, recorded, steered, dropped, read = reply.facts
        held = HeldLease(keys.lease, owner, int(epoch))
        fields = fields_of(flat)
        crashes = number_in(fields, "crashes")
        if crashes > max_crashes:
            reason = died_running(crashes)
            await self._dead_letter(session_id, task_id, held, reason, crashes=crashes)
            return NotStarted(reason)
        self._books.record_start(session_id, task_id, fields, lease_ms=lease_ms)
        losses: list[LeaseLost] = []
        try:
            started = await load_started(
                *(self._store, session_id, task_id, held, fields),
                recorded=bool(recorded),
                read=read,
                steered=bool(steered or dropped),
                was_dropped=bool(dropped),
                keep=partial(keep, held, losses.append),
            )
        except (PayloadUnreadable, PayloadStoreUnavailable):
            # Another worker may have the key, or the store.
            await self._give_back(session_id, task_id, held)
            raise
        except PayloadLost as lost:
            await self._give_up(session_id, task_id, held, f"PayloadLost: {lost}")
            return NotStarted(str(lost))
        except (CorruptState, CommandRefused, ValueError, TypeError, KeyError) as error:
            return await self._leave_unread(session_id, task_id, held, fields, error)
        return NotStarted("held") if losses else started

    async def _leave_refused(self, session_id: str, task_id: str, owner: str) -> None:
        """Undo a start that the server has refused, perhaps in its middle: no worker has died.

        What is refused of that too leaves the task without an owner: the next start continues it.
        """
        leases, lease = self._leases(), self._store.tasks.keys(session_id, task_id).lease
        with suppress(BackendError):
            held = await leases.take(lease, duration_ms=_REFUSED_LEASE_MS, owner=owner)
            if isinstance(held, int):
                return
            try:
                await self._give_back(session_id, task_id, held, "the server refuses its start")
            finally:
                await leases.release(held)

    async def _leave_unread(
        self,
        session_id: str,
        task_id: str,
        held: HeldLease,
        fields: Mapping[str, bytes],
        error: Exception,
    ) -> NotStarted:
        """Leave a task that this worker cannot read to others.

        They may have a later version, or more rights. After some tries it is a dead letter. One
        that is known to be damaged is so at once.
        """
        reason = unreadable(error)
        handed_back = handed_back_of(fields).again_unread(number_in(fields, "attempts"))
        if isinstance(error, CorruptState) or handed_back.unread >= MOST_UNREAD:
            crashes = number_in(fields, "crashes")
            await self._dead_letter(session_id, task_id, held, reason, crashes=crashes)
            return NotStarted(reason)
        log.warning("task %r is left to another worker: %s", task_id, reason)
        await self._give_back(session_id, task_id, held, reason, handed_back)
        return NotStarted(UNREAD)

    async def finish_run(
        self,
        started: StartedRun,
        status: TaskStatus,
        *,
        result: Any = None,
        error: str | None = None,
        steered: bool = False,
        handed_back: HandedBack | None = None,
    ) -> None:
        """End a run: finish the task, or hand it off by making it PENDING.

        One step: status, result, lease, the update, and a child's end in its parent's journal.
        What it was sent is let go of next, if it was ``steered``.
        Errors: LeaseLost if the task was taken over: the result is then dropped; JournalRewound for
        a result that depends on entries which the server has lost.
        """
        payloads = self._store.base.payloads
        error = payloads.bounded(error)
        content = {"status": status.value} | ({"error": error} if error else {})
        fields = move_fields(status, payloads, result=result, error=error) | started.meter.fields()
        if handed_back is not None:
            fields["handed_back"] = handed_back.field
            content["reason"] = "trouble with a server"
        await self._move(
            started.state,
            status,
            fields,
            content,
            # What a run fails or succeeds with may stand on entries that the server has lost.
            mark=started.replay.mark if status in _OUTCOMES else started.held.fence.mark,
            run=started.replay,
            release=True,
            parent=started.parent,
            ended=end_of(status, result, error),
            steered=steered or started.steered,
        )

    async def give_back(self, started: StartedRun, version: str | None) -> None:
        """Make a started task PENDING as if it had not been started, for a worker with its version.

        The start is not counted, and the deaths of earlier workers still are. Errors: LeaseLost;
        InvalidTransition.
        """
        content = {"status": TaskStatus.PENDING.value, "waits_for_version": version}
        fields = move_fields(TaskStatus.PENDING) | {
            "attempts": b"%d" % (started.attempts - 1),
            "crashes": b"%d" % started.crashes,
        }
        if started.handed_back.unread:
            # Such a start takes no number of its own.
            fields["handed_back"] = started.handed_back.has_read().field
        await self._move(
            started.state,
            TaskStatus.PENDING,
            fields,
            content,
            mark=started.held.fence.mark,
            run=started.replay,
            release=True,
        )

    async def cancel(
        self, state: TaskState, reason: str | None, *, parent: str | None = None
    ) -> bool:
        """Cancel a task that no worker runs, a child of ``parent``; return whether that was the
        case.

        Errors: InvalidTransition if it is terminal.
        """
        content = {"status": TaskStatus.CANCELLED.value, "reason": reason}
        fields = move_fields(TaskStatus.CANCELLED, self._store.base.payloads, error=reason)
        try:
            await self._move(
                state,
                TaskStatus.CANCELLED,
                fields,
                content,
                from_states=(TaskStatus.PENDING, TaskStatus.PAUSED),
                parent=parent,
                ended=end_of(TaskStatus.CANCELLED, None, reason),
                steered=True,
            )
        except InvalidTransition as denied:
            if denied.current == TaskStatus.RUNNING.value:
                return False
            raise
        return True

    async def retire(self, found: TaskStatusView, *, claimed_ms: int) -> bool:
        """Take from a claim the right to run a task, before its permit goes to another task.

        A PENDING task is not started under it. The run of a RUNNING one whose lease has run out
        cannot renew it, and its writes are refused. Return False, and do nothing, if the task has
        moved on since it was read. Errors: BackendUnavailable.
        """
        keys = self._store.tasks.keys(found.session_id, found.task_id)
        reply = await self._scripts.retire_claim(keys, version=found.version, claimed=claimed_ms)
        return int(reply.facts[0]) == 1

    async def wake_to_cancel(self, state: TaskState, reason: str | None) -> None:
        """Make a PAUSED task PENDING, because it has something to undo before it is CANCELLED.

        The watch list has it before: a crash afterwards leaves it PENDING and to be queued. Errors:
        InvalidTransition if it does not wait any more.
        """
        await self._books.inspect_soon(state.session_id, state.task_id)
        content = {"status": TaskStatus.PENDING.value, "cancelled": reason or True}
        fields = move_fields(TaskStatus.PENDING)
        await self._move(
            state, TaskStatus.PENDING, fields, content, from_states=(TaskStatus.PAUSED,)
        )


def _refused(reply: Reply) -> NotStarted:
    if reply.word is ReplyCode.HELD:
        return NotStarted("held", left_ms=int(reply.facts[0]))
    return NotStarted(reply.text(0) if reply.facts else "missing")
