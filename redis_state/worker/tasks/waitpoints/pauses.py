"""Pauses are waitpoints: opening one, waiting for it and deciding it are three steps.

A running task opens a pause and gets its token. The holder of the token decides once, whether the
task waits for it already, not yet, or not now: see `deciding`. A waiting task has no worker.
"""

from __future__ import annotations

from typing import Any

from redis_state.models import StateUpdate, TaskState, TaskStatus, UpdateType
from redis_state.primitives.record import new_write_id
from redis_state.scripts import ReplyCode, TaskKeys
from redis_state.scripts.runner import PendingReply
from redis_state.serialization import codec
from redis_state.serialization.payloads import Payloads
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms
from redis_state.stores.sessions.task_fields import move_fields
from redis_state.transport.keys import pause_id_of
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.move_parts import announcement, raise_refused, status_update
from redis_state.worker.tasks.recorded.journal import state_of
from redis_state.worker.tasks.recorded.lanes import Lane
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.waitpoints.deciders import open_watched
from redis_state.worker.tasks.waitpoints.deciding import PauseDecisions, pause_left_ms
from redis_state.worker.tasks.waitpoints.pause_list import PauseList
from redis_state.worker.tasks.waitpoints.pause_model import (
    BY_TIMEOUT,
    PauseRequest,
    asks,
    decided_entry,
    pause_token,
    policy_of,
)
from redis_state.worker.tasks.waitpoints.pause_tokens import token_key


