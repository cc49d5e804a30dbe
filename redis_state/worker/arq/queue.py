"""The queue: arq carries a task's name from the client to a worker, and nothing else.

The task's record is the truth. A lost, doubled or late job is harmless: one script decides by the
record whether a task starts. A sweeper puts a lost job again, when the record shows a waiting task.

arq keeps of a job:

    <queue>                zset: job id -> when it was queued, by the clock of the queue's server,
                           and earlier by its priority; there until the job has ended
    arq:job:<id>           its payload; a worker drops a job without one
    arq:in-progress:<id>   a worker has picked it; no other does until this expires, which is
                           long after the worker has died

A job's id is `<namespace>/<session>/<task>:<runs before it>`, so that namespaces that share a
server, or even a queue, do not touch each other's jobs. On a cluster `{<namespace>}` leads the ids
and the queue's key, so that all of this shares a slot.

Beside that, `<queue>:wake` is a channel: each put is published there, and a waiting worker polls at
once.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, auto
from typing import Any, TypeVar

from arq.connections import ArqRedis
from arq.constants import in_progress_key_prefix, job_key_prefix
from arq.jobs import serialize_job
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from redis_state.errors import CommandRefused
from redis_state.settings import Settings
from redis_state.transport.clock import ms_of
from redis_state.transport.wire.reply_errors import not_now
from redis_state.worker.arq.job_format import RUN_TASK, Job, serialize
from redis_state.worker.arq.queue_server import (
    connect,
    job_owner,
    queue_error,
    queue_key,
    queue_settings,
    queue_tag,
    renew,
)

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

# How often some work can be tried within a call's time when connections break without a word.
_TRIES = 3
_SHORTEST_TRY_S = 0.5
# Between two tries.
_FIRST_BACKOFF_S = 0.01
_LONGEST_BACKOFF_S = 0.2

# One point of priority is worth as much as having been queued a minute earlier.
_SENIORITY = timedelta(minutes=1)
_HIGHEST_PRIORITY = 100_000


class QueueState(Enum):
    """What the queue had of a job, and what was done."""

    WAITS = auto()  # it is there for any worker
    CLAIMED = auto()  # a worker has picked it and may be about to start it
    RELEASED = auto()  # who picked it never started it: it is there for any worker again
    QUEUED = auto()  # it was not there, and is now


@dataclass(frozen=True, slots=True)
class _QueuedJob:
    """One job id as arq has it: ``mark`` is the value of its in-progress key, None without one."""

    name: str
    queued: bool
    payload: bool
    mark: bytes | None


class Queue:
    """The queue's client side. Connects at the first use, once per event loop.

    Errors: ConfigError for an address that no worker could share.
    """

    def __init__(self, settings: Settings, *, name: str | None = None) -> None:
        queue_settings(settings)  # wrong settings raise before a task is written
        self._settings = settings
        self._name = default_queue(settings) if name is None else name
        self._is_located = bool(queue_tag(settings))
        self._clients: dict[asyncio.AbstractEventLoop, ArqRedis] = {}

    @property
    def name(self) -> str:
        """Where a job goes that names no queue of its own."""
        return self._name

    async def put(self, session_id: str, task_id: str, *, runs: int, priority: int) -> None:
        """Queue a task for any worker, once per run. Errors: BackendUnavailable."""
        await self.put_job(Job(session_id, task_id, runs, priority))

    async def put_job(self, job: Job) -> None:
        """Queue a task where it belongs, once per run. Errors: BackendUnavailable."""

        async def put(client: ArqRedis) -> None:
            now_ms = await self._now_ms(client, job)
            async with client.pipeline(transaction=False) as pipe:
                self._put(pipe, job, now_ms)
                await _execute(pipe, waking=[self._key(job.queue)])

        await self._do(put)

    async def ensure_queued(
        self, jobs: Sequence[Job], *, patience_ms: int = 2_000
    ) -> list[QueueState]:
        """Ensure that the queue has these jobs, all of tasks that wait to be run.

        It costs one round trip to read, and one more if something is to be done. Safe to repeat,
        also concurrently: a job is there once. Errors: BackendUnavailable.

        A picked job is left alone at first: its worker may be about to start it. The check is
        recorded in arq's in-progress key, whose value arq never reads, with the record's version.
        The key is deleted only if the same key with the same version is found later than
        ``patience_ms`` after: then nobody started the task in all that time. A worker that was
        merely slow then finds the task held, or starts it first.
        """

        async def ensure_queued(client: ArqRedis) -> list[QueueState]:
            now_ms, found = await self._find(client, jobs)
            async with client.pipeline(transaction=False) as pipe:
                mended = [
                    self._mend(pipe, job, its, now_ms, patience_ms)
                    for job, its in zip(jobs, found, strict=True)
                ]
                if len(pipe):
                    there_now = {
                        self._key(job.queue)
                        for job, done in zip(jobs, mended, strict=True)
                        if done in (QueueState.RELEASED, QueueState.QUEUED)
                    }
                    await _execute(pipe, waking=sorted(there_now))
            return mended

        # A sweeper comes again: it has more to do than to wait for the queue's server.
        return await self._do(ensure_queued, tries=_TRIES) if jobs else []

    async def move(
        self,
        session_id: str,
        task_id: str,
        *,
        runs: int,
        before: int,
        after: int,
        queue: str | None = None,
    ) -> None:
        """Move a queued task by the difference of two priorities. Errors: BackendUnavailable.

        It is queued after its last run or, if that was handed off, an earlier one.
        """
        earlier_ms = (_seniority(after) - _seniority(before)) // timedelta(milliseconds=1)

        async def move(client: ArqRedis) -> None:
            for job_id in self._names(Job(session_id, task_id, runs, after)):
                await client.zadd(self._key(queue), {job_id: -earlier_ms}, xx=True, incr=True)

        await self._do(move, tries=1)

    async def backlog(self) -> tuple[int, float]:
        """Return how many tasks wait or run, and for how many seconds the first has been there.

        A priority counts as having waited longer. Errors: BackendUnavailable.
        """

        async def look(client: ArqRedis) -> tuple[int, float]:
            async with client.pipeline(transaction=False) as opened:
                pipe: Any = opened
                pipe.time()
                pipe.zcard(self._key(None))
                pipe.zrange(self._key(None), 0, 0, withscores=True)
                clock, count, first = await pipe.execute()
            return count, max(0.0, (ms_of(clock) - first[0][1]) / 1000) if first else 0.0

        return await self._do(look, tries=_TRIES)

    async def clear(self) -> None:
        """Forget everything queued. The tasks stay as they are. Errors: BackendUnavailable."""

        async def clear(client: ArqRedis) -> None:
            await client.delete(self._key(None))

        await self._do(clear)

    async def aclose(self) -> None:
        """Disconnect this loop. Safe to repeat."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose(close_connection_pool=True)

    async def _find(
        self, client: ArqRedis, jobs: Sequence[Job]
    ) -> tuple[int, list[list[_QueuedJob]]]:
        async with client.pipeline(transaction=False) as opened:
            pipe: Any = opened
            pipe.time()
            for job in jobs:
                for name in self._names(job):
                    pipe.zscore(self._key(job.queue), name)
                    pipe.exists(job_key_prefix + name)
                    pipe.get(in_progress_key_prefix + name)
            clock, *rest = await pipe.execute()
        replies = iter(rest)
        found = [[_read(name, replies) for name in self._names(job)] for job in jobs]
        return ms_of(clock), found

    async def _now_ms(self, client: ArqRedis, job: Job) -> int:
        """Return the time of the queue's server, by which workers decide whether a job is due."""
        if job.at_ms is not None and self._settings.queue_url is None:
            return job.at_ms  # the store's server is the queue's
        server: Any = client
        return ms_of(await server.time())

    def _names(self, job: Job) -> list[str]:
        return job.names(job_owner(self._settings))

    def _key(self, queue: str | None) -> str:
        return queue_key(self._settings, queue or self._name)

    def _mend(
        self, pipe: Any, job: Job, found: list[_QueuedJob], now_ms: int, patience_ms: int
    ) -> QueueState:
        if any(one.queued and one.payload and one.mark is None for one in found):
            return QueueState.WAITS
        # What an orphan's own run was picked under is not about to be started.
        picked = [one for one in found[: 1 if job.orphan else None] if one.mark is not None]
        fresh = False
        for one in picked:
            seen_ms = _seen_ms(one, job.version)
            if seen_ms is None:
                seen = f"{job.version} {now_ms}"
                pipe.set(in_progress_key_prefix + one.name, seen, xx=True, keepttl=True)
            fresh = fresh or seen_ms is None or now_ms - seen_ms < patience_ms
        if fresh:
            return QueueState.CLAIMED
        for one in picked:
            pipe.delete(in_progress_key_prefix + one.name)
        if any(one.queued and one.payload for one in picked):
            return QueueState.RELEASED
        # What is left of earlier jobs would only stand in arq's way: it reads the oldest first.
        for one in found[1:]:
            pipe.zrem(self._key(job.queue), one.name)
            pipe.delete(job_key_prefix + one.name, in_progress_key_prefix + one.name)
        self._put(pipe, job, now_ms)
        return QueueState.QUEUED

    def _put(self, pipe: Any, job: Job, now_ms: int) -> None:
        """Write payload and place unless they are there. The payload first: see above."""
        name = self._names(job)[0]
        payload = serialize_job(
            RUN_TASK,
            (job.ticket(),),
            {},
            None,
            now_ms,
            serializer=serialize,
        )
        # arq would drop what has waited for a day.
        life_ms = self._settings.active_task_ttl // timedelta(milliseconds=1)
        since_ms = now_ms if job.since_ms is None else min(job.since_ms, now_ms)
        score = since_ms - _seniority(job.priority) // timedelta(milliseconds=1)
        pipe.set(job_key_prefix + name, payload, px=life_ms, nx=True)
        pipe.zadd(self._key(job.queue), {name: score}, nx=True)

    async def _do(self, work: Callable[[ArqRedis], Awaitable[T]], *, tries: float = math.inf) -> T:
        """Do some work, again until a deadline when its connections break, so many times at most.

        It is also done again while the server is not the one to ask: then nothing was done.
        Errors: BackendUnavailable, AuthenticationFailed.
        """
        deadline_s = self._settings.connect_timeout_s + self._settings.call_timeout_s
        client, backoff_s, failure = self._client(), _FIRST_BACKOFF_S, None
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    try:
                        return await work(client)
                    except (RedisConnectionError, RedisTimeoutError, ResponseError) as error:
                        failure = queue_error(error, self._settings)
                        if not_now(error, located=self._is_located) is None:
                            tries -= 1
                            if failure.final or tries <= 0 or isinstance(error, ResponseError):
                                break
                    await renew(client)
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)
        except (RedisError, OSError) as error:
            # At the deadline the last trouble says more than that time is up.
            failure = failure or queue_error(error, self._settings)
        # Not from its cause: redis-py's frames and texts hold passwords and arguments.
        raise failure

    def _client(self) -> ArqRedis:
        loop = asyncio.get_running_loop()
        for other in [known for known in self._clients if known.is_closed()]:
            del self._clients[other]
        if loop not in self._clients:
            try_s = max(_SHORTEST_TRY_S, self._settings.call_timeout_s / _TRIES)
            self._clients[loop] = connect(queue_settings(self._settings), reply_timeout_s=try_s)
        return self._clients[loop]


