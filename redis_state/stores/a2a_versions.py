"""Tasks of A2A servers, in versions: compare-and-set, events, lists. What they hold is opaque here.

One owner's tasks share a slot. Writing a version is one step: the task, its places in the list, its
event and its owner's lease. The event's number in the task's log is the version.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from redis_state.errors import (
    InvalidField,
    InvalidTransition,
    LeaseLost,
    VersionConflict,
)
from redis_state.primitives.lease import new_owner
from redis_state.primitives.log import Bounds, Log
from redis_state.scripts import A2AVersionKeys, ReplyCode
from redis_state.stores.a2a_push import A2AConfigs
from redis_state.stores.base import Base, ms
from redis_state.transport.keys import escape

# Every time that a protobuf timestamp can hold is a number of so many digits after this.
_SHIFT_NS = 10**29
_DIGITS = 30
_TIMELESS = "0" + "0" * _DIGITS
_TRIES = 1000
_PATIENT_TRIES = 3


class Phase(StrEnum):
    """What a task's state means for whoever waits for it."""

    OPEN = "o"
    WAITING = "w"
    ENDED = "e"
    GONE = "g"


@dataclass(frozen=True, slots=True)
class A2ALimits:
    """How much is kept of a task and of its events, and when its owner is taken for dead."""

    max_bytes: int = 8 << 20
    max_events: int = 1000
    max_configs: int = 100
    tombstone_ms: int = 24 * 3600 * 1000
    lease_ms: int = 15_000


@dataclass(frozen=True, slots=True)
class Ref:
    """Which task: its owner's scope and its id."""

    scope: str
    task_id: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A task to be written, and the event that tells of it (empty: none)."""

    state: str
    phase: Phase
    context: str
    when_ns: int | None
    body: bytes = field(repr=False)
    event: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class VersionStamp:
    """A version of a task: its number and when it was written. Both make its place in the log."""

    n: int
    at_ms: int

    @property
    def cursor(self) -> str:
        """The cursor that reads the events after this version."""
        return f"{self.n}-{self.at_ms}"

    def is_at(self, cursor: str) -> bool:
        """Return whether a cursor is after this version; one without a time is only a number."""
        return cursor in {self.cursor, f"{self.n}-0"}


@dataclass(frozen=True, slots=True)
class VersionedTask:
    """A task as it was read. ``owner`` is who works on it, ``left_ms`` of its lease.

    ``unannounced`` if it was ended because nobody worked on it, and that is still to be announced.
    """

    version: VersionStamp
    state: str
    phase: Phase
    owner: str
    epoch: int
    left_ms: int
    body: bytes = field(repr=False)
    unannounced: bool = False

    @property
    def is_orphan(self) -> bool:
        """Whether it is worked on by somebody who was not heard of for the length of a lease."""
        return self.phase is Phase.OPEN and self.owner != "" and self.left_ms <= 0


@dataclass(frozen=True, slots=True)
class ListRequest:
    """Which tasks to list, newest first. ``after`` is the place of the last one of a page."""

    context: str | None = None
    state: str | None = None
    since_ns: int | None = None
    after: str = ""
    size: int = 50


@dataclass(frozen=True, slots=True)
class Listed:
    """A page: the tasks' bodies, the place to go on after (empty: at the end), how many in all."""

    bodies: list[bytes]
    after: str
    total: int


@dataclass(frozen=True, slots=True)
class Rule:
    """What must hold for a write."""

    rule: str

    @classmethod
    def at(cls, version: VersionStamp) -> Rule:
        """Require the task to be at this version: its number, and when it was written.

        Of a version without a time the number is compared alone; 0 is absent.
        """
        return cls(f"{version.n} {version.at_ms}" if version.at_ms else str(version.n))

    @property
    def number(self) -> int:
        """The number of the version that the task must have."""
        return int(self.rule.partition(" ")[0])


UNLESS_ENDED = Rule("open")
UNLESS_REVIVED = Rule("any")