class TaskPauses:
    """Open pauses of a running task, and wait for them."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._scripts = store.base.scripts
        self._books = TaskBookkeeping(store)
        self._decisions = PauseDecisions(store)
        self._list = PauseList(store)
        self._keep_ms = ms(store.settings.resolved_token_ttl)

    async def open(
        self,
        started: StartedRun,
        entry: str,
        question: PauseRequest,
        lane: Lane | None = None,
        *,
        place: int = 0,
    ) -> dict[str, Any]:
        """Open a pause, once per entry of the journal; return what the journal notes of it.

        One step: the token, the note, and the CHECKPOINT update, which carries the pause's public
        id unless it is not to be revealed. The list of open pauses follows, before the task can
        wait: a crash in between has the task run again and come here again. Errors: LeaseLost,
        InvalidTransition.
        """
        state, payloads = started.state, self._payloads
        token = pause_token(started, entry)
        key = token_key(self._store, token)
        policy = question.policy()
        note = {
            "state": "open",
            "name": question.name,
            **policy,
            "asks": asks(question.reason, question.payload),
            "number": started.order.number(entry),
            "place": place,
        }
        about = {
            "name": question.name,
            "reason": question.reason,
            "payload": question.payload,
            **({"tags": question.tags} if question.tags else {}),
            **policy,
            "revealed": question.reveal,
            "number": note["number"],
            "place": place,
        }
        update = _checkpoint(state, question, token)

        def write(before_ms: int | None = None) -> PendingReply:
            return self._scripts.open_pause(
                self._keys(state),
                mark=started.replay.mark,
                token=key,
                entry=entry,
                note=payloads.document(note, "asks", *policy.keys() & {"default"}),
                owner=codec.encode([state.session_id, state.task_id, entry]),
                about=payloads.document(about, "reason", "payload", *policy.keys() & {"default"}),
                extra=question.token_fields(payloads),
                token_ttl_ms=question.timeout_ms,
                keep_ms=self._keep_ms,
                ttl_ms=self._store.tasks.ttl_ms(TaskStatus.RUNNING.value),
                announcement=announcement(self._store, update, run=started.held.epoch),
                before=before_ms,
                lane=state_of(lane),
            )

        escalates = question.ballot is not None and question.ballot.escalate
        pause_id = pause_id_of(token) if escalates else None
        reply = await (write() if pause_id is None else open_watched(self._store, pause_id, write))
        raise_refused(reply, state, run=started.replay, wanted="PAUSED")
        started.replay.learn(reply, 2, entry, what=state.task_id)
        recorded, left_ms, _, opened = reply.facts
        if left_ms and not question.timer:
            await self._list.add(key, opened_ms=int(opened), left_ms=int(left_ms))
        return self._readable(state, entry, payloads.as_object(recorded))

    async def wait(self, started: StartedRun, entry: str) -> dict[str, Any] | None:
        """Pause the task until an open pause is resolved, and return None; or return the decision.

        One step: the status, the released lease and the update. None of it happens if the pause is
        decided or overdue by then. The watch list has the task before, with a check soon and not at
        the pause's deadline: the worker may die before it is paused. Errors: LeaseLost,
        InvalidTransition.
        """
        state = started.state
        key = token_key(self._store, pause_token(started, entry))
        await self._books.inspect_soon(state.session_id, state.task_id)
        write = new_write_id()
        reply = await self._scripts.pause_task(
            self._keys(state),
            move_fields(TaskStatus.PAUSED) | started.waiting_fields(),
            mark=started.replay.mark,
            token=key,
            entry=entry,
            write=write,
            ttl_ms=self._store.tasks.ttl_ms(TaskStatus.PAUSED.value),
            announcement=announcement(
                self._store, status_update(state, TaskStatus.PAUSED), run=started.held.epoch
            ),
        )
        if reply.word is ReplyCode.TAKEN:
            decided = await self._decisions.decided(state, entry, reply)
            return self._readable(state, entry, decided)
        if reply.word in (ReplyCode.EXPIRED, ReplyCode.MISSING):
            found = await self._decide_overdue(started, entry, key)
            # Or the server's clock was set back.
            return await self.wait(started, entry) if isinstance(found, int) else found
        raise_refused(reply, state, run=started.replay, wanted="PAUSED")
        version = int(reply.facts[0])
        self._books.record_move(state, TaskStatus.PAUSED, version=version, write=write)
        return None

    async def look(self, started: StartedRun, entry: str) -> tuple[dict[str, Any] | None, float]:
        """Return the decision of an open pause, and 0; or None, and its seconds left.

        The run continues. Errors: LeaseLost, InvalidTransition.
        """
        key = token_key(self._store, pause_token(started, entry))
        found = await self._decide_overdue(started, entry, key)
        if not isinstance(found, int):
            return found, 0.0
        # The server's clock may have been set back since it was opened.
        digest = key.rpartition(":")[2]
        return None, await pause_left_ms(self._store, started.state.session_id, digest) / 1000

    async def _decide_overdue(
        self, started: StartedRun, entry: str, key: str
    ) -> dict[str, Any] | int:
        """Decide what nobody decided in time; return its ms left if its time is not up."""
        state = started.state
        note = await self._decisions.note(state, entry)
        if note.get("state") == "decided":
            return self._readable(state, entry, note)
        mark = started.replay.mark
        reply = await self._decisions.time_out(state, entry, key, note, mark=mark)
        if reply.word is ReplyCode.TAKEN:
            decided = await self._decisions.decided(state, entry, reply)
            return self._readable(state, entry, decided)
        if reply.word is ReplyCode.HELD:
            return int(reply.facts[0])
        raise_refused(reply, state, run=started.replay, wanted="PAUSED")
        self._decisions.unlist(key)
        # With the votes that came in time; the script has added them.
        recorded = await self._decisions.note(state, entry)
        return recorded or decided_entry(policy_of(note), actor=BY_TIMEOUT)

    def _readable(self, state: TaskState, entry: str, note: dict[str, Any]) -> dict[str, Any]:
        """Return a note that the handler gets. Errors: PayloadUnreadable, which hands it back."""
        self._payloads.need_within(note, of=f"task {state.task_id!r}", field=entry)
        return note

    def _keys(self, state: TaskState) -> TaskKeys:
        return self._store.tasks.keys(state.session_id, state.task_id)

    @property
    def _payloads(self) -> Payloads:
        return self._store.base.payloads


def _checkpoint(state: TaskState, question: PauseRequest, token: str) -> StateUpdate:
    content: dict[str, Any] = {"reason": question.reason, "payload": question.payload}
    content |= {"pause": question.name, "tags": question.tags}
    content |= question.report()
    if question.reveal:
        content["pause_id"] = pause_id_of(token)
    return StateUpdate(
        session_id=state.session_id,
        task_id=state.task_id,
        trace_id=state.trace_id,
        update_type=UpdateType.CHECKPOINT,
        content=content,
    )
