"""Rerun and fork: new tasks that are made from others, and say so.

A rerun has the input, the handler and the attributes of another task. A fork also has its journal
up to an entry. It replays what is before, under its own id: its watchers see the updates of that
part too, and its steps from there on have effect ids of their own.

A fork takes over what belongs to the part before for certain, see `kept_part`. It opens its own
pauses, whose tokens come from its own secret, and spawns its own children. What undoes the part
before stays its source's.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from redis_state import limits
from redis_state.archive.model import ArchivedTask
from redis_state.errors import (
    CorruptState,
    InvalidField,
    KeyReused,
    PayloadUnreadable,
    RetryRefused,
    TaskUnknown,
)
from redis_state.models import StateUpdate, TaskState, TaskStatus, UpdateType
from redis_state.models.attributes import Attributes
from redis_state.models.tasks import FOREGROUND, new_id, utc_now
from redis_state.primitives.record import Stored, new_write_id
from redis_state.scripts import Reply, ReplyCode, raw
from redis_state.serialization import codec
from redis_state.serialization.sealed import Sealed
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.job_parts import job_of
from redis_state.stores.sessions.task_status import IN_TURN
from redis_state.stores.task_index import attributes_of
from redis_state.worker.queue.jobs.job import seniority_ms
from redis_state.worker.queue.limits import key_in_session
from redis_state.worker.tasks.move_parts import new_fields
from redis_state.worker.tasks.new_tasks import NewTasks
from redis_state.worker.tasks.operate.kept_part import KeptPart, names_of
from redis_state.worker.tasks.recorded.archived import ArchivedJournal, load_archived
from redis_state.worker.tasks.recorded.compensations import is_being_undone
from redis_state.worker.tasks.recorded.inputs import read_input
from redis_state.worker.tasks.recorded.journal import Journals, StepRecord
from redis_state.worker.tasks.submitting.turns import InTurn
from redis_state.worker.tasks.task_format import format_of_copy
from redis_state.worker.tasks.views.links import TaskLink, write_link


@dataclass(frozen=True, slots=True)
class Source:
    """A task that another one is made from."""

    state: TaskState
    record: Stored
    handler: str
    task_input: Any
    queue: str | None
    attributes: Attributes
    format: Mapping[str, bytes]
    archived: ArchivedTask | None = None

    def key_in(self, session_id: str) -> str:
        """Return what a task of a session is limited under that is made from it."""
        key = self.record.fields.get("flow_key", b"").decode("utf-8", "surrogatepass")
        return key_in_session(key, session_id)

    def copy(self, *, task_id: str | None = None, session_id: str | None = None) -> TaskState:
        """Describe the new task."""
        task_id = limits.own_id("new_task_id", task_id) or new_id()
        session_id = self.state.session_id if session_id is None else session_id
        # One of its own, like a child's: two tasks with one trace would write one trajectory.
        trace_id = self.state.trace_id and f"{self.state.trace_id}/{task_id}"
        about = {"task_id": task_id, "session_id": session_id, "spawned_at": utc_now()}
        about |= {"spawned_from_task_id": FOREGROUND, "trace_id": trace_id}
        now = utc_now()
        return replace(
            self.state,
            task_id=task_id,
            session_id=session_id,
            trace_id=trace_id,
            status=TaskStatus.PENDING,
            context_snapshot=self.state.context_snapshot.model_copy(update=about),
            result=None,
            error=None,
            progress=None,
            created_at=now,
            updated_at=now,
        )


class Copies:
    """Make tasks from others."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._journals = Journals(store.base)
        self._new_tasks = NewTasks(store)

    async def source(self, session_id: str, task_id: str) -> Source:
        """Read a task that another one is to be made from, from Redis or else the archive.

        Errors: TaskUnknown; RetryRefused for one that has no handler; CorruptState; of an archived
        one ArchiveUnavailable, and PayloadLost for an input that is gone from the store of claims.
        """
        record = await self._store.tasks.load_fields(session_id, task_id)
        archived: ArchivedTask | None = None
        if record is None:
            archived = await load_archived(self._store, session_id, task_id)
            if archived is None:
                raise TaskUnknown(task_id)
            record = archived.as_stored
        if "job" not in record.fields:
            raise RetryRefused(task_id, "a host has saved it, with no handler")
        source = self._read(session_id, task_id, record)
        if archived is None:
            return source
        task_input = await self._own_input(task_id, source.task_input)
        return replace(source, archived=archived, task_input=task_input)

    async def _own_input(self, task_id: str, task_input: Any) -> Any:
        """Return the input of an archived task for a new one.

        Objects of an archived task are as old as it is: a new task has one of its own. What this
        process has no key for is passed on as it stands, as that of a task in Redis is.
        """
        payloads, of = self._store.base.payloads, f"task {task_id!r}"
        try:
            return await payloads.fetch(task_input, of=of, field="input")
        except PayloadUnreadable:
            passed_on = await payloads.copied(task_input, of=of, field="input")
            # There is no store of claims here.
            if passed_on is task_input and task_input.is_elsewhere:
                raise
            return passed_on

    def _read(self, session_id: str, task_id: str, record: Stored) -> Source:
        try:
            payloads = self._store.base.payloads
            # What cannot be read of the input is copied as it stands; a context cannot be.
            of = f"task {task_id!r}"
            payloads.need_all(record.fields["document"], of=of, field="context_snapshot")
            job = payloads.as_object(job_of(record.fields))
            return Source(
                state=self._store.tasks.read(session_id, task_id, record),
                record=record,
                handler=job["handler"],
                task_input=read_input(payloads, record.fields, job, of=of),
                queue=record.fields.get("queue", b"").decode("utf-8", "surrogatepass") or None,
                attributes=attributes_of(record.fields),
                format=format_of_copy(record.fields),
            )
        except (ValueError, KeyError, TypeError) as error:
            key = self._store.tasks.keys(session_id, task_id).task
            raise CorruptState(key, f"not a task's record: {type(error).__name__}") from None

    async def rerun(
        self,
        source: Source,
        state: TaskState,
        *,
        attributes: Attributes,
        queue: str | None,
        sent: bytes | None = None,
    ) -> bool:
        """Write a new task with the input of another; return whether it was new."""
        task_input = source.task_input
        if state.session_id != source.state.session_id:
            # An erasure of the other session deletes the object that its task names.
            of = f"task {source.state.task_id!r}"
            task_input = await self._store.base.payloads.copied(task_input, of=of, field="input")
        link = write_link(source.state.session_id, source.state.task_id)
        key = source.key_in(state.session_id)
        return await self._new_tasks.create(
            state,
            handler=source.handler,
            task_input=task_input,
            queue=queue,
            attributes=attributes,
            links={"rerun_of": link},
            sent=sent,
            key=key,
            writer=InTurn(self._store, priority=state.priority)
            if key.startswith(IN_TURN)
            else None,
        )

    async def fork(
        self,
        source: Source,
        state: TaskState,
        *,
        before: str | None,
        attributes: Attributes,
        queue: str | None,
        sent: bytes | None = None,
    ) -> bool:
        """Write a new task with a part of another's journal; return whether it was new."""
        session_id, task_id = source.state.session_id, source.state.task_id
        keys = self._store.tasks.keys(session_id, task_id)
        try:
            journal = await self._journal(source)
            kept = KeptPart.of(journal, before)
            if kept.has_steps and is_being_undone(journal):
                raise RetryRefused(task_id, "what it did was undone: fork it before its first step")
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, InvalidField):
                raise
            raise CorruptState(keys.journal, codec.reason_of(error)) from None
        key = source.key_in(session_id)
        in_turn = key.startswith(IN_TURN)
        fields = new_fields(
            self._store.base.payloads,
            state,
            handler=source.handler,
            task_input=source.task_input,
            queue=queue,
            attributes=attributes,
            key=key,
            sent=sent,
        )
        fields |= {"forked_from": write_link(session_id, task_id, kept.before)}
        fields |= source.format
        order: int | None = source.record.order
        if source.archived is not None:
            kept, order = await self._brought(source.archived, kept, journal), None
        write = new_write_id()

        async def create(before_ms: int) -> Reply:
            return await self._store.base.scripts.fork_task(
                self._store.tasks.keys(session_id, state.task_id),
                fields,
                source=keys,
                steering=self._store.steering.keys(session_id),
                updates=self._store.updates.keys(session_id),
                children=self._store.base.keys.children(session_id, state.task_id),
                write=write,
                ttl_ms=self._store.tasks.ttl_ms(state.status.value),
                before=before_ms,
                order=order,
                copied=kept.names,
                made={raw(name): value for name, value in kept.made.items()},
                turn=self._store.base.keys.turn(session_id) if in_turn else None,
                in_turn=in_turn,
                earlier_ms=seniority_ms(state.priority),
            )

        reply = await self._new_tasks.cover(
            state, create, write=write, handler=source.handler, attributes=attributes
        )
        if reply.word is ReplyCode.MISSING:
            # It has left Redis since it was read: the archive may have it.
            left = await self.source(session_id, task_id)
            if source.archived is not None or left.archived is None:
                raise TaskUnknown(task_id)
            return await self.fork(
                left, state, before=before, attributes=attributes, queue=queue, sent=sent
            )
        if reply.word is not ReplyCode.OK:
            return False
        update = StateUpdate(
            session_id=state.session_id,
            task_id=state.task_id,
            trace_id=state.trace_id,
            update_type=UpdateType.STATUS_CHANGE,
            content={"status": state.status.value, "forked_from": task_id},
        )
        update.update_id = f"{state.task_id}:{write}"
        await self._store.save_update(update)
        return True

    async def _journal(self, source: Source) -> Mapping[str, Any]:
        if source.archived is not None:
            return ArchivedJournal(self._store, source.archived).read()
        keys = self._store.tasks.keys(source.state.session_id, source.state.task_id)
        journal, _ = await self._journals.read(keys)
        return journal

    async def _brought(
        self, task: ArchivedTask, kept: KeptPart, journal: Mapping[str, Any]
    ) -> KeptPart:
        """Return a part that brings its entries along: Redis has none of them.

        Errors: PayloadLost for a result that is gone from the store of claims.
        """
        read = ArchivedJournal(self._store, task)
        for name in kept.names:
            note = journal.get(name)
            if isinstance(note, StepRecord) and (note.chunks or type(note.result) is Sealed):
                with suppress(PayloadUnreadable):
                    await read.result(name, note)
        brought = {
            name: task.journal[raw(name)] for name in kept.names if raw(name) in task.journal
        }
        return replace(kept, names=(), made=brought | dict(kept.made))


def check_copied(what: str, link: TaskLink | None, session_id: str, task_id: str) -> TaskLink:
    """Compare what a task under a caller's id was made from with a task; return what it was.

    Errors: KeyReused, of ``what``.
    """
    if link is None or (link.session_id, link.task_id) != (session_id, task_id):
        raise KeyReused(what)
    return link


def check_forked(link: TaskLink, before: str | None) -> None:
    """Compare what a repeated fork keeps with what the fork has kept. Errors: KeyReused."""
    same = before is None if link.before is None else before in names_of(link.before)
    if not same:
        raise KeyReused("fork")
