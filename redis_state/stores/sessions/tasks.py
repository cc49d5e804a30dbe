"""The tasks of a session, as hosts save them and as workers move them. Records: `task_fields`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

from redis_state.errors import CorruptState, PayloadUnreadable, StoreFull
from redis_state.models import TaskContextSnapshot, TaskState, TaskStatus, TaskType
from redis_state.primitives.record import Place, Stored, new_write_id
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.scripts import TASK_FIELDS, Fence, GatheringKeys, ReplyCode, TaskKeys
from redis_state.serialization.fields import validated
from redis_state.serialization.sealed import Sealed
from redis_state.stores.base import ARCHIVE_HOLD_MS, Base, ms
from redis_state.stores.sessions.saved_tasks import SavedTasks
from redis_state.stores.sessions.task_fields import (
    NULL,
    SEALED_CONTENT,
    USUAL_KIND,
    microseconds,
    read_updated,
    task_values,
    unusual_defaults,
)
from redis_state.stores.sessions.task_status import TaskStatusView, watch_entry
from redis_state.transport.key_text import LONGEST_REMEMBERED

T = TypeVar("T")

# What `TaskStore.read` needs; to list a session's tasks, their order too.
_READ = (*TASK_FIELDS, "updated_at")
_LISTED = ("order", *_READ)
# What `look_task` returns the values of.
_LOOKED = (
    *("status", "version", "order", "priority", "crashes", "queue"),
    *("parent", "isolate", "waits_for", "parent_order", "attempts", "due", "flow_key"),
    *("waits_box", "pause_token", "write", "retries", "parent_retry", "updated_at", "job"),
)
_ACTIVE = TaskStatus.RUNNING.value
_ENDED = frozenset(status.value for status in TaskStatus if status.is_terminal)
_ENDED_BYTES = frozenset(status.encode() for status in _ENDED)


class TaskStore:
    """Save and list tasks."""

    def __init__(
        self,
        base: Base,
        state_type: type[Any] = TaskState,
        snapshot_type: type[Any] = TaskContextSnapshot,
        status_type: type[Any] = TaskStatus,
        kind_type: type[Any] = TaskType,
    ) -> None:
        self._base = base
        # A task that is at work is named again and again.
        self._remembered = lru_cache(maxsize=1024)(self._name)
        self._active_ttl_ms = ms(base.settings.active_task_ttl)
        self._finished_ttl_ms = ms(base.settings.finished_task_ttl)
        self._hold_ms = ARCHIVE_HOLD_MS if base.settings.has_archive else 0
        self._archiving = SavedTasks(base) if self._hold_ms else None
        self._state_type = state_type
        self._snapshot_type = snapshot_type
        # Where the host's own contexts have other defaults than what is not stored.
        self._usual: dict[str, Any] = unusual_defaults(cast("Any", snapshot_type))
        # Members of the host's own enums, by what is stored of them.
        statuses, kinds = cast("Iterable[Any]", status_type), cast("Iterable[Any]", kind_type)
        self._statuses: dict[bytes, Any] = {member.value.encode(): member for member in statuses}
        self._kinds: dict[str, Any] = {member.value: member for member in kinds}

    def keys(self, session_id: str, task_id: str) -> TaskKeys:
        """Return a task's keys."""
        # A value that is no text is no key of a cache: built again, it is refused by its field.
        known = type(session_id) is str and type(task_id) is str
        if known and len(session_id) + len(task_id) <= LONGEST_REMEMBERED:
            return self._remembered(session_id, task_id)
        return self._name(session_id, task_id)

    def _name(self, session_id: str, task_id: str) -> TaskKeys:
        keys = self._base.keys
        return TaskKeys(
            task_id,
            keys.task(session_id, task_id),
            keys.tasks(session_id),
            keys.lease(session_id, task_id),
            keys.journal(session_id, task_id),
        )

    def ttl_ms(self, status: str) -> int:
        """Return how long a task in this state is kept at least after its last change."""
        return self._finished_ttl_ms if status in _ENDED else self._active_ttl_ms

    def hold_ms(self, status: str) -> int:
        """Return for how long a task in this state waits for the archive; 0: it does not.

        The archiver lets go of it.
        """
        return self._hold_ms if status in _ENDED else 0

    def listed_ms(self, status: str) -> int:
        """Return how long the index of tasks lists a task in this state.

        As long as its record lives: the archiver, which lets go of the record, shortens it.
        """
        return max(self.ttl_ms(status), self.hold_ms(status))

    async def save(self, state: TaskState, *, fence: Fence | None = None) -> bool:
        """Save a task whole; return whether it was accepted.

        The last save wins. An older view of a terminal task does not reopen it: only for that
        are callers' clocks compared, by ``updated_at``. So a host whose clock is ahead may reopen
        a task that another has ended, and one whose clock is behind may fail to. Hosts that share
        tasks save under a ``fence``: then the owner's save wins, whatever the clocks say. With an
        archive, a task that has ended waits for it. Errors: LeaseLost after a takeover.
        """
        values = task_values(self._base.payloads, state)
        finished = values[0] in _ENDED_BYTES
        if self._archiving is None:
            return await self._save(state, values, fence, finished=finished)
        save = partial(self._save, state, values, fence, finished=finished)
        return await self.archiving(state.session_id, state.task_id, save, finished=finished)

    async def archiving(
        self,
        session_id: str,
        task_id: str,
        write: Callable[[], Awaitable[T]],
        *,
        finished: bool,
    ) -> T:
        """Write a task so that the archive finds it once it is ``finished``, if there is one."""
        if self._archiving is None:
            return await write()
        if not finished:
            return await self._archiving.save_unfinished(session_id, write)
        return await self._archiving.save_ended(session_id, self.keys(session_id, task_id), write)

    async def _save(
        self, state: TaskState, values: tuple[bytes, ...], fence: Fence | None, *, finished: bool
    ) -> bool:
        if fence is not None:
            await self._save_fenced(state, values, fence, finished=finished)
            return True
        reply = await self._base.scripts.save_task(
            self.keys(state.session_id, state.task_id),
            values,
            write=new_write_id(),
            ttl_ms=self._finished_ttl_ms if finished else self._active_ttl_ms,
            finished=finished,
            updated_at_us=microseconds(state.updated_at),
        )
        if reply.word is ReplyCode.STALE:
            self._base.counters.stale_task_saves += 1
        return reply.word is ReplyCode.OK

    async def _save_fenced(
        self, state: TaskState, values: tuple[bytes, ...], fence: Fence, *, finished: bool
    ) -> None:
        keys = self.keys(state.session_id, state.task_id)
        fields = dict(zip(TASK_FIELDS, values, strict=True))
        fields["finished"] = b"%d" % finished
        fields["updated_at"] = b"%d" % microseconds(state.updated_at)
        await self._base.records.save(
            keys.task,
            fields,
            ttl_ms=self._finished_ttl_ms if finished else self._active_ttl_ms,
            place=Place(keys.tasks, state.task_id),
            fence=fence,
        )

    async def load(self, session_id: str, task_id: str) -> TaskState | None:
        """Return one task, or None. What this process cannot read of it is `Sealed`.

        Errors: PayloadLost, PayloadStoreUnavailable for a result in the store of claims.
        """
        flat = self._base.fetch(self.keys(session_id, task_id).task, _READ)
        read = partial(self.read, session_id, task_id)
        found = await self._base.read_record(session_id, f"task {task_id}", flat, read, _READ)
        return found if found is None else await self.whole(found)

    async def whole(self, state: TaskState) -> TaskState:
        """Return a task with its result, should that stand in the store of claims."""
        result: Any = state.result
        if type(result) is Sealed and result.is_elsewhere:
            of = f"task {state.task_id!r}"
            with suppress(PayloadUnreadable):
                state.result = await self._base.payloads.fetch(result, of=of, field="result")
        return state

    async def load_fields(self, session_id: str, task_id: str) -> Stored | None:
        """Return one task as its record, a worker's own fields included."""
        return await self._base.records.load(self._base.keys.task(session_id, task_id))

    async def look(self, session_id: str, task_id: str) -> TaskStatusView | None:
        """Read a task's status and its lease in one step; None if there is no task.

        Errors: CorruptState for a record that no task can have.
        """
        keys = self.keys(session_id, task_id)
        reply = await self._base.scripts.look_task(keys)
        if reply.word is ReplyCode.MISSING:
            return None
        return self.looked(session_id, task_id, reply.facts)

    def looked(self, session_id: str, task_id: str, facts: Sequence[Any]) -> TaskStatusView:
        """Read what `look_task` says of a task. Errors: CorruptState, as with `look`."""
        epoch, left_ms, values = facts
        named = zip(_LOOKED, values, strict=True)
        fields = {name: value for name, value in named if value is not None}
        try:
            return TaskStatusView.of(session_id, task_id, fields, epoch=epoch, left_ms=left_ms)
        except ValueError as error:
            key = self.keys(session_id, task_id).task
            raise CorruptState(key, "not a task's record") from error

    async def list(self, session_id: str) -> list[TaskState]:
        """Return a session's tasks in the order of their first save."""
        keys = self._base.keys
        found = await self._base.list_ordered(
            session_id,
            "task",
            keys.tasks(session_id),
            key_of=partial(keys.task, session_id),
            read=partial(self.read, session_id),
            names=_LISTED,
        )
        return [await self.whole(state) for state in found]

    async def ids(self, session_id: str) -> Sequence[str]:
        """Return a session's tasks."""
        return await self._base.records.members(self._base.keys.tasks(session_id))

    async def clear(self, session_id: str, task_id: str) -> None:
        """Delete a task and its journal, and end its lease, in one step.

        A worker that runs it can write no more, and none can start it. A sweeper takes a worker's
        task out of the index.
        """
        keys = self.keys(session_id, task_id)
        scripts = self._base.scripts
        reply = scripts.transport.commands.hexists(keys.task, "job")
        ours = await scripts.read(reply, keys.task, command="HEXISTS")
        await self._base.scripts.clear_task(
            keys,
            children=self._base.keys.children(session_id, task_id),
            lease_ms=self.ttl_ms(_ACTIVE),
        )
        if ours:
            watch = WatchList(self._base.scripts, self._base.keys)
            # A full server may be cleared: then the index forgets the task when its time is up.
            with suppress(StoreFull):
                await watch.put(watch_entry(session_id, task_id), delay_ms=0, sooner=True)

    async def clear_lines(self, session_id: str) -> None:
        """Delete which tasks run in turn, and which gather items. They are gone by then."""
        gathering = GatheringKeys(self._base.keys.gathering(session_id))
        for key in (self._base.keys.turn(session_id), *gathering, gathering.items):
            await self._base.scripts.unlink(key)

    def read(self, session_id: str, task_id: str, record: Stored) -> TaskState:
        """Build a task from its record. Errors: ValueError, KeyError and their like."""
        return self.read_fields(session_id, task_id, record.fields)

    def read_fields(self, session_id: str, task_id: str, fields: Mapping[str, bytes]) -> TaskState:
        """Build a task from its record's fields. Errors: ValueError, KeyError and their like."""
        decode, get = self._base.payloads.decode, fields.get
        document = self._base.payloads.as_object(fields["document"])
        created_at = datetime.fromisoformat(document["created_at"])
        snapshot: dict[str, Any] = {
            "session_id": session_id,
            "task_id": task_id,
            "spawned_at": created_at,
            **self._usual,
            **document.get("context_snapshot", {}),
        }
        if SEALED_CONTENT in document:
            content = document[SEALED_CONTENT]
            snapshot |= {} if isinstance(content, str) else content
        if type(snapshot["spawned_at"]) is str:
            # Pydantic itself does not read the offsets in seconds that old time zones have.
            snapshot["spawned_at"] = datetime.fromisoformat(snapshot["spawned_at"])
        state: TaskState = self._state_type(
            task_id=task_id,
            session_id=session_id,
            status=self._statuses[fields["status"]],
            task_type=self._kinds[document.get("task_type", USUAL_KIND)],
            priority=int(fields["priority"]),
            context_snapshot=validated(self._snapshot_type, snapshot),
            trace_id=document.get("trace_id"),
            result=decode(get("result", NULL)),
            error=decode(get("error", NULL)),
            description=document.get("description"),
            progress=decode(get("progress", NULL)),
            created_at=created_at,
            updated_at=read_updated(fields),
        )
        return state
