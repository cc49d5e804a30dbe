"""A task from outside: its updates until it is terminal, its result, and all unfinished tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis_state.errors import CorruptState, TaskUnknown
from redis_state.models import StateUpdate, TaskState, TaskStatus, UpdateType
from redis_state.models.attributes import AttributeValue
from redis_state.primitives.record import Stored
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.serialization import codec
from redis_state.serialization.rows import as_object
from redis_state.serialization.sealed import need_end
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.job_parts import job_of
from redis_state.stores.sessions.session_log import Entry
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.stores.task_index import attributes_of
from redis_state.worker.tasks.children.children import recorded_end, result_of
from redis_state.worker.tasks.execution.code_changes import VERSION
from redis_state.worker.tasks.execution.running import RunningStep, read_running
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.views.finding import LARGEST_PAGE, UNFINISHED, walk_tasks
from redis_state.worker.tasks.views.links import TaskLink, link_of
from redis_state.worker.tasks.views.task_filter import TaskFilter

Updates = AsyncGenerator[Entry[StateUpdate], None]


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task and what its workers know of it.

    ``handler`` is None for one that a host has saved. ``worker`` is the last that ran it, ``queue``
    where it waits. One that is ``isolated`` is not cancelled with its ``parent``; ``waits_for``
    names the child whose end a PAUSED task waits for. ``retries`` counts how often it was reopened.
    ``running`` are the steps that run now and have done so for a second or more. ``version`` is
    that of the handler's code, if it has some. One that is ``archived`` is not in Redis any more.
    """

    state: TaskState
    handler: str | None
    worker: str | None
    queue: str | None
    attempts: int
    crashes: int
    parent: str | None
    isolated: bool
    waits_for: str | None
    retries: int = 0
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict[str, AttributeValue])
    rerun_of: TaskLink | None = None
    forked_from: TaskLink | None = None
    running: Sequence[RunningStep] = ()
    version: str | None = None
    archived: bool = False


_CHECK_EVERY_S = 5.0
_CHECK_SOON_MS = 2_000
_UNFINISHED = frozenset(status.value for status in TaskStatus if not status.is_terminal)


class Client(Protocol):
    """What is needed of a client."""

    store: RedisStateStore

    async def wait(
        self, session_id: str, task_id: str, *, timeout_s: float | None = None
    ) -> TaskState:
        """Wait until a task is terminal."""
        ...


async def result_once_over(
    client: Client, session_id: str, task_id: str, *, timeout_s: float | None
) -> Any:
    """See `TaskClient.result`."""
    state = await client.wait(session_id, task_id, timeout_s=timeout_s)
    need_end(state)
    return result_of(session_id, task_id, recorded_end(state))


async def watch_task(
    client: Client, session_id: str, task_id: str, *, after: str | None
) -> Updates:
    """See `TaskClient.watch`.

    A task's end and its update are one step, and no update follows. So once the task is found
    terminal, the log is complete.
    """
    store, cursor = client.store, after
    over = await _has_ended(store, session_id, task_id)
    if not over:
        live = store.watch_updates(session_id, after=cursor, task_id=task_id)
        async with aclosing(live):
            async for entry in _until_over(store, session_id, task_id, live):
                cursor = entry.cursor
                yield entry
    at_end = False
    while not at_end:
        page = await store.read_updates(session_id, after=cursor, task_id=task_id)
        for entry in page.entries:
            yield entry
        cursor, at_end = page.cursor, page.at_end


async def _until_over(
    store: RedisStateStore, session_id: str, task_id: str, live: Updates
) -> Updates:
    """Yield what comes until the task is found over; some may be left to come then."""
    coming: asyncio.Task[Entry[StateUpdate]] | None = None
    try:
        while True:
            coming = coming or asyncio.create_task(_next(live))
            await asyncio.wait({coming}, timeout=_CHECK_EVERY_S)
            found = coming.result() if coming.done() else None
            if found is not None:
                coming = None
                yield found
            if found is None:
                await put_back(store, session_id, task_id)
            # Changes without an update, such as a cleared session, are noticed in time.
            if (found is None or may_end(found.value)) and await _has_ended(
                store, session_id, task_id
            ):
                return
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.wait({coming})


