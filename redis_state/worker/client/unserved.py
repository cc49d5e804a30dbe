"""Who needs which version of a handler: parked tasks, and all that are unfinished.

Reading only, for people. A worker record may be seconds old: see `WorkerRegistry`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.worker.observe.registry import WorkerInfo, WorkerRegistry
from redis_state.worker.queue.access import DEFAULT_QUEUE
from redis_state.worker.queue.jobs.job import task_of
from redis_state.worker.queue.jobs.parked import lane_of, read_lane
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.execution.code_changes import VERSION
from redis_state.worker.tasks.views.finding import UNFINISHED, walk_tasks
from redis_state.worker.tasks.views.task_filter import TaskFilter

_MOST_LANES = 1_000
# Queues that are read at once.
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class UnservedTasks:
    """Tasks of a queue that wait for workers with a version of their handler.

    ``version`` is None for tasks that have begun under none: their handler was missing. ``waiting``
    is their number, ``tasks`` are session and task of the first. ``workers`` are the live ones
    which have the version: the tasks wait for their slots, or for a limit.
    """

    queue: str
    handler: str
    version: str | None
    waiting: int
    tasks: tuple[tuple[str, str], ...]
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HandlerVersion:
    """How many unfinished tasks need a version of a handler, and the live workers that have it.

    ``version`` is None for tasks that have not begun, or have begun without versions.
    """

    handler: str
    version: str | None
    tasks: int
    workers: tuple[str, ...]


async def list_unserved(store: RedisStateStore, queue: Queue, *, limit: int) -> list[UnservedTasks]:
    """List what is parked in the queues of live workers, in the default one and those with tasks.

    At most ``limit`` tasks of each are named. Errors: BackendUnavailable.
    """
    workers, known = await asyncio.gather(WorkerRegistry(store).list(), queue.names.list())
    served = {name for info in workers for name in info.queues}
    names = sorted(served | known | {DEFAULT_QUEUE, queue.name})
    gate = asyncio.Semaphore(_AT_ONCE)

    async def parked(name: str) -> list[tuple[str, int, list[bytes]]]:
        async with gate:
            return await queue.parked(name, lanes=_MOST_LANES, limit=limit)

    found = await asyncio.gather(*map(parked, names))
    return [
        UnservedTasks(
            name,
            *read_lane(lane),
            waiting,
            _tasks(members),
            _serving_lane(lane, workers, name),
        )
        for name, lanes in zip(names, found, strict=True)
        for lane, waiting, members in lanes
    ]


async def count_versions(
    store: RedisStateStore, *, handler: str | None = None
) -> list[HandlerVersion]:
    """Count the unfinished tasks by handler and version. It reads each of them.

    Errors: BackendUnavailable.
    """
    counted: Counter[tuple[str, str | None]] = Counter()
    workers = await WorkerRegistry(store).list()
    for info in workers:
        for name, versions in info.versions.items():
            if handler in (None, name):
                counted.update(dict.fromkeys(((name, version) for version in versions), 0))
    async for tasks in walk_tasks(store, TaskFilter.read(status=UNFINISHED, handler=handler)):
        counted.update(
            zip(
                (task.handler or "" for task in tasks),
                await _versions(store, [(task.session_id, task.task_id) for task in tasks]),
                strict=True,
            )
        )
    return [
        HandlerVersion(name, version, tasks, _serving(name, version, workers))
        for (name, version), tasks in sorted(
            counted.items(), key=lambda item: (item[0][0], item[0][1] or "")
        )
    ]


async def _versions(store: RedisStateStore, tasks: Sequence[tuple[str, str]]) -> list[str | None]:
    commands = store.transport.commands
    found: list[bytes | None] = await asyncio.gather(
        *(commands.hget(store.tasks.keys(*task).journal, VERSION) for task in tasks)
    )
    return [None if version is None else codec.decode(version) for version in found]


def _serving(handler: str, version: str | None, workers: Sequence[WorkerInfo]) -> tuple[str, ...]:
    return tuple(
        info.name
        for info in workers
        if not info.draining
        and (handler in info.handlers if version is None else version in _of(info, handler))
    )


def _serving_lane(lane: str, workers: Sequence[WorkerInfo], queue: str) -> tuple[str, ...]:
    """List who serves a lane, by the lane itself: it may have only the digest of a long name."""
    return tuple(
        info.name
        for info in workers
        if not info.draining
        and queue in info.queues
        and any(
            lane == lane_of(name, version)
            for name in info.handlers
            for version in (None, *_of(info, name))
        )
    )


def _of(info: WorkerInfo, handler: str) -> Sequence[str]:
    return info.versions.get(handler, ())


def _tasks(members: Sequence[bytes]) -> tuple[tuple[str, str], ...]:
    """Read the tasks of parked jobs. One whose ids are too long for a job's is left out."""
    named: list[tuple[str, str]] = []
    for member in members:
        with suppress(ValueError):
            job = task_of(member.rpartition(b"\0")[2])
            named += [] if job is None else [(job.session_id, job.task_id)]
    return tuple(named)
