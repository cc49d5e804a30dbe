"""The index of tasks: by status, session, handler and attributes, over all sessions.

A task's record is in its session's slot, so no script can write it and an index over all sessions.
The index has the shards and the slots of the watch list instead. What is known of a task is written
by the calls that write its entry of the watch list. Other moves are followed by a call at once. So
the index may lag behind the record. It does not stay behind: a sweeper corrects it whenever it
inspects a task, and before it removes the entry of a terminal one. Entry and index are in one slot,
so no rollback of the server separates them.

What is known of a task carries its record's version and write. An older version never replaces a
newer one. A record whose history went back gives versions again: a correction names what it
replaces instead.

A terminal task is listed by its end as well: the ``updated_at`` of its record, which no call
changes behind the end, and which an archive has too. An earlier version of the package lists no
ends, and keeps or drops those that it finds. Readers and sweepers compare a task with its record.
They correct an end that is missing, or is that of an earlier run. What is left over in the list of
the ends is not shown. It goes when the task behind it in the list is forgotten.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from redis_state.futures import unawaited
from redis_state.models import TaskState, TaskStatus
from redis_state.models.attributes import Attributes
from redis_state.primitives.record import Stored
from redis_state.primitives.watchlist.watchlist import ENDED_MS
from redis_state.scripts import IndexedTask, Reply, Scripts, raw
from redis_state.scripts.runner import PendingReply
from redis_state.serialization import codec
from redis_state.serialization.rows import as_object
from redis_state.stores.sessions import task_status
from redis_state.stores.sessions.job_parts import job_of
from redis_state.stores.sessions.task_fields import microseconds
from redis_state.transport.key_groups import TaskIndexKeys
from redis_state.transport.keys import WATCH_SHARDS, Keys

LETTERS: dict[TaskStatus, str] = {
    TaskStatus.PENDING: "p",
    TaskStatus.RUNNING: "r",
    TaskStatus.PAUSED: "w",
    TaskStatus.COMPLETE: "c",
    TaskStatus.FAILED: "f",
    TaskStatus.CANCELLED: "x",
}
# What stands for a write id: with the version, enough to tell two histories apart.
_WRITE = 8
# Of the times by which tasks are listed: 7 bytes, and no more than a double holds.
LATEST_US = 2**53 - 1


class TaskIndex:
    """Write the index of tasks. ``entry`` is a task's entry of the watch list."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._keys = keys

    def keys(self, entry: bytes) -> TaskIndexKeys:
        """Return the keys of a task's shard."""
        return self._keys.task_index(zlib.crc32(entry) % WATCH_SHARDS)

    def announce(self, task: IndexedTask, *, delay_ms: int) -> PendingReply:
        """List a task that is about to be written, and have it inspected after ``delay_ms``.

        One step. The reply has when that is, in ms. It is STALE if the index knew another task of
        the id: then call `put` once the task is written.
        """
        return self._scripts.index_task(
            self.keys(task.entry), task, rule="new", delay_ms=delay_ms, stands="given"
        )

    async def put(self, task: IndexedTask, *, stamp: str | None = None) -> Reply:
        """Write what is known of a task, unless it is older than what the index knows.

        With a ``stamp`` write it only if that is what the index knows, and then in any case.
        """
        return await self._scripts.index_task(
            self.keys(task.entry), task, rule="whole" if stamp is None else f"is {stamp}"
        )

    def moved(self, task: IndexedTask, *, delay_ms: int | None = None, ended: bool = False) -> None:
        """Write a task's new status, or its run, right behind the move, without waiting for it.

        With ``delay_ms`` it is inspected by then. The entry of one that has ``ended`` is marked, if
        it has one. What fails here is repaired by a sweeper.
        """
        begin = partial(
            self._scripts.begin_index_task,
            self.keys(task.entry),
            task,
            rule="move",
            delay_ms=ENDED_MS if ended else delay_ms,
            stands="listed" if ended else "given",
        )
        unawaited(self._scripts.transport.sender.unhurried(begin))

    def changed(self, task: IndexedTask) -> None:
        """Write all that is known of a task, without waiting for it."""
        unawaited(self._scripts.begin_index_task(self.keys(task.entry), task, rule="whole"))

    def correct(self, task: IndexedTask, *, stamp: str) -> None:
        """Write all that is known of a task if the index knows ``stamp``; do not wait for it."""
        unawaited(self._scripts.begin_index_task(self.keys(task.entry), task, rule=f"is {stamp}"))

    def drop(self, entry: bytes, *, stamp: str) -> None:
        """Take a task out if the index knows ``stamp`` of it, without waiting for it."""
        unawaited(self._scripts.begin_unindex_task(self.keys(entry), entry=entry, stamp=stamp))

    async def remove(self, entry: bytes, *, stamp: str) -> None:
        """Take a task out if the index knows ``stamp`` of it."""
        await self._scripts.unindex_task(self.keys(entry), entry=entry, stamp=stamp)