class A2ATasks:
    """Write, read, list and delete tasks. No call but `told` waits for more than one step."""

    def __init__(self, base: Base, limits: A2ALimits) -> None:
        self.base: Base = base
        self.limits: A2ALimits = limits
        self.configs: A2AConfigs = A2AConfigs(base, most=limits.max_configs)
        self._active_ms = ms(base.settings.active_task_ttl)
        self._finished_ms = ms(base.settings.finished_task_ttl)

    @property
    def keep_ms(self) -> int:
        """How long an epoch is remembered: as long as an active task lives."""
        return self._active_ms

    @property
    def keep_ended_ms(self) -> int:
        """How long a task lives that has ended."""
        return self._finished_ms

    def keys(self, ref: Ref) -> A2AVersionKeys:
        """Return a task's keys."""
        keys = self.base.keys
        return A2AVersionKeys(
            ref.task_id,
            keys.a2a_version(ref.scope, ref.task_id),
            keys.a2a_version_books(ref.scope),
            keys.a2a_version_events(ref.scope, ref.task_id),
            keys.a2a_version_lease(ref.scope, ref.task_id),
            keys.a2a_version_configs(ref.scope, ref.task_id),
        )

    def log(self, ref: Ref) -> Log:
        """Give the log of a task's events."""
        bounds = Bounds(self.limits.max_events, self._active_ms)
        return Log(self.base.scripts, self.keys(ref).events, bounds, announce=True)

    async def write(
        self, ref: Ref, draft: Draft, rule: Rule, *, write: str, owner: str = ""
    ) -> tuple[VersionStamp, int] | None:
        """Write a version; return it and the lease's epoch. None: there is no such task.

        ``owner`` takes the lease of a task that is worked on; any other phase gives it back.
        Errors: VersionConflict; InvalidTransition for a task that has ended or was deleted;
        InvalidField for what is too large. Nothing is written then.
        """
        self._check_size(draft)
        return await self._write(ref, draft, rule, write=write, owner=owner)

    async def end(
        self, ref: Ref, draft: Draft, found: VersionedTask, *, fenced: bool, announce: bool
    ) -> None:
        """End a task that nobody works on any more, as it was found.

        It is written by nobody, so that an agent that still works on it hears of it on any server,
        and is never too large: what is added is little. ``fenced`` if its lease must have run out,
        ``announce`` to note in the same step that the end is to be announced. Errors: LostRace when
        it was written or renewed since; nothing is written then.
        """
        epoch = found.epoch if fenced else None
        rule = Rule.at(found.version)
        write = new_write(new_owner())
        await self._write(ref, draft, rule, write=write, dead_epoch=epoch, announce=announce)

    async def _write(
        self,
        ref: Ref,
        draft: Draft,
        rule: Rule,
        *,
        write: str,
        owner: str = "",
        dead_epoch: int | None = None,
        announce: bool = False,
    ) -> tuple[VersionStamp, int] | None:
        ttl_ms = self._finished_ms if draft.phase is Phase.ENDED else self._active_ms
        reply = await self.base.scripts.write_a2a_version(
            self.keys(ref),
            rule=rule.rule,
            write=write,
            row=draft.phase.encode() + draft.event,
            state=draft.state,
            phase=draft.phase,
            place=_place(draft),
            body=draft.body,
            ttl_ms=ttl_ms,
            max_rows=self.limits.max_events,
            owner=owner if draft.phase is Phase.OPEN else "",
            lease_ms=self.limits.lease_ms,
            keep_ms=ttl_ms,
            epoch=dead_epoch,
            announce=announce,
        )
        if reply.word is ReplyCode.MISSING:
            return None
        if reply.word is ReplyCode.STALE:
            what = f"task {ref.task_id!r}"
            raise VersionConflict(what, expected=rule.number, actual=int(reply.facts[0]))
        if reply.word is ReplyCode.DENIED:
            raise InvalidTransition(ref.task_id, current=reply.text(0), wanted=draft.state)
        if reply.word is ReplyCode.HELD:
            current = int(reply.facts[0])
            raise LeaseLost(f"task {ref.task_id!r}", epoch=dead_epoch or 0, current=current)
        version, at_ms, epoch = map(int, reply.facts)
        return VersionStamp(version, at_ms), epoch

    async def tell(self, ref: Ref, event: bytes, *, write: str) -> VersionStamp | None:
        """Append an event that does not change the task, under a version of its own.

        None if there is no such task. Errors: InvalidTransition once it has ended.
        """
        draft = Draft("", Phase.OPEN, "", None, b"", event)
        written = await self.write(ref, draft, Rule("told"), write=write)
        return written[0] if written else None

    async def read(self, ref: Ref) -> VersionedTask | None:
        """Return the task, or None. One that was deleted is in phase GONE for a while."""
        reply = await self.base.scripts.read_a2a_version(self.keys(ref))
        if reply.word is ReplyCode.MISSING:
            return None
        n, at_ms, _, _, _, epoch, left_ms, body, announce = reply.facts
        return VersionedTask(
            VersionStamp(int(n), int(at_ms)),
            reply.text(2),
            Phase(reply.text(3)),
            reply.text(4),
            int(epoch),
            int(left_ms),
            body,
            unannounced=bool(announce),
        )

    async def announced(self, ref: Ref) -> None:
        """Record that the end of a task was announced."""
        await self.base.scripts.hdel(self.keys(ref).task, "announce")

    async def drop(self, ref: Ref, *, write: str) -> bool:
        """Delete a task with its push configurations; return whether there was one.

        Who watches it is told.
        """
        reply = await self.base.scripts.drop_a2a_version(
            self.keys(ref), write=write, ttl_ms=self.limits.tombstone_ms
        )
        return reply.word is ReplyCode.OK

    async def list(self, scope: str, asked: ListRequest) -> Listed:
        """Return a page and count all that are asked for, as of one moment.

        The order is by time in nanoseconds, then by id, both descending; tasks without a time come
        last. A place to go on after needs no task at it. What changes while a reader pages moves.
        Of an owner whose tasks change all the time, those may be left out that came to this page
        while it was read.
        """
        books = self.base.keys.a2a_version_books(scope)
        context = "*" if asked.context is None else escape("context_id", asked.context)
        prefix = f"{context}|{asked.state or '*'}|".encode()
        since = b"0" if asked.since_ns is None else _time(asked.since_ns).encode()
        known: Sequence[bytes] = ()
        # The tasks' keys must be known to the call that reads them.
        for attempt in range(_TRIES):
            reply = await self.base.scripts.list_a2a_versions(
                books,
                [
                    self.base.keys.a2a_version(scope, task_id.decode("utf-8", "surrogatepass"))
                    for task_id in known
                ],
                asked=prefix,
                since=since,
                after=asked.after.encode("utf-8", "surrogatepass"),
                size=asked.size,
                settle=attempt > _PATIENT_TRIES,
                known=known,
            )
            if reply.word is ReplyCode.OK:
                total, more, *tasks = reply.facts
                last: bytes = tasks[-1][0] if tasks and more else b""
                after = last.decode("utf-8", "surrogatepass")
                return Listed([task[3] for task in tasks], after, int(total))
            known = reply.facts
        raise VersionConflict(f"the list of {scope}", expected=0, actual=_TRIES)

    def _check_size(self, draft: Draft) -> None:
        for name, part in (("task", draft.body), ("event", draft.event)):
            if len(part) > self.limits.max_bytes:
                allowed = self.limits.max_bytes
                raise InvalidField(name, f"{len(part)} bytes, {allowed} are allowed")


def place_of(when_ns: int | None, task_id: str) -> str:
    """Write where a task stands in a list."""
    return (_TIMELESS if when_ns is None else _time(when_ns)) + task_id


def is_place(text: Any) -> bool:
    """Return whether a text can be a task's place."""
    return isinstance(text, str) and len(text) > _DIGITS and text[: _DIGITS + 1].isdecimal()


def new_write(owner: str) -> str:
    """Return a new id for one call of an owner."""
    return f"{owner}.{secrets.token_urlsafe(9)}"


def _place(draft: Draft) -> bytes:
    time = _TIMELESS if draft.when_ns is None else _time(draft.when_ns)
    return f"{escape('context_id', draft.context)} {draft.state} {time}".encode()


def _time(ns: int) -> str:
    return f"1{ns + _SHIFT_NS:0{_DIGITS}d}"
