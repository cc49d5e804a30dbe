"""Tasks of A2A servers: versions, events, lists. What they hold is opaque here.

All tasks of a scope share a slot. A write is one step: the task's fields, its places in the list,
its event and its owner's lease. The event's number in the task's log is the version.

Three hosts use it. Tasks of the A2A SDK have versions, an owner's lease and a tombstone. Those of
PenguiFlow have no lease; messages and artifacts are appended. Those of a task state manager have
event ids.
"""

from __future__ import annotations

import secrets

from redis_state.errors import (
    CorruptState,
    InvalidField,
    InvalidTransition,
    LeaseLost,
    VersionConflict,
)
from redis_state.primitives.lease import new_owner
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.scripts import Reply, ReplyCode, raw
from redis_state.stores.a2a.push_configs import PushConfigs
from redis_state.stores.a2a.task_model import (
    DIGITS,
    UNLESS_ENDED,
    A2ALimits,
    Draft,
    Listed,
    ListRequest,
    Phase,
    Ref,
    Rule,
    VersionedTask,
    VersionStamp,
    Written,
    place_in_time,
)
from redis_state.stores.base import Base
from redis_state.transport.key_groups import A2AKeys
from redis_state.transport.key_text import escape
from redis_state.transport.keys import a2a_keys

_TRIES = 1000
_PATIENT_TRIES = 3
# A page ends at so many bytes: the replies to other calls wait behind its tasks.
_PAGE_BYTES = 1 << 22