async def _next(live: Updates) -> Entry[StateUpdate]:
    return await anext(live)


async def _has_ended(store: RedisStateStore, session_id: str, task_id: str) -> bool:
    state = await store.tasks.load(session_id, task_id)
    if state is None:
        raise await missing_task(store, session_id, task_id)
    return bool(state.status.is_terminal)


def may_end(update: StateUpdate) -> bool:
    """Return whether an update may be of a task's end: it is not if it names another status."""
    match update.content:
        case {"status": str(status)} if update.update_type is UpdateType.STATUS_CHANGE:
            return status not in _UNFINISHED
        case _:
            return update.update_type is UpdateType.STATUS_CHANGE


async def put_back(store: RedisStateStore, session_id: str, task_id: str) -> None:
    """Put an unfinished task of a worker back on the watch list, should it be gone from there.

    A server that evicts may have dropped the entry. Then no sweeper looks at the task, and nobody
    takes it over when its worker dies. A sweeper takes an entry out again that is not needed.
    """
    ours = await store.transport.commands.hexists(store.base.keys.task(session_id, task_id), "job")
    if ours:
        watch = WatchList(store.base.scripts, store.base.keys)
        await watch.put_back(watch_entry(session_id, task_id), delay_ms=_CHECK_SOON_MS)


async def view_task(store: RedisStateStore, session_id: str, task_id: str) -> TaskView | None:
    """See `TaskClient.inspect`. Errors: CorruptState for a record that no task can have."""
    journal = store.tasks.keys(session_id, task_id).journal
    record, version = await asyncio.gather(
        store.tasks.load_fields(session_id, task_id),
        store.transport.commands.hget(journal, VERSION),
    )
    return None if record is None else await view_of(store, session_id, task_id, record, version)


async def missing_task(store: RedisStateStore, session_id: str, task_id: str) -> TaskUnknown:
    """Return the error for a task that could not be loaded.

    Errors: CorruptState if it is there, and is damaged.
    """
    record = await store.tasks.load_fields(session_id, task_id)
    if record is not None:
        await view_of(store, session_id, task_id, record, None)
    return TaskUnknown(task_id)


async def view_of(
    store: RedisStateStore, session_id: str, task_id: str, record: Stored, version: bytes | None
) -> TaskView:
    """Describe a task by its record, and the version of its code as its journal has it.

    Errors: CorruptState for a record that no task can have.
    """
    try:
        found = TaskStatusView.of(session_id, task_id, record.fields)
        return TaskView(
            state=await store.tasks.whole(store.tasks.read(session_id, task_id, record)),
            handler=as_object(job_of(record.fields))["handler"] if found.ours else None,
            worker=record.fields.get("worker", b"").decode("utf-8", "surrogatepass") or None,
            queue=found.queue,
            attempts=found.attempts,
            crashes=found.crashes,
            parent=found.parent,
            isolated=found.isolated,
            waits_for=found.waits_for,
            retries=found.retries,
            attributes=attributes_of(record.fields),
            rerun_of=link_of(record.fields, "rerun_of"),
            forked_from=link_of(record.fields, "forked_from"),
            running=read_running(record.fields),
            version=None if version is None else codec.decode(version),
        )
    except (ValueError, KeyError, TypeError) as error:
        key = store.base.keys.task(session_id, task_id)
        raise CorruptState(key, f"not a task's record: {type(error).__name__}") from None


async def list_unfinished(store: RedisStateStore, limit: int) -> list[TaskState]:
    """See `TaskClient.unfinished`."""
    found: list[TaskState] = []
    wanted = TaskFilter.read(status=UNFINISHED)
    size = min(max(limit, 1), LARGEST_PAGE)
    async with aclosing(walk_tasks(store, wanted, size=size)) as pages:
        async for tasks in pages:
            loads = (store.tasks.load(task.session_id, task.task_id) for task in tasks)
            # It may have ended since the page was read.
            found += [
                state
                for state in await asyncio.gather(*loads)
                if state is not None and not state.status.is_terminal
            ]
            if len(found) >= limit:
                break
    return found[:limit]
