"""Tasks whose version this worker lacks: given back, and left to a worker that has it.

A worker learns a task's version when it starts the task. If it lacks the version, it makes the task
PENDING again, as if it had not been started: the lease is free, the start is not counted, and the
deaths of earlier workers still are. The worker remembers the task, and does not start it again. Its
job stays in the queue and comes back later: soon if a live worker serves the version, rarely if
none does. Then the task is listed, for people.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from redis_state.errors import InvalidTransition, LeaseLost
from redis_state.models import TaskStatus
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.transport.clock import ms_of
from redis_state.worker.observe.registry import WorkerInfo, WorkerRegistry
from redis_state.worker.tasks.transitions import StartedRun, TaskTransitions

_REMEMBERED = 10_000
_REGISTRY_S = 5.0
_SOONEST_S = 0.1
_LATEST_SERVED_S = 5.0
_LATEST_S = 15.0
# Longer than a task stays unseen by the workers that lack its version.
_LISTED_MS = 60_000


@dataclass(frozen=True, slots=True)
class UnservedTask:
    """A task that waits for a version of its handler which no live worker serves."""

    session_id: str
    task_id: str
    handler: str
    version: str


@dataclass(slots=True)
class _Lacked:
    handler: str
    version: str
    queue: str
    order: int
    bounces: int = 0


class UnservedTasks:
    """What one worker process remembers of tasks whose version it lacks."""

    def __init__(self) -> None:
        self._lacked: OrderedDict[tuple[str, str], _Lacked] = OrderedDict()
        self._workers: Sequence[WorkerInfo] = ()
        self._read_at = -_REGISTRY_S

    async def defer_s(self, store: RedisStateStore, session_id: str, task_id: str) -> float | None:
        """Return for how long the job of a task that this worker cannot run is put off.

        None for every other task: then nothing is asked. Errors: BackendError.
        """
        name = (session_id, task_id)
        lacked = self._lacked.get(name)
        if lacked is None:
            return None
        # A later task of the id may have another version.
        status_view = await store.tasks.look(session_id, task_id)
        if (
            status_view is None
            or status_view.order != lacked.order
            or status_view.status.is_terminal
        ):
            self._lacked.pop(name, None)
            return None
        return await self._next_s(store, session_id, task_id, lacked)

    async def give_back(
        self, store: RedisStateStore, started: StartedRun, version: str, *, queue: str
    ) -> float:
        """Give a started task back; return for how long its job is put off. Errors: BackendError.

        A crash before leaves the task RUNNING under a lease that expires.
        """
        session_id, task_id = started.state.session_id, started.state.task_id
        try:
            await TaskTransitions(store).give_back(started, version)
        except (LeaseLost, InvalidTransition):
            return _SOONEST_S  # another run has it, or it is over: its job finds that out
        status_view = await store.tasks.look(session_id, task_id)
        order = 0 if status_view is None else status_view.order
        lacked = _Lacked(started.handler, version, queue, order)
        self._lacked[session_id, task_id] = lacked
        if len(self._lacked) > _REMEMBERED:
            self._lacked.popitem(last=False)
        return await self._next_s(store, session_id, task_id, lacked)

    async def _next_s(
        self, store: RedisStateStore, session_id: str, task_id: str, lacked: _Lacked
    ) -> float:
        served = await self._is_served(store, lacked)
        if not served:
            member = codec.encode([lacked.handler, lacked.version, session_id, task_id])
            await store.base.scripts.note_member(
                store.base.keys.unserved(), member=member.decode(), ttl_ms=_LISTED_MS
            )
        longest_s = _LATEST_SERVED_S if served else _LATEST_S
        wait_s = min(_SOONEST_S * 2.0 ** min(lacked.bounces, 20), longest_s)
        lacked.bounces += 1
        # Two workers that lack it do not come for it at the same moment.
        return wait_s * random.uniform(0.5, 1.0)

    async def _is_served(self, store: RedisStateStore, lacked: _Lacked) -> bool:
        if monotonic() - self._read_at >= _REGISTRY_S:
            self._read_at = monotonic()
            self._workers = await WorkerRegistry(store).list()
        return any(
            lacked.queue in info.queues and serves(info, lacked.handler, lacked.version)
            for info in self._workers
            if not info.draining
        )


def serves(info: WorkerInfo, handler: str, version: str) -> bool:
    """Return whether a worker has a version of a handler."""
    return version in info.versions.get(handler, ())


async def list_unserved(store: RedisStateStore, limit: int) -> list[UnservedTask]:
    """List tasks that wait for a version which no live worker serves, as workers found them.

    A worker that lacks the version comes by each of them every 15 seconds.
    """
    commands, index = store.transport.commands, store.base.keys.unserved()
    members: list[bytes] = await commands.zrange_scored(index, 0, -1)
    now_us = ms_of(await commands.time()) * 1000
    workers = await WorkerRegistry(store).list()
    found: list[UnservedTask] = []
    for member, until_us in zip(members[::2], members[1::2], strict=True):
        if len(found) >= limit:
            break
        handler, version, session_id, task_id = codec.decode(member)
        if float(until_us) < now_us or any(serves(info, handler, version) for info in workers):
            continue
        status_view = await store.tasks.look(session_id, task_id)
        if status_view is not None and status_view.status is TaskStatus.PENDING:
            found.append(UnservedTask(session_id, task_id, handler, version))
    return found
