"""Decide pauses: by a person, by a caller with a token, or by the policy once the time is up.

A missed deadline is a decision too, by the pause's policy: one more claim on the same token. So an
approval, a rejection and the deadline in one millisecond give one answer. A decision makes a task
that waits PENDING in the same step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from redis_state import limits
from redis_state.errors import CorruptState, InvalidTransition, TokenUnknown
from redis_state.models import StateUpdate, TaskState, TaskStatus
from redis_state.primitives.token import new_claim, raise_unless_won
from redis_state.scripts import Reply, ReplyCode, TaskKeys, raw
from redis_state.serialization import codec
from redis_state.serialization.fields import text
from redis_state.serialization.payloads import Payloads
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms
from redis_state.stores.sessions.task_fields import move_fields
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.stores.sessions.updates import NewUpdate
from redis_state.transport.clock import ms_of
from redis_state.transport.commands import Commands
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.move_parts import announcement, status_update
from redis_state.worker.tasks.waitpoints.ballots import raise_unless_voted, vote_of
from redis_state.worker.tasks.waitpoints.forms import check_value, form_value
from redis_state.worker.tasks.waitpoints.pause_list import PauseList
from redis_state.worker.tasks.waitpoints.pause_model import (
    BY_TIMEOUT,
    asks_of,
    decided_entry,
    entry_name,
    name_of,
    notice,
    number_of,
    place_of,
    policy_of,
)
from redis_state.worker.tasks.waitpoints.pause_tokens import (
    FoundPause,
    find_pause,
    token_key_of,
    token_member,
)


@dataclass(frozen=True, slots=True)
class Decided:
    """A pause that was decided, or voted on: of which task.

    ``found`` is the task as the step that decided has left it, None if that does not say it.
    """

    session_id: str
    task_id: str
    found: TaskStatusView | None = field(default=None, compare=False)


class PauseDecisions:
    """Decide pauses of any task."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._scripts = store.base.scripts
        self._books = TaskBookkeeping(store)
        self._list = PauseList(store)
        self._keep_ms = ms(store.settings.resolved_token_ttl)

    async def decide(
        self,
        token: str,
        *,
        approved: bool,
        value: Any,
        actor: str,
        idempotency_key: str | None = None,
        session_id: str | None = None,
        task_id: str | None = None,
        before: Callable[[], Awaitable[object]] | None = None,
    ) -> Decided:
        """Decide a pause, once, and make its task PENDING if it waits for it, in one step.

        ``token`` is the token or the pause's id, which decides only revealed pauses. The same
        ``idempotency_key`` repeated with the same decision gets the same answer. The pause must
        belong to the session and the task, if they are given. ``before`` is called once the value
        has been checked. The watch list has the task before: a crash afterwards leaves it PENDING,
        known and not queued.

        Errors: InvalidDecision if an approval's value does not fit the pause's form: nothing was
        written; TokenResolved for every later caller; TokenUnknown; InvalidTransition if the task
        is terminal.
        """
        text("actor", actor)
        found = await find_pause(self._store, token, session_id=session_id, task_id=task_id)
        schema = found.schema(self._payloads)
        value = codec.plain(value) if schema is None else form_value(value)
        if schema is not None and approved and found.is_open:
            check_value(schema, value)
        if before is not None:
            await before()
        state = await self._read_and_list(found)
        if state is None:
            raise TokenUnknown(expired=True)
        claim = limits.own_id("idempotency_key", idempotency_key) or new_claim()
        decision = {"approved": approved, "value": value}
        reply = await self._decide(
            state,
            found.entry,
            found.key,
            decision,
            recorded={
                "name": name_of(found.entry, found.about),
                "asks": asks_of(self._payloads, found.about),
                "number": number_of(found.about),
                "place": place_of(found.about),
            },
            actor=actor,
            claim=claim,
            votes=found.votes,
        )
        if reply.word in (ReplyCode.TAKEN, ReplyCode.REFUSED) and await self._is_repeated(
            found,
            decision,
            actor=actor,
            # The same vote is one vote while the pause is open, whatever its claim.
            claim=claim if reply.word is ReplyCode.TAKEN else None,
        ):
            return Decided(found.session_id, found.task_id)
        if reply.word is ReplyCode.DENIED:
            raise InvalidTransition(found.task_id, current=reply.text(0), wanted="PENDING")
        if reply.word is ReplyCode.REFUSED:
            raise_unless_voted(actor, reply.text(0))
        if reply.word is ReplyCode.COUNTED:
            return Decided(found.session_id, found.task_id)
        raise_unless_won(reply, self._payloads.decode)
        self.unlist(found.key)
        looked, view = reply.facts[2], None
        # The decision stands. A look at the task reports what is damaged.
        with suppress(CorruptState):
            view = looked and self._store.tasks.looked(found.session_id, found.task_id, looked)
        return Decided(found.session_id, found.task_id, view or None)

    async def _read_and_list(self, found: FoundPause) -> TaskState | None:
        """Read the task of a pause, and have a sweeper inspect it soon if the pause is open.

        Both leave together. A task that is terminal or gone then has an entry, and a sweeper drops
        it.
        """
        loading = self._store.tasks.load(found.session_id, found.task_id)
        if not found.is_open:
            return await loading
        inspected = self._books.inspect_soon(found.session_id, found.task_id)
        state, _ = await asyncio.gather(loading, inspected)
        return state

    async def expire(self, session_id: str, task_id: str) -> int | None:
        """See `expire_pauses`."""
        record = await self._store.tasks.load_fields(session_id, task_id)
        if record is None or record.fields["status"] != TaskStatus.PAUSED.value.encode():
            return None
        digest = record.fields.get("pause_token", b"").decode()
        entry = record.fields.get("pause_entry", b"").decode("utf-8", "surrogatepass")
        if not digest:
            # A host's own task.
            return None
        key = token_key_of(self._store, session_id, digest)
        left_ms = await pause_left_ms(self._store, session_id, digest)
        if left_ms > 0:
            return left_ms
        state = await self._store.tasks.load(session_id, task_id)
        if state is None:
            return None
        await self._books.inspect_soon(state.session_id, state.task_id)
        reply = await self.time_out(state, entry, key, await self.note(state, entry))
        if reply.word is ReplyCode.HELD:
            return int(reply.facts[0])
        self.unlist(key)
        return None

    async def decided(self, state: TaskState, entry: str, reply: Reply) -> dict[str, Any]:
        """Return the note of a decision, with its votes; what its token has if that is lost."""
        note = await self.note(state, entry)
        if note.get("state") == "decided":
            return note
        return decided_entry(self._payloads.decode(reply.facts[2]), actor=reply.text(0))

    async def time_out(
        self,
        state: TaskState,
        entry: str,
        key: str,
        note: dict[str, Any],
        *,
        mark: bytes = b"",
    ) -> Reply:
        """Decide an overdue pause by the policy that its note names. HELD if its time is not up."""
        return await self._decide(
            state,
            entry,
            key,
            policy_of(note),
            recorded={
                "name": note.get("name", entry_name(entry)),
                "asks": note.get("asks"),
                "number": note.get("number"),
                "place": note.get("place", 0),
            },
            actor=BY_TIMEOUT,
            claim=BY_TIMEOUT,
            overdue=True,
            mark=mark,
        )

    def unlist(self, key: str) -> None:
        """Remove a decided pause from the list of open ones, without waiting for it.

        Readers of the list remove entries that are not open any more.
        """
        self._list.begin_remove(key)

    async def note(self, state: TaskState, entry: str) -> dict[str, Any]:
        """Return what the journal notes of a pause; nothing if that cannot be read."""
        recorded: bytes | None = await self._commands.hget(self._keys(state).journal, raw(entry))
        with suppress(codec.DecodeError):
            return self._payloads.as_object(recorded or b"")
        return {}

    async def _decide(
        self,
        state: TaskState,
        entry: str,
        key: str,
        decision: dict[str, Any],
        *,
        recorded: dict[str, Any],
        actor: str,
        claim: str,
        overdue: bool = False,
        mark: bytes = b"",
        votes: bool = False,
    ) -> Reply:
        content = {"pause": recorded["name"], "approved": decision["approved"], "actor": actor}
        if overdue:
            content["timed_out"] = True
        updates: list[StateUpdate | NewUpdate] = [
            status_update(state, TaskStatus.PENDING, **content)
        ]
        updates.append(notice(state, content))
        if votes:
            voted = {"pause": recorded["name"], "voted": decision["approved"], "actor": actor}
            updates.append(notice(state, voted))
        return await self._scripts.decide_pause(
            self._keys(state),
            move_fields(TaskStatus.PENDING),
            token=key,
            entry=entry,
            claim=claim,
            actor=actor,
            # Alike for everything that is stored alike: a claim is bound to its decision.
            decision=self._payloads.document(decision, "value", write=codec.canonical),
            approves=bool(decision["approved"]),
            vote=vote_of(self._payloads, actor, decision) if votes else b"",
            note=self._payloads.document(
                decided_entry(decision, actor=actor) | recorded, "value", "asks"
            ),
            keep_ms=self._keep_ms,
            ttl_ms=self._store.tasks.ttl_ms(TaskStatus.PENDING.value),
            announcement=announcement(self._store, *updates),
            overdue=overdue,
            mark=mark,
        )

    async def _is_repeated(
        self, found: FoundPause, decision: dict[str, Any], *, actor: str, claim: str | None
    ) -> bool:
        """Return whether a refused call is one that has won, sealed as another text.

        With a ``claim`` it is that one's. The script compares what is stored. A sealed value is
        another text each time, so it is compared here: what the token has does not change any more.
        """
        if not self._payloads.seals:
            return False
        names = ("claim", "decision")
        if found.votes:
            names = (f"claim:{actor}", f"vote:{actor}")
        held = await self._commands.hmget(found.key, *names)
        if held[1] is None or (claim is not None and held[0] != raw(claim)):
            return False
        with suppress(codec.DecodeError):
            stored = self._payloads.as_object(held[1])
            stored.pop("actor", None)
            return codec.canonical(stored) == codec.canonical(decision)
        return False

    def _keys(self, state: TaskState) -> TaskKeys:
        return self._store.tasks.keys(state.session_id, state.task_id)

    @property
    def _payloads(self) -> Payloads:
        return self._store.base.payloads

    @property
    def _commands(self) -> Commands:
        return self._store.transport.commands


