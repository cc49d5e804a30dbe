"""A new task: on the watch list first, then its record and its update in one step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Unpack

from redis_state.errors import BackendError, LostRace, TaskInProgress
from redis_state.models import TaskState, UpdateType
from redis_state.models.attributes import Attributes
from redis_state.primitives.record import new_write_id
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.scripts import Announcement, IndexedTask, Reply, ReplyCode, TaskKeys
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.updates import NewUpdate
from redis_state.stores.task_index import TaskIndex, indexed_new
from redis_state.worker.tasks.move_parts import (
    CHECK_SOON_MS,
    SKEW_MS,
    NewJob,
    announcement,
    new_fields,
    watch_entry,
)


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task that is about to be written, as the scripts that write one take it."""

    session_id: str
    keys: TaskKeys
    fields: dict[str, bytes] = field(repr=False)
    announcement: Announcement = field(repr=False)
    write: str
    ttl_ms: int


# Writes a new task, by a deadline in ms of the server's clock.
NewTaskWriter = Callable[[NewTask, int], Awaitable[Reply]]


class NewTasks:
    """Write new tasks."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._scripts = store.base.scripts
        self._watch = WatchList(store.base.scripts, store.base.keys)
        self._index = TaskIndex(store.base.scripts, store.base.keys)

    async def create(
        self,
        state: TaskState,
        *,
        delay_ms: int = 0,
        links: Mapping[str, bytes] | None = None,
        until_ms: int | None = None,
        writer: NewTaskWriter | None = None,
        **job: Unpack[NewJob],
    ) -> bool:
        """Write a new pending task, and its update; return whether it was new. Another one stays.

        It begins ``delay_ms`` from now. ``links`` are further fields of its record, which name the
        task that it was made from. After ``until_ms``, by the server's clock, nothing is written.
        ``writer`` writes it together with something else. Errors: LostRace if it is too late;
        TaskInProgress if that is what the writer found; PayloadTooLarge, PayloadStoreUnavailable.
        """
        payloads = self._store.base.payloads
        job["task_input"] = await payloads.put("input", job["task_input"])
        fields = new_fields(payloads, state, **job)
        fields |= links or {}
        write, status = new_write_id(), state.status.value
        update = NewUpdate(
            session_id=state.session_id,
            task_id=state.task_id,
            trace_id=state.trace_id,
            update_id=write,
            update_type=UpdateType.STATUS_CHANGE,
            content={"status": status},
        )
        new = NewTask(
            state.session_id,
            self._store.tasks.keys(state.session_id, state.task_id),
            fields,
            announcement(self._store, update),
            write,
            self._store.tasks.ttl_ms(status) + delay_ms,
        )
        reply = await self.cover(
            state,
            partial(writer or self._write_new, new),
            write=write,
            handler=job["handler"],
            attributes=job.get("attributes"),
            more_ms=delay_ms,
            until_ms=until_ms,
        )
        if reply.word is ReplyCode.EXPIRED:
            raise LostRace(f"the time in which task {state.task_id!r} was to be written is over")
        if reply.word is ReplyCode.TAKEN:
            raise TaskInProgress(state.session_id, reply.text(0), status=reply.text(1))
        return reply.word is ReplyCode.OK

    def _write_new(self, new: NewTask, before_ms: int) -> Awaitable[Reply]:
        return self._scripts.create_task(
            new.keys,
            new.fields,
            steering=self._store.steering.keys(new.session_id),
            announcement=new.announcement,
            children=self._store.base.keys.children(new.session_id, new.keys.task_id),
            write=new.write,
            ttl_ms=new.ttl_ms,
            before=before_ms,
        )

    async def cover(
        self,
        state: TaskState,
        create: Callable[[int], Awaitable[Reply]],
        *,
        write: str,
        handler: str,
        attributes: Attributes | None = None,
        more_ms: int = 0,
        until_ms: int | None = None,
    ) -> Reply:
        """Put a new task on the watch list and into the index, then write it by a script that gets
        a deadline.

        A task that is not written before a sweeper may inspect its entry, and take it out, is not
        written at all: then the entry is put again. So no task is ever there without an entry,
        however long this process was stopped in between. After ``until_ms`` that is EXPIRED.
        """
        entry, delay_ms = watch_entry(state.session_id, state.task_id), CHECK_SOON_MS
        new = indexed_new(
            entry,
            state,
            write=write,
            ttl_ms=self._store.tasks.ttl_ms(state.status.value) + more_ms,
            handler=handler,
            attributes=attributes,
        )
        known = over = False

        async def put() -> int:
            nonlocal known
            reply = await self._index.announce(new, delay_ms=delay_ms)
            known = reply.word is ReplyCode.STALE
            return int(reply.facts[0])

        def in_time(due_ms: int) -> Awaitable[Reply]:
            nonlocal over
            before_ms = due_ms - SKEW_MS
            over = until_ms is not None and until_ms <= before_ms
            return create(until_ms if over and until_ms is not None else before_ms)

        while True:
            reply = await self._watch.covering(entry, in_time, delay_ms=delay_ms, put=put)
            if over or reply.word is not ReplyCode.EXPIRED:
                break
            delay_ms *= 2
        if known and reply.word is ReplyCode.OK:
            await self._replace_in_index(new)
        if reply.word in (ReplyCode.TAKEN, ReplyCode.HELD, ReplyCode.AGAIN):
            # It was not written. A sweeper takes its entry out.
            self._index.drop(entry, stamp=new.stamp)
        return reply

    async def _replace_in_index(self, new: IndexedTask) -> None:
        """List a new task in place of an earlier one of its id. What fails a sweeper repairs."""
        with suppress(BackendError):
            reply = await self._index.put(new)
            if reply.word is ReplyCode.STALE:
                await self._index.put(new, stamp=reply.text(1))