def indexed_move(
    entry: bytes,
    status: TaskStatus,
    *,
    version: int,
    write: str,
    ttl_ms: int,
    updated_us: int | None = None,
) -> IndexedTask:
    """Describe a move of a task for the index. ``updated_us`` is the time of a terminal one."""
    return IndexedTask(
        entry,
        LETTERS[status],
        version,
        write[:_WRITE],
        ttl_ms,
        ended=_ended_us(status, updated_us),
    )


def indexed_start(entry: bytes, fields: Mapping[str, bytes], *, ttl_ms: int) -> IndexedTask:
    """Describe the start of a task for the index, by its record."""
    return indexed_move(
        entry,
        TaskStatus.RUNNING,
        version=int(fields.get("version", 0)),
        write=fields.get("write", b"").decode("utf-8", "surrogatepass"),
        ttl_ms=ttl_ms,
    )


def indexed_new(
    entry: bytes,
    state: TaskState,
    *,
    write: str,
    ttl_ms: int,
    handler: str,
    attributes: Attributes | None,
) -> IndexedTask:
    """Describe a task that is about to be written for the index."""
    return IndexedTask(
        entry,
        LETTERS[state.status],
        1,
        write[:_WRITE],
        ttl_ms,
        created=listed_us(state.created_at),
        session=state.session_id,
        task=state.task_id,
        handler=handler,
        attributes=attribute_lists(attributes),
    )


def indexed_record(
    entry: bytes, session_id: str, task_id: str, record: Stored, *, ttl_ms: int
) -> IndexedTask:
    """Describe a task for the index by its record. Errors: ValueError, KeyError, TypeError."""
    fields = record.fields
    status = TaskStatus(fields["status"].decode())
    created = datetime.fromisoformat(as_object(fields["document"])["created_at"])
    return IndexedTask(
        entry,
        LETTERS[status],
        int(record.version),
        record.version.write[:_WRITE],
        ttl_ms,
        created=listed_us(created),
        session=session_id,
        task=task_id,
        handler=str(as_object(job_of(fields))["handler"]),
        attributes=attribute_lists(attributes_of(fields)),
        ended=_ended_us(status, task_status.updated_us(fields)),
    )


def stamp_of(status: TaskStatus, version: int, write: str, *, updated_us: int | None) -> str:
    """Return what the index knows of a task at this version, as text."""
    ended = _ended_us(status, updated_us)
    return f"{version:d} {write[:_WRITE]} {LETTERS[status]}{'' if ended is None else f' {ended}'}"


def attributes_of(fields: Mapping[str, bytes]) -> dict[str, Any]:
    """Read the attributes in a task's record. Errors: ValueError."""
    written = fields.get("attributes")
    return as_object(written) if written else {}


def attribute_lists(attributes: Attributes | None) -> tuple[bytes, ...]:
    """Write attributes as the index lists them."""
    if not attributes:
        return ()
    return tuple(attribute_list(name, value) for name, value in sorted(attributes.items()))


def attribute_list(name: str, value: Any) -> bytes:
    """Write one attribute as the index lists it."""
    return raw(f"{name}=") + codec.canonical(value)


def listed_us(moment: datetime) -> int:
    """Return the time by which a task of that moment is listed."""
    return _listed(microseconds(moment))


def _ended_us(status: TaskStatus, updated: int | None) -> int | None:
    return _listed(updated) if status.is_terminal and updated is not None else None


def _listed(us: int) -> int:
    return min(max(us, 0), LATEST_US)