async def pause_left_ms(store: RedisStateStore, session_id: str, digest: str) -> int:
    """Return for how long a pause of the session may still be decided, 0 if no longer.

    It is never longer than the pause's length, also if the server's clock was set back. Errors:
    CorruptState.
    """
    key, tasks = token_key_of(store, session_id, digest), store.base.keys.tasks(session_id)
    reply = await store.base.scripts.pause_left(key, tasks=tasks)
    return int(reply.facts[0])


async def is_overdue(store: RedisStateStore, session_id: str, digest: str) -> bool:
    """Return whether a pause should have ended by the list of its session, whatever its token has.

    One that is not in the list has ended.
    """
    commands = store.transport.commands
    member = token_member(digest)
    listed = await commands.zscore(store.base.keys.tasks(session_id), member)
    return listed is None or -float(listed) <= ms_of(await commands.time())


async def expire_pauses(store: RedisStateStore, session_id: str, task_id: str) -> int | None:
    """Decide by its policy the pause that a PAUSED task waits for, if nobody did in time.

    Returns the milliseconds until its deadline, which is when to look again; None if the task does
    not wait for a pause, or no longer: read it again, it may be PENDING now and is not queued.

    One step, the same claim from everybody: any number of callers at once decide once, and one
    that comes against an approval or a rejection decides nothing. A crash before the step leaves
    the task PAUSED and overdue; a crash after it leaves the task PENDING and not queued. In both
    cases the watch list has it, due in 2 seconds: it is put there before the step. Errors:
    BackendError.
    """
    return await PauseDecisions(store).expire(session_id, task_id)
