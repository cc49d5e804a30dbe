"""Parents and children: a task spawns others, and waits for their ends.

    spawn    the child, the parent's record of it, its place in the parent's index and the parent's
             update that names it are one step
    join     the parent waits for a child in the same step that finds it unfinished
    end      a child's end and the parent's record of it are one step; the process that ends a
             child wakes the parent that waits for it

A sweeper repairs a crash after an end: every unfinished task is on its list, and it checks whether
what a task waits for has ended.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from math import inf
from typing import Any

from redis_state.errors import BackendError, TaskFailed, TaskWasCancelled
from redis_state.models import TaskContextSnapshot, TaskState, TaskStatus
from redis_state.primitives.record import new_write_id
from redis_state.scripts import Reply, ReplyCode, TaskKeys, raw, topic_text
from redis_state.serialization.sealed import need_end
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_fields import move_fields
from redis_state.worker.observe import tracing as telemetry
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.children.requests import ChildTask, SpawnRequest
from redis_state.worker.tasks.move_parts import (
    announcement,
    new_fields,
    raise_refused,
    spawned_update,
    status_update,
)
from redis_state.worker.tasks.new_tasks import NewTasks
from redis_state.worker.tasks.recorded.journal import state_of
from redis_state.worker.tasks.recorded.lanes import Lane
from redis_state.worker.tasks.started import StartedRun

log: logging.Logger = logging.getLogger(__name__)


class ChildTasks:
    """What binds tasks together, for workers, clients and sweepers.

    Without a ``queue``, what is to run is left to a sweeper, which queues it within seconds.
    """

    def __init__(self, store: RedisStateStore, queue: Queue | None = None) -> None:
        self._store = store
        self._scripts = store.base.scripts
        self.queue: Queue | None = queue

    @cached_property
    def _books(self) -> TaskBookkeeping:
        return TaskBookkeeping(self._store)

    @cached_property
    def _new_tasks(self) -> NewTasks:
        return NewTasks(self._store)

    async def spawn(
        self,
        started: StartedRun,
        entry: str,
        requested: SpawnRequest,
        lane: Lane | None = None,
        *,
        place: int = 0,
    ) -> ChildTask:
        """Write a child down, once per entry of the parent's journal, and queue it.

        Its id is made from the parent's secret and the entry, so every run means the same child.
        On the watch list first, like every task: a crash leaves it unwritten, or to be queued by a
        sweeper. Errors: LeaseLost, InvalidTransition.
        """
        parent = started.state
        child_id = _child_id(started.secret, entry)
        # One of its own: two children with their parent's would write one trajectory.
        trace_id = None if parent.trace_id is None else f"{parent.trace_id}/{child_id}"
        state = TaskState(
            task_id=child_id,
            session_id=parent.session_id,
            status=TaskStatus.PENDING,
            task_type=requested.task_type,
            priority=requested.priority,
            context_snapshot=TaskContextSnapshot(
                session_id=parent.session_id,
                task_id=child_id,
                trace_id=trace_id,
                spawned_from_task_id=parent.task_id,
                propagate_on_cancel="isolate" if requested.isolate else "cascade",
            ),
            trace_id=trace_id,
            description=requested.description,
        )
        queue = requested.queue or (self.queue.name if self.queue else None)
        with telemetry.submitting(
            requested.handler, parent.session_id, child_id, queue or ""
        ) as span:
            payloads, task_input = self._store.base.payloads, requested.task_input
            if entry not in started.journal:
                task_input = await payloads.put("task_input", task_input)
            fields = new_fields(
                payloads,
                state,
                handler=requested.handler,
                task_input=task_input,
                queue=queue,
                trace=span.carrier,
                key=requested.flow,
                attributes=requested.attributes,
            )
            fields |= {
                "parent": raw(parent.task_id),
                "isolate": b"1" if requested.isolate else b"0",
            }
            note = payloads.document(
                {
                    "task": child_id,
                    "asks": requested.asks,
                    "number": started.order.number(entry),
                    "place": place,
                },
                "asks",
            )
            if await self._write(
                started, entry, state, fields, note, requested=requested, lane=lane
            ):
                names, priority = (parent.session_id, child_id), requested.priority
                await self.put(Job(*names, 0, priority, queue, key=requested.flow))
        return ChildTask(parent.session_id, child_id, parent.task_id, entry.partition(":")[2])

    async def join(self, started: StartedRun, child_id: str) -> dict[str, Any] | None:
        """Return the end of a terminal child; otherwise make the task wait for it, and return None.

        The check and the wait are one step. The child may have expired: its end is in the parent's
        journal. Errors: TaskFailed if nothing is kept of the child, for example after its deletion;
        LeaseLost, InvalidTransition.
        """
        parent = started.state
        session_id, task_id = parent.session_id, parent.task_id
        while True:
            end, _ = await self.look(started, child_id)
            if end is not None:
                return end
            await self._books.inspect_soon(session_id, task_id)
            write = new_write_id()
            reply = await self._scripts.join_task(
                self._keys(session_id, task_id),
                move_fields(TaskStatus.PAUSED) | started.waiting_fields(),
                child=self._keys(session_id, child_id),
                mark=started.replay.mark,
                write=write,
                ttl_ms=self._store.tasks.ttl_ms(TaskStatus.PAUSED.value),
                announcement=announcement(
                    self._store,
                    status_update(parent, TaskStatus.PAUSED, waits_for=child_id),
                    run=started.held.epoch,
                ),
            )
            if reply.word is ReplyCode.OK:
                version = int(reply.facts[0])
                self._books.record_move(parent, TaskStatus.PAUSED, version=version, write=write)
                return None
            if reply.word not in (ReplyCode.AGAIN, ReplyCode.MISSING):
                raise_refused(reply, parent, run=started.replay, wanted="PAUSED")

    async def look(self, started: StartedRun, child_id: str) -> tuple[dict[str, Any] | None, float]:
        """Return the end of a child; or None, with no time by which it ends.

        Errors: TaskFailed as in `join`.
        """
        session_id = started.state.session_id
        child = await self._store.tasks.load(session_id, child_id)
        if child is None:
            return await self._end_recorded(session_id, started.state.task_id, child_id), 0.0
        if not child.status.is_terminal:
            return None, inf
        need_end(child)
        return recorded_end(child), 0.0

    @asynccontextmanager
    async def ending(
        self, session_id: str, task_id: str, parent: str | None
    ) -> AsyncGenerator[None, None]:
        """End a task in this block, and wake its parent if that waits for it.

        If this process dies, a sweeper inspects the parent soon.
        """
        if parent is None:
            yield
            return
        await self._books.inspect_soon(session_id, parent)
        yield
        with suppress(BackendError):
            await self.wake(session_id, parent, task_id)

    async def wake(self, session_id: str, task_id: str, child_id: str) -> bool:
        """Resume a task that waits for a terminal or missing child; return whether it was resumed.

        A task that does not wait for it yet will find it over.
        """
        status_view = await self._store.tasks.look(session_id, task_id)
        if status_view is None or status_view.waits_for != child_id:
            return False
        state = await self._store.tasks.load(session_id, task_id)
        if state is None:
            return False
        update, write = status_update(state, TaskStatus.PENDING, child=child_id), new_write_id()
        reply = await self._scripts.wake_task(
            self._keys(session_id, task_id),
            move_fields(TaskStatus.PENDING),
            child=self._keys(session_id, child_id),
            write=write,
            ttl_ms=self._store.tasks.ttl_ms(TaskStatus.PENDING.value),
            announcement=announcement(self._store, update),
        )
        if reply.word is not ReplyCode.OK:
            return False
        version = int(reply.facts[0])
        self._books.record_move(state, TaskStatus.PENDING, version=version, write=write)
        await self.put(Job.ready(status_view))
        return True

    async def children(self, session_id: str, task_id: str) -> Sequence[str]:
        """Return the children of a task."""
        index = self._store.base.keys.children(session_id, task_id)
        found: list[bytes] = await self._store.transport.commands.zrange(index, 0, -1)
        return [topic_text(member) or "" for member in found]

    async def put(self, job: Job) -> None:
        """Queue a task for which a sweeper stands in."""
        if self.queue is None:
            return
        try:
            await self.queue.put(job)
        except BackendError as error:
            log.warning("task %r is left to a sweeper: %s", job.task_id, error)

    async def _write(
        self,
        started: StartedRun,
        entry: str,
        state: TaskState,
        fields: dict[str, bytes],
        note: bytes,
        *,
        requested: SpawnRequest,
        lane: Lane | None,
    ) -> bool:
        """Write a child; return whether it was new."""
        parent, ttl_ms = started.state, self._store.tasks.ttl_ms(TaskStatus.RUNNING.value)
        write = new_write_id()
        pending = status_update(state, TaskStatus.PENDING)
        named = spawned_update(parent, state.task_id, requested.handler)
        reported = announcement(self._store, pending, named)

        async def spawn(before_ms: int) -> Reply:
            return await self._scripts.spawn_task(
                self._keys(state.session_id, state.task_id),
                fields,
                parent=self._keys(parent.session_id, parent.task_id),
                children=self._store.base.keys.children(parent.session_id, parent.task_id),
                mark=started.replay.mark,
                entry=entry,
                note=note,
                before=before_ms,
                write=write,
                ttl_ms=ttl_ms,
                index_ttl_ms=2 * ttl_ms,
                announcement=reported,
                lane=state_of(lane),
            )

        # One that an earlier run has spawned is on the list, or over.
        reply = await spawn(0) if entry in started.journal else None
        if reply is None or reply.word is ReplyCode.EXPIRED:
            reply = await self._new_tasks.cover(
                state,
                spawn,
                write=write,
                handler=requested.handler,
                attributes=requested.attributes,
            )
        raise_refused(reply, parent, run=started.replay, wanted="spawning")
        started.replay.learn(reply, 1, entry, what=parent.task_id)
        return reply.word is ReplyCode.OK

    async def _end_recorded(self, session_id: str, task_id: str, child_id: str) -> dict[str, Any]:
        journal = self._keys(session_id, task_id).journal
        found: bytes | None = await self._store.transport.commands.hget(
            journal, b"end:" + raw(child_id)
        )
        if found is None:
            raise TaskFailed(session_id, child_id, "nothing is kept of it any more")
        payloads, of = self._store.base.payloads, f"task {child_id!r}"
        end = payloads.as_object(found)
        for name in ("result", "error"):
            end[name] = await payloads.fetch(end[name], of=of, field=name)
        return end

    def _keys(self, session_id: str, task_id: str) -> TaskKeys:
        return self._store.tasks.keys(session_id, task_id)


def recorded_end(child: TaskState) -> dict[str, Any]:
    """Write a child's end as its parent's journal keeps it."""
    return {"status": child.status.value, "result": child.result, "error": child.error}


def result_of(session_id: str, task_id: str, end: dict[str, Any]) -> Any:
    """Return the result of a terminal task. Errors: TaskFailed, TaskWasCancelled."""
    status = TaskStatus(end["status"])
    if status is TaskStatus.COMPLETE:
        return end["result"]
    kind = TaskFailed if status is TaskStatus.FAILED else TaskWasCancelled
    raise kind(session_id, task_id, end["error"])


def _child_id(secret: str, entry: str) -> str:
    return hmac.digest(secret.encode(), raw(entry), hashlib.sha256)[:16].hex()