async def put_now(queue: Queue, job: Job, clock: Awaitable[Any]) -> None:
    """Queue a task as of now, by the store's clock: a reply to TIME.

    Without a right to ask for it, the queue's own clock will do.
    """
    at_ms: int | None = None
    with suppress(CommandRefused):
        at_ms = ms_of(await clock)
    await queue.put_job(replace(job, at_ms=at_ms))


def default_queue(settings: Settings) -> str:
    """Return the default queue's name: one for each namespace."""
    return f"{settings.namespace}:tasks"


def wake_channel(queue: str) -> str:
    """Return the channel on which a queue's workers are woken."""
    return f"{queue}:wake"


async def _execute(pipe: Any, *, waking: Sequence[str]) -> None:
    """Run what a pipeline holds, then wake the workers of these queues.

    If they cannot be woken, for lack of a right for example, that is no error: they poll by
    themselves.
    """
    written = len(pipe)
    for queue in waking:
        pipe.publish(wake_channel(queue), b"")
    for reply in (await pipe.execute(raise_on_error=False))[:written]:
        if isinstance(reply, Exception):
            raise reply


def _read(name: str, replies: Iterator[Any]) -> _QueuedJob:
    score, payload, mark = next(replies), next(replies), next(replies)
    return _QueuedJob(name, score is not None, bool(payload), mark)


def _seen_ms(found: _QueuedJob, version: int) -> int | None:
    """Return when a picked job was first seen while its task waited in this version."""
    seen_version, _, seen_ms = (found.mark or b"").decode(errors="replace").partition(" ")
    return int(seen_ms) if seen_version == str(version) and seen_ms.isdecimal() else None


def _seniority(priority: int) -> timedelta:
    return min(max(priority, 0), _HIGHEST_PRIORITY) * _SENIORITY
