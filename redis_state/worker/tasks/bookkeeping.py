"""The notes of a task elsewhere: in the index, and on the watch list of the sweepers."""

from __future__ import annotations

from collections.abc import Mapping

from redis_state.futures import unawaited
from redis_state.models import TaskState, TaskStatus
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.stores.task_index import (
    LETTERS,
    TaskIndex,
    indexed_move,
    indexed_new,
    indexed_start,
)
from redis_state.worker.tasks.move_parts import CHECK_LATEST_MS, CHECK_SOON_MS, watch_entry
from redis_state.worker.tasks.started import NotStarted, StartedRun


class TaskBookkeeping:
    """Note tasks in the index and on the watch list."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._scripts = store.base.scripts
        self._watch = WatchList(store.base.scripts, store.base.keys)
        self._index = TaskIndex(store.base.scripts, store.base.keys)

    def record_move(
        self,
        state: TaskState,
        status: TaskStatus,
        *,
        version: int,
        write: str,
        ended_us: int | None = None,
    ) -> None:
        """Write a move into the index, without waiting for it.

        ``ended_us`` is the time of a terminal one. The task's entry of the watch list is marked
        then: a sweeper that has nothing more urgent to do removes it.
        """
        task = indexed_move(
            watch_entry(state.session_id, state.task_id),
            status,
            version=version,
            write=write,
            ttl_ms=self._store.tasks.listed_ms(status.value),
            updated_us=ended_us,
        )
        self._index.moved(task, ended=ended_us is not None)
        if status is TaskStatus.PAUSED:
            self.pack_updates(state.session_id)

    def pack_updates(self, session_id: str) -> None:
        """Shrink the updates of a session whose task waits to what their rows take.

        Without waiting for it: what fails costs memory.
        """
        unawaited(self._scripts.begin_pack_log(self._store.updates.keys(session_id)))

    def record_status(self, found: TaskStatusView) -> None:
        """Write the status of a task that was read into the index, without waiting for it."""
        task = indexed_move(
            watch_entry(found.session_id, found.task_id),
            found.status,
            version=found.version,
            write=found.write,
            ttl_ms=self._store.tasks.listed_ms(found.status.value),
            updated_us=found.updated_us,
        )
        self._index.moved(task)

    async def inspect_soon(self, session_id: str, task_id: str) -> None:
        """Make a sweeper inspect a task soon.

        Call it before a task becomes PENDING: a caller that dies before the task is queued then
        loses nothing.
        """
        entry = watch_entry(session_id, task_id)
        await self._watch.put(entry, delay_ms=CHECK_SOON_MS, sooner=True)

    async def inspect_unstarted(self, session_id: str, task_id: str, why: NotStarted) -> None:
        """Make a sweeper inspect a task soon whose job is about to be dropped.

        The job was the last that waited for it, and its entry may not be due for long: another
        worker has started it and died, or the server has forgotten that it was resumed.
        """
        soon_ms = {"held": why.left_ms + 1, TaskStatus.PAUSED.value: CHECK_SOON_MS}
        if why.reason in soon_ms:
            entry = watch_entry(session_id, task_id)
            await self._watch.bring_forward(entry, delay_ms=soon_ms[why.reason])

    def record_start(
        self, session_id: str, task_id: str, fields: Mapping[str, bytes], *, lease_ms: int
    ) -> None:
        """Note a start, with the fields of the record, without waiting for it."""
        # The time to look is when this lease runs out; and an entry that was lost is there again.
        self._index.moved(
            indexed_start(
                watch_entry(session_id, task_id),
                fields,
                ttl_ms=self._store.tasks.ttl_ms(TaskStatus.RUNNING.value),
            ),
            delay_ms=min(lease_ms, CHECK_LATEST_MS),
        )

    def record_attributes(self, started: StartedRun, *, version: int, write: str) -> None:
        """Write the attributes of a running task into the index, without waiting for it."""
        new = indexed_new(
            watch_entry(started.state.session_id, started.state.task_id),
            started.state,
            write=write,
            ttl_ms=self._store.tasks.ttl_ms(TaskStatus.RUNNING.value),
            handler=started.handler,
            attributes=started.attributes,
        )
        letter = LETTERS[TaskStatus.RUNNING]
        self._index.changed(new._replace(version=version, status=letter))
