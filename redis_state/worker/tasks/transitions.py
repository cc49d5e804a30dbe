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
from collections.abc import Callable, Iterable, Mapping
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
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    UpdateType,
)
from redis_state.primitives.lease import HeldLease, Leases, new_owner
from redis_state.primitives.record import fields_of, new_write_id
from redis_state.scripts import Reply, ReplyCode, TaskKeys
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.stores.sessions.tasks import move_fields
from redis_state.stores.sessions.updates import NewUpdate
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.dead_letters import record_dead, unreadable
from redis_state.worker.tasks.handed_back import MOST_UNREAD, HandedBack
from redis_state.worker.tasks.moves import announcement, raise_refused, status_update
from redis_state.worker.tasks.recorded.replay import Replay
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

_DEAD_LETTER_LEASE_MS = 10_000
_OUTCOMES = (TaskStatus.COMPLETE, TaskStatus.FAILED)
_UNFINISHED = (TaskStatus.PENDING, TaskStatus.RUNNING)

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


class TaskTransitions:
    """Move tasks."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._scripts = store.base.scripts
        self._books = TaskBookkeeping(store)

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
        is PENDING again; CorruptState for a record or a lease that is none.
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
            )
        except CorruptState as damage:
            return await self._fail_unstarted(session_id, task_id, owner, damage)
        if reply.word is not ReplyCode.OK:
            return _refused(reply)
        epoch, flat, recorded, steered, dropped = reply.facts
        held = HeldLease(keys.lease, owner, int(epoch))
        fields = fields_of(flat)
        crashes = number_in(fields, "crashes")
        if crashes > max_crashes:
            reason = _died(crashes)
            await self._dead_letter(session_id, task_id, held, reason, crashes=crashes)
            return NotStarted(reason)
        self._books.record_start(session_id, task_id, fields, lease_ms=lease_ms)
        losses: list[LeaseLost] = []
        try:
            started = await load_started(
                *(self._store, session_id, task_id, held, fields),
                recorded=bool(recorded),
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

    async def _fail_unstarted(
        self, session_id: str, task_id: str, owner: str, damage: CorruptState
    ) -> NotStarted:
        """Fail a task whose start is refused by what is damaged. Errors: CorruptState.

        Under a lease, as any end of a task that another worker may start at the same moment.
        """
        leases = self._leases()
        lease = self._store.tasks.keys(session_id, task_id).lease
        held = await leases.take(lease, duration_ms=_DEAD_LETTER_LEASE_MS, owner=owner)
        if isinstance(held, int):
            return NotStarted("held", left_ms=held)
        reason = unreadable(damage)
        try:
            await self._dead_letter(session_id, task_id, held, reason, from_states=_UNFINISHED)
        finally:
            await leases.release(held)
        return NotStarted(reason)

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
            ended=_end(status, result, error),
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
                ended=_end(TaskStatus.CANCELLED, None, reason),
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

    async def dead_letter(self, session_id: str, task_id: str, *, died: int) -> bool:
        """Fail a task whose owner's lease expired, because ``died`` owners did so in a row.

        It takes a lease of its own, so an owner that is alive after all cannot write any more.
        Return False, and do nothing, if another run owns the task or the task does not run.
        """
        leases = self._leases()
        lease = self._store.tasks.keys(session_id, task_id).lease
        held = await leases.acquire(lease, duration_ms=_DEAD_LETTER_LEASE_MS, owner=new_owner())
        if held is None:
            return False
        # Looked at under the lease: nobody but its holder ends a run.
        found = await self._store.tasks.look(session_id, task_id)
        running = found is not None and found.status is TaskStatus.RUNNING
        if running:
            await self._dead_letter(session_id, task_id, held, _died(died), crashes=died)
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
        state = _named(session_id, task_id)
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
            ended=_end(TaskStatus.FAILED, None, reason),
            steered=True,
        )
        with suppress(LeaseLost, InvalidTransition):
            try:
                await fail()
            except CorruptState as damage:
                log.error("the end of task %r is not announced: %s", task_id, damage)  # noqa: TRY400 - it is no bug
                await fail(silent=True)

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
                _named(session_id, task_id),
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


def _refused(reply: Reply) -> NotStarted:
    if reply.word is ReplyCode.HELD:
        return NotStarted("held", left_ms=int(reply.facts[0]))
    return NotStarted(reply.text(0) if reply.facts else "missing")


def _died(workers: int) -> str:
    return f"given up: {workers} workers in a row died, or stalled, while they ran it"


def _end(status: TaskStatus, result: Any, error: str | None) -> dict[str, Any]:
    """Write a task's end as its parent's journal keeps it."""
    return {"status": status.value, "result": result, "error": error}


def _named(session_id: str, task_id: str) -> TaskState:
    """Return a running task of which nothing is known but its name."""
    return TaskState(
        task_id=task_id,
        session_id=session_id,
        status=TaskStatus.RUNNING,
        task_type=TaskType.BACKGROUND,
        priority=0,
        context_snapshot=TaskContextSnapshot(session_id=session_id, task_id=task_id),
    )
