"""The life of a task: every move from one state to another, each one script.

    PENDING ──start──▶ RUNNING ──finish──▶ COMPLETE | FAILED | CANCELLED
       ▲                 │ │
       │◀────hand over───┘ └──pause──▶ PAUSED
       │◀────────────resume──────────────┘
       └──cancel──▶ CANCELLED ◀──cancel──┘

A move checks the state it starts from and, for a worker, the epoch of its lease; it changes the
record and tells the session in the same step.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis_state import codec
from redis_state.errors import InvalidTransition, LeaseLost, TokenUnknown, VersionConflict
from redis_state.models import (
    StateUpdate,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    UpdateType,
)
from redis_state.primitives.lease import Held
from redis_state.primitives.record import Place, new_write_id, stored
from redis_state.primitives.token import new_claim, payload_mark, raise_unless_won, resolved
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms
from redis_state.stores.tasks import microseconds, move_fields, task_fields
from redis_state.transport.keys import escape
from redis_state.transport.scripts import Announcement, TaskKeys, Word, raw
from redis_state.worker.telemetry import carried

log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Started:
    """A task that runs now: under which lease, as it stood, and what its journal holds."""

    held: Held
    state: TaskState
    handler: str
    input: Any
    attempts: int
    inbox: str | None
    journal: dict[str, Any]
    taken_over: bool
    trace: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NotStarted:
    """Why a task was not started. ``left_ms`` is how long its holder's lease still runs."""

    reason: str
    left_ms: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task that waits: the epoch of its last run, 0 before the first, and its priority."""

    epoch: int
    priority: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """A task that was resumed and waits for a worker."""

    session_id: str
    task_id: str
    epoch: int
    payload: Any


class TaskLife:
    """Move tasks."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._scripts = store.base.scripts

    async def create(
        self,
        state: TaskState,
        *,
        handler: str,
        task_input: Any,
        queue: str | None = None,
        trace: Mapping[str, str] | None = None,
    ) -> bool:
        """Write a new pending task down; tell whether it was new. An existing one stays.

        ``queue`` is the one that it waits in each time it waits. ``trace`` is the context of the
        span that its runs belong to.
        """
        keys = self._keys(state)
        write = new_write_id()
        job = {"handler": handler, "input": task_input} | ({"trace": trace} if trace else {})
        fields = task_fields(state) | ({"queue": raw(queue)} if queue else {})
        fields |= {
            "job": codec.encode(job),
            "finished": b"0",
            "updated_at": str(microseconds(state.updated_at)).encode(),
        }
        reply = await self._scripts.create_task(
            keys,
            fields,
            steering=self._store.steering.keys(state.session_id),
            updates=self._store.updates.keys(state.session_id),
            write=write,
            ttl_ms=self._store.tasks.ttl_ms(state.status.value),
        )
        if reply.word is not Word.OK:
            return False
        update = status_update(state, state.status)
        update.update_id = f"{state.task_id}:{write}"
        await self._store.save_update(update)
        return True

    async def start(
        self, session_id: str, task_id: str, *, owner: str, lease_ms: int, worker: str
    ) -> Started | NotStarted:
        """Take a task's lease and set it running; take it over if its holder's lease ran out."""
        keys = self._store.tasks.keys(session_id, task_id)
        update = StateUpdate(
            session_id=session_id,
            task_id=task_id,
            update_type=UpdateType.STATUS_CHANGE,
            content={"status": TaskStatus.RUNNING.value, "worker": worker},
        )
        reply = await self._scripts.start_task(
            keys,
            move_fields(TaskStatus.RUNNING) | {"worker": worker.encode()},
            owner=owner,
            lease_ms=lease_ms,
            write=new_write_id(),
            ttl_ms=self._store.tasks.ttl_ms(TaskStatus.RUNNING.value),
            announcement=self._announce(update),
        )
        if reply.word is Word.HELD:
            return NotStarted("held", left_ms=int(reply.facts[0]))
        if reply.word is not Word.OK:
            return NotStarted(reply.text(0) if reply.facts else "missing")
        epoch, flat = reply.facts
        held = Held(keys.lease, owner, int(epoch))
        try:
            return await self._read_started(session_id, task_id, held, flat)
        except (ValueError, TypeError, KeyError) as error:
            # Nobody could run it: saying so is better than trying for ever.
            reason = f"the task cannot be read: {type(error).__name__}"
            await self._give_up(session_id, task_id, held, reason)
            return NotStarted(reason)

    async def leave(
        self,
        started: Started,
        status: TaskStatus,
        *,
        result: Any = None,
        error: str | None = None,
    ) -> None:
        """End a run: finish the task, or hand it over by setting it pending.

        One step: state, result, lease and the update that tells. Errors: LeaseLost if the task
        was taken over: what this run found is then dropped.
        """
        content = {"status": status.value} | ({"error": error} if error else {})
        fields = move_fields(status, result=result, error=error)
        await self._move(
            started.state, status, fields, content, epoch=started.held.epoch, release=True
        )

    async def cancel(self, state: TaskState, reason: str | None) -> bool:
        """Cancel a task that no worker runs; tell whether that was so.

        Errors: InvalidTransition if it is over.
        """
        content = {"status": TaskStatus.CANCELLED.value, "reason": reason}
        fields = move_fields(TaskStatus.CANCELLED, error=reason)
        try:
            await self._move(
                state,
                TaskStatus.CANCELLED,
                fields,
                content,
                from_states=(TaskStatus.PENDING, TaskStatus.PAUSED),
            )
        except InvalidTransition as denied:
            if denied.current == TaskStatus.RUNNING.value:
                return False
            raise
        return True

    async def pause(
        self,
        started: Started,
        *,
        entry: str,
        former: str | None,
        reason: str,
        payload: Any,
        ttl_ms: int | None,
    ) -> str:
        """Pause a running task under a new token and free its lease; return the token.

        One step: the token, the journal's note, the state, the lease, and the two updates that
        tell (CHECKPOINT carries the token). ``former`` is the token of an earlier run that came
        to the same pause and was begun again before anybody decided: it is worth nothing from
        here on. Errors: LeaseLost, InvalidTransition.
        """
        state = started.state
        keys = self._keys(state)
        scope = escape("session_id", state.session_id)
        token = f"{scope}.{secrets.token_urlsafe(24)}"
        if former is not None:
            sender = self._store.transport.sender
            await sender.send("DEL", self._token_key(former), repeatable=True)
        checkpoint = StateUpdate(
            session_id=state.session_id,
            task_id=state.task_id,
            trace_id=state.trace_id,
            update_type=UpdateType.CHECKPOINT,
            content={"reason": reason, "resume_token": token, "payload": payload},
        )
        fields = move_fields(TaskStatus.PAUSED)
        data = codec.encode(payload)
        settings = self._store.settings
        reply = await self._scripts.pause_task(
            keys,
            fields,
            epoch=started.held.epoch,
            write=new_write_id(),
            ttl_ms=self._store.tasks.ttl_ms(TaskStatus.PAUSED.value),
            announcement=self._announce(checkpoint, status_update(state, TaskStatus.PAUSED)),
            token=self._token_key(token),
            payload=data,
            mark=payload_mark(data),
            token_owner=codec.encode([state.session_id, state.task_id, entry]),
            token_ttl_ms=ttl_ms or ms(settings.task_pause_ttl),
            keep_ms=ms(settings.resolved_token_ttl),
            entry=entry,
            note=codec.encode({"state": "open", "token": token}),
        )
        if reply.word is Word.TAKEN:
            raise resolved(reply)
        self._raise_refused(reply.word, reply.facts, state, started.held.epoch, "PAUSED")
        return token

    async def resume(
        self,
        token: str,
        *,
        approved: bool,
        value: Any,
        by: str,
        claim: str | None = None,
        task: tuple[str, str] | None = None,
    ) -> Resumed:
        """Resolve a paused task's token and set the task pending, in one step.

        The same ``claim`` repeated gets the same answer. ``task`` is the session and the task
        whose token it has to be. Errors: TokenResolved for whoever comes second, TokenUnknown,
        InvalidTransition if the task is not paused any more.
        """
        token_key = self._token_key(token)
        sender = self._store.transport.sender
        owner: bytes | None = await sender.send("HGET", token_key, "task", repeatable=True)
        if not owner:
            raise TokenUnknown(expired=False)
        session_id, task_id, entry = codec.decode(owner)
        if task not in (None, (session_id, task_id)):
            raise TokenUnknown(expired=False)
        state = await self._store.tasks.load(session_id, task_id)
        if state is None:
            raise TokenUnknown(expired=True)
        decision = {"state": "decided", "approved": approved, "value": value, "by": by}
        reply = await self._scripts.resume_task(
            self._keys(state),
            move_fields(TaskStatus.PENDING),
            token=token_key,
            claim=claim or new_claim(),
            by=by,
            decision=codec.encode(decision),
            keep_ms=ms(self._store.settings.resolved_token_ttl),
            entry=entry,
            ttl_ms=self._store.tasks.ttl_ms(TaskStatus.PENDING.value),
            announcement=self._announce(
                status_update(state, TaskStatus.PENDING, approved=approved, by=by)
            ),
        )
        if reply.word is Word.DENIED:
            raise InvalidTransition(task_id, current=reply.text(0), wanted="PENDING")
        payload, epoch = raise_unless_won(reply).facts
        return Resumed(session_id, task_id, int(epoch), codec.decode(payload))

    async def note_step(self, started: Started, entry: str, result: Any) -> Any:
        """Note a finished step's result; return what the journal holds. Errors: LeaseLost."""
        keys = self._keys(started.state)
        reply = await self._scripts.note_step(
            keys.journal,
            fence=started.held.fence,
            entry=entry,
            result=codec.encode(result),
            ttl_ms=self._store.tasks.ttl_ms(TaskStatus.RUNNING.value),
        )
        if reply.word is Word.LOST:
            raise LeaseLost(keys.task, epoch=started.held.epoch, current=int(reply.facts[0]))
        return codec.decode(reply.facts[0])

    async def prioritize(self, session_id: str, task_id: str, priority: int) -> Waiting | None:
        """Change the priority of a task that waits; tell what it was, or None if none waits."""
        keys = self._store.tasks.keys(session_id, task_id)
        while True:
            record = await self._store.tasks.load_fields(session_id, task_id)
            if record is None:
                return None
            status = TaskStatus(record.fields["status"].decode())
            if status not in (TaskStatus.PENDING, TaskStatus.PAUSED):
                return None
            sender = self._store.transport.sender
            epoch: bytes | None = await sender.send("HGET", keys.lease, "epoch", repeatable=True)
            try:
                await self._store.base.records.save(
                    keys.task,
                    {"priority": str(priority).encode()},
                    ttl_ms=self._store.tasks.ttl_ms(status.value),
                    expected=record.version,
                    place=Place(keys.tasks, task_id),
                )
            except VersionConflict:
                continue
            return Waiting(epoch=int(epoch or 0), priority=int(record.fields["priority"]))

    async def set_priority(self, started: Started, priority: int) -> None:
        """Change a running task's priority, for the next time it waits. Errors: LeaseLost."""
        keys = self._keys(started.state)
        await self._store.base.records.save(
            keys.task,
            {"priority": str(priority).encode()},
            ttl_ms=self._store.tasks.ttl_ms(TaskStatus.RUNNING.value),
            place=Place(keys.tasks, started.state.task_id),
            fence=started.held.fence,
        )

    async def _read_started(
        self, session_id: str, task_id: str, held: Held, flat: list[Any]
    ) -> Started:
        record = stored(flat)
        if record is None:
            raise KeyError(task_id)
        job = codec.decode(record.fields["job"])
        return Started(
            held=held,
            state=self._store.tasks.read(session_id, task_id, record),
            handler=job["handler"],
            input=job["input"],
            attempts=int(record.fields.get("attempts", 1)),
            inbox=record.fields.get("inbox", b"").decode() or None,
            journal=await self._journal(self._store.tasks.keys(session_id, task_id)),
            # Counted up by `start_task` when it takes over, and set back by any other start.
            taken_over=int(record.fields.get("crashes", 0)) > 0,
            trace=carried(job.get("trace")),
        )

    async def _give_up(self, session_id: str, task_id: str, held: Held, reason: str) -> None:
        log.error("task %s is failed: %s", task_id, reason)
        state = TaskState(
            task_id=task_id,
            session_id=session_id,
            status=TaskStatus.RUNNING,
            task_type=TaskType.BACKGROUND,
            priority=0,
            context_snapshot=TaskContextSnapshot(session_id=session_id, task_id=task_id),
        )
        content = {"status": TaskStatus.FAILED.value, "error": reason}
        fields = move_fields(TaskStatus.FAILED, error=reason)
        with suppress(LeaseLost, InvalidTransition):
            await self._move(
                state, TaskStatus.FAILED, fields, content, epoch=held.epoch, release=True
            )

    async def _move(
        self,
        state: TaskState,
        status: TaskStatus,
        fields: dict[str, bytes],
        content: dict[str, Any],
        *,
        epoch: int | None = None,
        release: bool = False,
        from_states: Iterable[TaskStatus] = (TaskStatus.RUNNING,),
    ) -> None:
        update = status_update(state, status)
        update.content = content
        reply = await self._scripts.move_task(
            self._keys(state),
            fields,
            epoch=epoch,
            from_states=[name.value for name in from_states],
            release=release,
            write=new_write_id(),
            ttl_ms=self._store.tasks.ttl_ms(status.value),
            announcement=self._announce(update),
        )
        self._raise_refused(reply.word, reply.facts, state, epoch or 0, status.value)

    def _raise_refused(
        self, word: Word, facts: list[Any], state: TaskState, epoch: int, wanted: str
    ) -> None:
        if word is Word.LOST:
            raise LeaseLost(f"task {state.task_id!r}", epoch=epoch, current=int(facts[0]))
        if word is Word.DENIED:
            raise InvalidTransition(state.task_id, current=facts[0].decode(), wanted=wanted)
        if word is Word.MISSING:
            raise InvalidTransition(state.task_id, current="missing", wanted=wanted)

    def _announce(self, *updates: StateUpdate) -> Announcement:
        store = self._store.updates
        log = store.keys(updates[0].session_id)
        rows = [store.write(update) for update in updates]
        return Announcement(log, store.bounds.max_rows, store.bounds.ttl_ms, rows)

    def _keys(self, state: TaskState) -> TaskKeys:
        return self._store.tasks.keys(state.session_id, state.task_id)

    def _token_key(self, token: str) -> str:
        key = self._store.base.keys.session_token(token)
        if key is None:
            raise TokenUnknown(expired=False)
        return key

    async def _journal(self, keys: TaskKeys) -> dict[str, Any]:
        sender = self._store.transport.sender
        flat: list[bytes] = await sender.send("HGETALL", keys.journal, repeatable=True)
        notes = zip(flat[::2], flat[1::2], strict=True)
        return {name.decode(errors="surrogatepass"): codec.decode(note) for name, note in notes}


def watch_entry(session_id: str, task_id: str) -> bytes:
    """Name a task on the watch list."""
    return codec.encode(["task", session_id, task_id])


def status_update(state: TaskState, status: TaskStatus, **details: Any) -> StateUpdate:
    """Make the update that tells of a task's new state."""
    return StateUpdate(
        session_id=state.session_id,
        task_id=state.task_id,
        trace_id=state.trace_id,
        update_type=UpdateType.STATUS_CHANGE,
        content={"status": status.value, **details},
    )
