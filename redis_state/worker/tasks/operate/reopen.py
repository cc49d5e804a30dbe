"""Retry: reopen a task that is FAILED or CANCELLED, with its journal.

The next run replays what is recorded and continues where the last one ended. What ended the task is
left out of the journal: the end of a child that was not complete, a pause that nobody decided in
time, a message that did not come in time. It is the last thing there, or the task's error names it.
So the child runs again too, the pause is opened again, and the message is waited for again. Steps
that failed were never recorded.

    its children first      those that were cancelled with it, and those whose end is left out
    then the watch list     a crash later leaves a task that a sweeper queues
    then the task           one step: status, journal, counters, lease, lifetimes, the update
    then the index, and the queue for all of them

A crash between the children and the task leaves the task as it was. A call that is repeated, with
the key or without, reopens it and what is left of the children. Until then those that are reopened
run: the cancel of before is not theirs any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis_state.errors import (
    CorruptState,
    CursorGap,
    InvalidField,
    InvalidTransition,
    OutcomeUnknown,
    RetryRefused,
    TaskUnknown,
)
from redis_state.models import SteeringEventType, TaskState, TaskStatus
from redis_state.primitives.listed import behind_a_write
from redis_state.primitives.record import Stored, new_write_id
from redis_state.scripts import Reply, ReplyCode, TaskKeys
from redis_state.serialization import codec
from redis_state.serialization.sealed import Sealed
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_fields import move_fields
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.children.cancelling import WITH_PARENT, parent_cancelled
from redis_state.worker.tasks.children.children import ChildTasks
from redis_state.worker.tasks.move_parts import announcement, status_update
from redis_state.worker.tasks.operate.left_out import (
    depends_on_why,
    failed_steps,
    is_failed_end,
    joined_children,
    missed_messages,
    overdue_pauses,
)
from redis_state.worker.tasks.recorded.compensations import is_undone
from redis_state.worker.tasks.recorded.journal import Journals, steps_of
from redis_state.worker.tasks.submitting.turns import place_in_line

_REOPENED = (TaskStatus.FAILED, TaskStatus.CANCELLED)
# What steered the run that is over, and not its handler.
_STEERED_RUN = (SteeringEventType.CANCEL, SteeringEventType.PAUSE, SteeringEventType.RESUME)
_LONGEST_KEY = 200
_UNDONE = "what it did was undone: rerun it"


@dataclass(frozen=True, slots=True)
class _RetryPlan:
    """What reopening one task means. ``parent_retry`` is the retry of its parent that brings it."""

    view: TaskStatusView
    state: TaskState
    record: Stored
    dropped: Sequence[str]
    steps: int
    void: Sequence[str]
    children: Sequence[_RetryPlan]
    parent_retry: int | None = None


@dataclass(frozen=True, slots=True)
class Reopened:
    """A task as it stands behind a retry. ``before``: an earlier call of the key reopened it."""

    state: TaskState
    before: bool


class Reopening:
    """Reopen tasks."""

    def __init__(self, store: RedisStateStore, queue: Queue) -> None:
        self._store = store
        self._queue = queue
        self._journals = Journals(store.base)
        self._books = TaskBookkeeping(store)
        self._children = ChildTasks(store)

    async def retry(self, session_id: str, task_id: str, *, key: str | None) -> Reopened:
        """See `TaskClient.retry`."""
        _check_key(key)
        queueable: list[TaskStatusView] = []
        reply = Reply(ReplyCode.STALE, [])
        address = self._store.transport.address
        # From its first child on.
        with behind_a_write(address, written=queueable):
            while reply.word is ReplyCode.STALE:
                plan = await self._plan(session_id, task_id, key=key)
                if plan is None:
                    reply = Reply(ReplyCode.TAKEN, [])
                else:
                    reply = await self._reopen_all(plan, queueable, key=key)
        with behind_a_write(address):
            await self._queue_up(queueable)
            if reply.word is ReplyCode.DENIED:
                raise InvalidTransition(task_id, current=reply.text(0), wanted="PENDING")
            state = await self._store.tasks.load(session_id, task_id)
        if state is None or reply.word is ReplyCode.MISSING:
            raise TaskUnknown(task_id)
        return Reopened(state, before=reply.word is ReplyCode.TAKEN)

    async def _reopen_all(
        self, plan: _RetryPlan, queueable: list[TaskStatusView], *, key: str | None = None
    ) -> Reply:
        """Reopen what a task brings, then the task; not a child that has changed since."""
        view = plan.view
        retry = view.retries + 1
        brought = [replace(child, parent_retry=retry) for child in plan.children]
        reopening = (self._reopen_all(child, queueable) for child in brought)
        # All of them end first: one error says nothing of what the others have written.
        ends = await asyncio.gather(*reopening, return_exceptions=True)
        errors = [end for end in ends if isinstance(end, BaseException)]
        if errors:
            raise next((each for each in errors if isinstance(each, OutcomeUnknown)), errors[0])
        await self._books.inspect_soon(view.session_id, view.task_id)
        reply = await self._reopen(plan, key=key)
        if reply.word in (ReplyCode.OK, ReplyCode.TAKEN):
            queueable.append(view)
        return reply

    async def _plan(self, session_id: str, task_id: str, *, key: str | None) -> _RetryPlan | None:
        """Read what reopening a task means; None if a call with this key has reopened it."""
        record = await self._store.tasks.load_fields(session_id, task_id)
        if record is None:
            raise TaskUnknown(task_id)
        view = self._view(session_id, task_id, record)
        if not view.ours:
            raise RetryRefused(task_id, "a host has saved it, with no handler")
        if _is_of_a_protocol(record.fields):
            raise RetryRefused(task_id, "its protocol does not reopen what has ended")
        if key is not None and record.fields.get("retried") == key.encode("utf-8", "surrogatepass"):
            return None
        if view.status not in _REOPENED:
            raise InvalidTransition(task_id, current=view.status.value, wanted="PENDING")
        parent = view.cancelled_with
        if parent is not None and await parent_cancelled(
            *(self._store, session_id, parent), order=view.parent_order, retry=view.parent_retry
        ):
            raise RetryRefused(task_id, f"its parent {parent!r} was cancelled: retry that one")
        return await self._plan_of(view, record)

    async def _plan_of(self, view: TaskStatusView, record: Stored) -> _RetryPlan:
        session_id, task_id = view.session_id, view.task_id
        keys = self._store.tasks.keys(session_id, task_id)
        try:
            state = self._store.tasks.read(session_id, task_id, record)
            journal = await self._journal(keys)
            if is_undone(journal):
                raise RetryRefused(task_id, _UNDONE)
            why = await self._why(state, journal)
            joins = await self._failed_ends(keys, journal, why)
            dropped = [
                *joins,
                *overdue_pauses(journal, why, beyond=joins),
                *missed_messages(journal, why),
            ]
            dropped += failed_steps(journal, why, beyond=joins)
            steps = len(steps_of(journal)) - len(joins)
            ended = joined_children(journal, (entry for entry, _ in steps_of(journal)))
        except (ValueError, TypeError, KeyError) as error:
            why = f"the task cannot be read: {codec.reason_of(error)}"
            raise CorruptState(keys.task, why) from None
        left_out = {ended[entry] for entry in joins}
        return _RetryPlan(
            view=view,
            state=state,
            record=record,
            dropped=dropped,
            steps=steps,
            void=await self._steering(session_id, task_id),
            children=await self._plan_children(view, left_out, kept={*ended.values()} - left_out),
        )

    async def _journal(self, keys: TaskKeys) -> dict[str, Any]:
        try:
            return (await self._journals.read(keys))[0]
        except (ValueError, TypeError) as error:
            raise CorruptState(keys.journal, codec.reason_of(error)) from None

    async def _why(self, state: TaskState, journal: Mapping[str, Any]) -> str:
        """Return why a task has failed, where its retry depends on that.

        Errors: PayloadUnreadable if this process lacks the key.
        """
        error = state.error or ""
        if state.status is not TaskStatus.FAILED:
            return ""
        if type(error) is Sealed and not depends_on_why(journal):
            return ""
        of = f"task {state.task_id!r}"
        return str(await self._store.base.payloads.fetch(error, of=of, field="error"))

    async def _failed_ends(self, keys: TaskKeys, journal: Mapping[str, Any], why: str) -> list[str]:
        """Find the ends of children to leave out: those that are not complete and failed the task.

        These are the last steps of its journal, and those of children that its error names.
        """
        found: list[str] = []
        at_end = True
        steps = steps_of(journal)
        joined = joined_children(journal, (entry for entry, _ in steps))
        for entry, note in reversed(steps):
            child = joined.get(entry)
            at_end = at_end and child is not None
            if child is None or not (at_end or child in why):
                continue
            # Read as a run does: a large one stands elsewhere, and one may be sealed.
            if is_failed_end(await self._journals.result(keys, entry, note)):
                found.append(entry)
            else:
                at_end = False
        return found

    async def _plan_children(
        self, parent: TaskStatusView, left_out: set[str], *, kept: set[str]
    ) -> list[_RetryPlan]:
        """Plan those whose end is left out, and those that were cancelled with their parent.

        Not those whose end is ``kept``, which the parent's next run finds: they have ended.
        """
        session_id = parent.session_id
        plans: list[_RetryPlan] = []
        for name in await self._children.children(session_id, parent.task_id):
            record = await self._store.tasks.load_fields(session_id, name)
            view = None if record is None else self._view(session_id, name, record)
            if record is None or view is None or view.status not in _REOPENED:
                continue
            if (view.parent, view.parent_order) != (parent.task_id, parent.order):
                continue
            both = parent.status is view.status is TaskStatus.CANCELLED and name not in kept
            with_parent = both and not view.isolated and await self._by_parent(view, record)
            if name in left_out or with_parent:
                plans.append(await self._plan_child(parent.task_id, view, record))
        return plans

    async def _plan_child(self, parent: str, view: TaskStatusView, record: Stored) -> _RetryPlan:
        try:
            return await self._plan_of(view, record)
        except RetryRefused as refused:
            if refused.reason != _UNDONE:
                raise
        why = f"what its child {view.task_id!r} did was undone: fork it before that child"
        raise RetryRefused(parent, why)

    async def _by_parent(self, view: TaskStatusView, record: Stored) -> bool:
        """Return whether a child was cancelled with its parent, and not for itself."""
        session_id, task_id = view.session_id, view.task_id
        error = self._store.tasks.read(session_id, task_id, record).error or ""
        of = f"task {task_id!r}"
        error = await self._store.base.payloads.fetch(error, of=of, field="error")
        return str(error).startswith(WITH_PARENT)

    async def _steering(self, session_id: str, task_id: str) -> list[str]:
        """List the events that cancelled or paused the runs before."""
        void: list[str] = []
        cursor: str | None = None
        while True:
            try:
                page = await self._store.read_steering(session_id, after=cursor, task_id=task_id)
            except CursorGap as gap:
                cursor = gap.resume_after
                continue
            void += [
                entry.value.event_id
                for entry in page.entries
                if entry.value.event_type in _STEERED_RUN
            ]
            cursor = page.cursor
            if page.at_end:
                return void

    async def _reopen(self, plan: _RetryPlan, *, key: str | None) -> Reply:
        view, write = plan.view, new_write_id()
        pending = TaskStatus.PENDING
        update = status_update(plan.state, pending, retry=view.retries + 1, was=view.status.value)
        ttl_ms = self._store.tasks.ttl_ms(pending.value)
        reply = await self._store.base.scripts.retry_task(
            self._store.tasks.keys(view.session_id, view.task_id),
            move_fields(pending, result=None, error=None) | _reopened_fields(plan),
            children=self._store.base.keys.children(view.session_id, view.task_id),
            expected=plan.record.version,
            key=key or "",
            write=write,
            ttl_ms=ttl_ms,
            announcement=announcement(self._store, update),
            dropped=plan.dropped,
            turn=self._store.base.keys.turn(view.session_id) if view.in_turn else None,
            in_turn=view.in_turn,
            place_ms=place_in_line(view),
        )
        if reply.word is ReplyCode.OK:
            version = int(reply.facts[0])
            self._books.record_move(plan.state, pending, version=version, write=write)
        return reply

    async def _queue_up(self, queueable: Sequence[TaskStatusView]) -> None:
        for each in queueable:
            view = await self._store.tasks.look(each.session_id, each.task_id)
            if view is not None and view.status is TaskStatus.PENDING:
                await self._queue.put(Job.ready(view))

    def _view(self, session_id: str, task_id: str, record: Stored) -> TaskStatusView:
        try:
            return TaskStatusView.of(session_id, task_id, record.fields)
        except (ValueError, KeyError) as error:
            key = self._store.tasks.keys(session_id, task_id).task
            raise CorruptState(key, "not a task's record") from error


def _check_key(key: Any) -> None:
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= _LONGEST_KEY):
        raise InvalidField("idempotency_key", f"text of 1 to {_LONGEST_KEY} signs is needed")


def _reopened_fields(plan: _RetryPlan) -> dict[str, bytes]:
    """Write what a reopened task begins with: no crash, no wait, a budget of its own."""
    retry = {} if plan.parent_retry is None else {"parent_retry": b"%d" % plan.parent_retry}
    return retry | {
        "crashes": b"0",
        "handed_back": b"",
        "dead": b"",
        "waits_for": b"",
        "pause_entry": b"",
        "pause_token": b"",
        "pause_write": b"",
        "doing": b"",
        "spent_ms": b"0",
        "spent_updates": b"0",
        "steps_before": b"%d" % plan.steps,
        "void": codec.encode(plan.void),
    }


def _is_of_a_protocol(fields: Mapping[str, bytes]) -> bool:
    """Return whether a task's phase has a word of its own: see `transition_task`."""
    status, _, word = fields.get("phase", b"").rpartition(b":")
    return bool(word) and word != status.partition(b":")[0]
