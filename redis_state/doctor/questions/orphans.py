"""Orphans: jobs whose tasks are gone, and unfinished tasks that nothing brings to a worker.

Both are looked for in samples. What seems to be one is read twice: tasks move meanwhile.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redis_state.doctor.finding import Finding, Found, Verdict, answered
from redis_state.doctor.questions.pool import pool_queue
from redis_state.errors import CorruptState
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import TaskStatusView, watch_entry
from redis_state.transport.clock import ms_of
from redis_state.transport.diagnostics import Diagnostics
from redis_state.transport.key_text import is_digest, unescape

if TYPE_CHECKING:
    from redis_state.worker.queue.queue import Queue

# Of each of a queue's lists.
_JOBS = 200
# A worker may be about to end a claim.
_OLD_CLAIM_MS = 60_000
# Of each server: pages of some 500 keys of any kind, and tasks.
_PAGES, _TASKS = 40, 1_000


@dataclass(slots=True)
class _Sample:
    """Tasks that were read, and those of them that are orphans."""

    read: int = 0
    orphans: list[TaskStatusView] = field(default_factory=list[TaskStatusView])


async def orphan_findings(store: RedisStateStore) -> Found:
    """Look for jobs without a task, then for tasks without a job. Errors: NoConnection."""
    async with pool_queue(store) as queue:
        if queue is None:
            return
        async for each in answered(queue.name, "jobs", _jobs(store, queue)):
            yield each
        for address, sender in await store.transport.each_server():
            server = str(address)
            tasks = _tasks(store, queue, server, Diagnostics(sender))
            async for each in answered(server, "tasks", tasks):
                yield each


async def _jobs(store: RedisStateStore, queue: Queue) -> Found:
    """Compare the jobs of each queue that is served, and of the default one, with the tasks."""
    from redis_state.worker.observe.registry import WorkerRegistry  # noqa: PLC0415 - as above

    served = {name for each in await WorkerRegistry(store).list() for name in each.queues}
    for name in sorted(served | {queue.name}):
        yield await _jobs_of(store, queue, name)


async def _jobs_of(store: RedisStateStore, queue: Queue, name: str) -> Finding:
    commands, keys, tasks = queue.transport.commands, queue.keys(name), store.base.keys
    listed = [each async for each in _listed(queue, name)]
    found = await asyncio.gather(
        *(store.transport.commands.exists(tasks.task(*task)) for _, _, task in listed)
    )
    gone = [each for each, there in zip(listed, found, strict=True) if not there]
    # What was ended meanwhile has left its list.
    left = await asyncio.gather(*(commands.zscore(key, member) for key, member, _ in gone))
    orphans = [each for each, place in zip(gone, left, strict=True) if place is not None]
    if not orphans:
        return Finding(
            name, "jobs", Verdict.SOUND, f"each of {len(listed)} that were read has its task"
        )
    session, task = orphans[0][2]
    permits = sum(key == keys.claims for key, _, _ in orphans)
    return Finding(
        name,
        "jobs",
        Verdict.FINDING,
        f"{len(orphans)} of {len(listed)} that were read are of tasks that are gone, for example "
        f"{task!r} of session {session!r}"
        + (f"; {permits} of them are claimed" if permits else ""),
        "the records were deleted, have expired or were lost; a job counts in the backlog, and a "
        "claim as a permit, until a worker drops it",
        "start a worker if none is alive: a job is dropped when it is due, an old claim within a "
        "lease; find out who deletes tasks",
    )


async def _listed(
    queue: Queue, name: str
) -> AsyncGenerator[tuple[str, bytes, tuple[str, str]], None]:
    """List the first jobs and old claims of a queue: the list, its member, and the task."""
    from redis_state.worker.queue.jobs.job import names_of, task_of  # noqa: PLC0415 - needs the extra

    commands, keys = queue.transport.commands, queue.keys(name)
    waiting: list[bytes] = await commands.zrange(keys.queue, 0, _JOBS - 1)
    keyed: list[bytes] = await commands.zrange(keys.keyed, 0, _JOBS - 1)
    claims: list[bytes] = await commands.zrange_scored(keys.claims, 0, _JOBS - 1)
    before = ms_of(await commands.time()) - _OLD_CLAIM_MS
    # What cannot be read, or has only the digest of its id, names no task.
    for key, members in ((keys.queue, waiting), (keys.keyed, keyed)):
        for member in members:
            with suppress(ValueError):
                job = task_of(member.rpartition(b"\0")[2])
                if job is not None:
                    yield key, member, (job.session_id, job.task_id)
    for member, claimed in zip(claims[::2], claims[1::2], strict=True):
        with suppress(ValueError):
            task = names_of(member.decode()) if float(claimed) < before else None
            if task is not None:
                yield keys.claims, member, task


async def _tasks(store: RedisStateStore, queue: Queue, server: str, ask: Diagnostics) -> Found:
    """Look for unfinished tasks of a server that no sweeper and no worker will find."""
    sample = _Sample()
    async with aclosing(_task_names(ask, store.settings.namespace)) as pages:
        async for names in pages:
            room = _TASKS - sample.read
            await _judge(store, queue, names[:room], sample)
            if sample.read >= _TASKS:
                break
    if not sample.orphans:
        says = f"each of {sample.read} that were read is finished, watched, queued or running"
        yield Finding(server, "tasks", Verdict.SOUND, says)
        return
    first = sample.orphans[0]
    yield Finding(
        server,
        "tasks",
        Verdict.FINDING,
        f"{len(sample.orphans)} of {sample.read} that were read are unfinished and have no entry "
        f"on the watch list, no job and no lease, for example {first.task_id!r} of session "
        f"{first.session_id!r}, {first.status.value}",
        "no worker runs them, and no sweeper looks at them, nor notices that a pause is overdue",
        "`redis-state tail SESSION TASK` for each puts it back within seconds, and `redis-state "
        "cancel` ends it; find out what has lost the entries: an eviction, or a server that came "
        "back without its data",
    )


async def _judge(
    store: RedisStateStore, queue: Queue, names: Iterable[tuple[str, str]], sample: _Sample
) -> None:
    async def look(task: tuple[str, str]) -> TaskStatusView | None:
        with suppress(CorruptState):
            return await store.tasks.look(*task)
        return None

    async def is_orphan(view: TaskStatusView) -> bool:
        # Each step of a task is covered by the one before: so a second look at the record decides.
        if await _is_known(store, queue, view):
            return False
        again = await look((view.session_id, view.task_id))
        return again is not None and (again.version, again.write) == (view.version, view.write)

    looked = await asyncio.gather(*map(look, names))
    sample.read += len(looked)
    views = [each for each in looked if each is not None and each.ours]
    unfinished = [each for each in views if not each.status.is_terminal and not each.left_ms]
    verdicts = await asyncio.gather(*map(is_orphan, unfinished))
    sample.orphans += [view for view, orphan in zip(unfinished, verdicts, strict=True) if orphan]


async def _is_known(store: RedisStateStore, queue: Queue, view: TaskStatusView) -> bool:
    """Return whether a sweeper, or a worker, has something that leads to a task."""
    keys, commands = queue.keys(view.queue), queue.transport.commands
    claim = queue.claim_of(view.session_id, view.task_id)
    ids = [f"{claim}:{runs}" for runs in {view.attempts, max(0, view.attempts - 1)}]
    watch = WatchList(store.base.scripts, store.base.keys)
    found = await asyncio.gather(
        watch.has(watch_entry(view.session_id, view.task_id)),
        commands.zscore(keys.claims, claim),
        *(commands.zscore(keys.queue, each) for each in ids),
        *(commands.hget(keys.owners, each) for each in ids),
    )
    return any(each not in (None, False) for each in found)


async def _task_names(
    ask: Diagnostics, namespace: str
) -> AsyncGenerator[list[tuple[str, str]], None]:
    """Read pages of the tasks of a server: session and task, where the key has them in full."""
    shape = re.compile(rf"{re.escape(namespace)}:v1:\{{([^{{}}/:]+)\}}:task:([^:]+)")
    cursor = b"0"
    for _ in range(_PAGES):
        cursor, keys = await ask.some_keys(cursor, f"{namespace}:v1:{{*}}:task:*")
        matched = [shape.fullmatch(key.decode(errors="replace")) for key in keys]
        named = [each.groups() for each in matched if each is not None]
        yield [
            (unescape(session), unescape(task))
            for session, task in named
            if not is_digest(session) and not is_digest(task)
        ]
        if cursor == b"0":
            return