class A2ATasks:
    """Write, read, list and delete tasks. No call but `list` waits for more than one step."""

    def __init__(self, base: Base, limits: A2ALimits) -> None:
        self.base: Base = base
        self.limits: A2ALimits = limits
        self.configs: PushConfigs = PushConfigs(
            base, most=limits.max_configs, ttl_ms=limits.active_ms
        )

    def keys(self, ref: Ref) -> A2AKeys:
        """Return a task's keys."""
        return a2a_keys(self.base.keys, ref.scope, ref.task_id)

    def log(self, ref: Ref, *, named: bool = False) -> Log:
        """Return the log of a task's events. Each row begins with its phase."""
        bounds = Bounds(self.limits.max_events, self.limits.active_ms)
        keys = self.base.keys.a2a_events(ref.scope, ref.task_id)
        return Log(self.base.scripts, keys, bounds, announce=True, named=named)

    async def write(
        self,
        ref: Ref,
        draft: Draft,
        rule: Rule,
        *,
        write: str | bytes,
        owner: str = "",
        announce: bool = False,
    ) -> Written | None:
        """Write a task once per ``write``. None: there is no such task. Atomic.

        ``owner`` takes the lease of a task that is worked on; any other phase gives it back. With
        ``announce`` it is recorded that the end must be announced, and the owner has the lease for
        that.
        Errors: VersionConflict; InvalidTransition for a task that has ended or was deleted;
        InvalidField for what is too large. Nothing is written then.
        """
        self._check_size(draft)
        return await self._write(ref, draft, rule, write=write, owner=owner, announce=announce)

    async def end(
        self, ref: Ref, draft: Draft, found: VersionedTask, *, fenced: bool, announce: bool
    ) -> None:
        """End a task whose server is gone, as it was found.

        It is written under no server's name, so that an agent that still works on it learns of the
        end on any server. It is never too large: little is added. ``fenced`` if its lease must have
        expired, ``announce`` to record in the same step that the end must be announced. Errors:
        LostRace when it was written or renewed since; nothing is written then.
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
        write: str | bytes,
        owner: str = "",
        dead_epoch: int | None = None,
        announce: bool = False,
    ) -> Written | None:
        limits = self.limits
        ttl_ms = limits.finished_ms if draft.phase is Phase.ENDED else limits.active_ms
        if not draft.state:
            owner = "-"
        elif draft.phase is not Phase.OPEN and not announce:
            owner = ""
        reply = await self.base.scripts.write_a2a_task(
            self.keys(ref),
            draft.fields,
            rule=rule.rule,
            write=raw(write) if isinstance(write, str) else write,
            row=b"" if draft.event is None else draft.phase.encode() + draft.event,
            state=draft.state,
            phase=draft.phase,
            place=draft.listing.bytes,
            ttl_ms=ttl_ms,
            max_rows=max(limits.max_events, 0),
            owner=owner,
            lease_ms=limits.lease_ms,
            keep_ms=ttl_ms,
            epoch=dead_epoch,
            announce=announce,
            messages=draft.history,
            parts=draft.artifacts,
        )
        if reply.word is ReplyCode.MISSING:
            return None
        if reply.word is ReplyCode.STALE:
            what = f"task {ref.task_id!r}"
            raise VersionConflict(what, expected=rule.number, actual=max(int(reply.facts[0]), 0))
        if reply.word is ReplyCode.DENIED:
            raise InvalidTransition(ref.task_id, current=reply.text(0), wanted=draft.state)
        if reply.word is ReplyCode.HELD:
            current = int(reply.facts[0])
            raise LeaseLost(f"task {ref.task_id!r}", epoch=dead_epoch or 0, current=current)
        version, at_ms, epoch, *before = reply.facts
        return Written(VersionStamp(int(version), int(at_ms)), int(epoch), *(b[1:] for b in before))

    async def publish(self, ref: Ref, event: bytes, *, write: str) -> VersionStamp | None:
        """Append an event that does not change the task, under a version of its own.

        None if there is no such task. Errors: InvalidTransition once it has ended.
        """
        written = await self.write(ref, Draft(event=event), UNLESS_ENDED, write=write)
        return written.version if written else None

    async def read(
        self, ref: Ref, *, messages: int = 0, artifacts: bool = False
    ) -> VersionedTask | None:
        """Return the task as it stands at one moment, or None.

        With the newest ``messages`` of its history, -1 for all, and with its artifacts. One that
        was deleted is in phase GONE for a while.
        """
        reply = await self.base.scripts.read_a2a_task(
            self.keys(ref), messages=messages, whole=artifacts
        )
        return None if reply.word is ReplyCode.MISSING else self._read(ref, reply)

    def _read(self, ref: Ref, reply: Reply) -> VersionedTask:
        _, epoch, left_ms, history, artifacts, flat = reply.facts
        fields = {
            name.decode("utf-8", "surrogatepass"): value
            for name, value in zip(flat[::2], flat[1::2], strict=True)
        }
        try:
            return VersionedTask(
                version=VersionStamp(int(fields.get("version", 0)), int(fields.get("at", 0))),
                state=fields["state"].decode("utf-8", "surrogatepass"),
                phase=Phase(fields["phase"].decode()),
                owner=reply.text(0),
                epoch=int(epoch),
                left_ms=int(left_ms),
                fields=fields,
                history=history,
                artifacts=artifacts,
            )
        except (KeyError, ValueError) as error:
            problem = f"not an A2A task: {type(error).__name__}"
            raise CorruptState(self.keys(ref).task, problem) from None

    async def announced(self, ref: Ref) -> None:
        """Record that the end of a task was announced."""
        await self.base.scripts.hdel(self.keys(ref).task, "announce")

    async def name_stream(self, ref: Ref, stream: str) -> bool:
        """Set the field ``stream`` of a task; return False if there is no such task."""
        reply = await self.base.scripts.name_a2a_stream(self.keys(ref), stream=stream)
        return reply.word is ReplyCode.OK

    async def drop(self, ref: Ref, *, write: str, before_us: int | None = None) -> ReplyCode:
        """Delete a task with its push configurations: OK, MISSING, or STALE.

        STALE if it has not ended before ``before_us``; then nothing is deleted. With a tombstone
        its watchers receive the end.
        """
        reply = await self.base.scripts.drop_a2a_task(
            self.keys(ref),
            write=write,
            before_us=before_us,
            tombstone_ms=self.limits.tombstone_ms,
        )
        return reply.word

    async def listed_before(
        self, scope: str, state: str, before_us: int, *, limit: int
    ) -> list[str]:
        """Return the ids of the oldest tasks listed under a state before a time, oldest first."""
        prefix = f"*|{escape('state', state)}|"
        commands, index = self.base.scripts.transport.commands, self.base.keys.a2a_books(scope)
        low, high = f"[{prefix}", f"({prefix}{place_in_time(before_us * 1000)}"
        members: list[bytes] = await commands.zrange_by_lex(index.index, low, high, limit)
        skip = len(prefix) + 1 + DIGITS
        return [member[skip:].decode("utf-8", "surrogatepass") for member in members]

    async def list(self, scope: str, request: ListRequest) -> Listed:
        """Return a page and count all that match, as of one moment.

        The order is by time in nanoseconds, then by id, both descending; tasks without a time come
        last. A place to read on after needs no task at it. What changes while a reader pages moves.
        Of a scope whose tasks change all the time, those may be left out that came to this page
        while it was read.
        """
        books = self.base.keys.a2a_books(scope)
        context = "*" if request.context is None else escape("context_id", request.context)
        state = "*" if request.state is None else escape("state", request.state)
        since = b"0" if request.since_ns is None else place_in_time(request.since_ns).encode()
        known: list[bytes] = []
        attempt = 0
        # The tasks' keys must be known to the call that reads them.
        while attempt < _TRIES:
            reply = await self.base.scripts.list_a2a_tasks(
                books,
                [
                    self.base.keys.a2a_task(scope, task_id.decode("utf-8", "surrogatepass"))
                    for task_id in known
                ],
                prefix=f"{context}|{state}|".encode(),
                since=since,
                after=request.after.encode("utf-8", "surrogatepass"),
                size=request.size,
                most_bytes=_PAGE_BYTES,
                whole=request.whole,
                settle=attempt > _PATIENT_TRIES,
                known=known,
            )
            if reply.word is ReplyCode.OK:
                total, others, more, *tasks = reply.facts
                places = [task[0].decode("utf-8", "surrogatepass") for task in tasks]
                return Listed(
                    ids=[place[DIGITS + 1 :] for place in places],
                    bodies=[task[3] for task in tasks] if request.whole else [],
                    after=(places[-1] if places else request.after) if more else "",
                    total=int(total),
                    others=int(others),
                )
            # The same again: expired tasks were taken out. There may be any number of those.
            attempt += reply.facts != known
            known = reply.facts
        raise VersionConflict(f"the list of {scope}", expected=0, actual=_TRIES)

    def _check_size(self, draft: Draft) -> None:
        sizes = {"task": len(draft.fields.get("body", b"")), "event": len(draft.event or b"")}
        for name, size in sizes.items():
            if size > self.limits.max_bytes > 0:
                raise InvalidField(name, f"{size} bytes, {self.limits.max_bytes} are allowed")


def new_write(owner: str) -> str:
    """Return a new id for one call of an owner."""
    return f"{owner}.{secrets.token_urlsafe(9)}"
