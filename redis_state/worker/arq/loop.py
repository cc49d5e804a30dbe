"""arq's loop, made to live on after it lost the server, and to serve several queues.

The queues of a process are polled one after another in one task, the preferred first: so they
share one number of slots without a lock, and a slot that is free is offered in that order.

Jobs are picked here, not by arq, which looks at the first of a queue only, and at each by itself.
Jobs that run stay in the queue, so all of the first may be taken; and when a job is due is for the
server's clock to say, not for each worker's.

arq looks every ``poll_delay``. In between, a round is begun at once when a job is put or ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from time import time
from typing import Any

from arq.connections import ArqRedis
from arq.constants import in_progress_key_prefix, job_key_prefix, retry_key_prefix
from arq.utils import poll
from arq.worker import Worker
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from redis_state.transport.clock import ms_of
from redis_state.worker.arq.job_format import is_anothers
from redis_state.worker.arq.queue import wake_channel
from redis_state.worker.observe.stats import Polls

log: logging.Logger = logging.getLogger(__name__)

_LISTEN_AGAIN_S = 1.0
# A subscription that is silent for so long is sent a PING, and given up after as long again.
_SILENT_S = 2.0
# How long jobs that are being picked may hold up a stop. What a dead connection has marked as
# picked by then is found by the sweeper.
_SETTLE_S = 2.0
_LEAVE_S = 1.0
# How many jobs are read at a time.
_PAGE = 256

# A job's id, and when it is due, by the server's clock.
_Due = tuple[str, float]


class QueueWorker(Worker):
    """arq's worker of one queue. The first of a process polls the others too."""

    others: Sequence[QueueWorker] = ()
    # The most of this queue's tasks at a time; all queues together have ``slots``.
    most: int
    slots: int
    woken: asyncio.Event
    _picking: asyncio.Task[None] | None = None

    def __init__(self, *, most: int, owner: str, **options: Any) -> None:
        super().__init__(**options)
        self.slots = self.max_jobs
        self.most = most
        self.woken = asyncio.Event()
        self.polls: Polls = Polls()
        self._owner = owner

    async def main(self) -> None:
        """Poll until cancelled. arq's own asks for more of the server than a worker needs."""
        self.ctx["redis"] = self.pool
        if self.on_startup:
            await self.on_startup(self.ctx)
        async for _ in poll(self.poll_delay_s):
            await self._poll_iteration()

    async def finish_job(  # noqa: PLR0917 - as arq calls it
        self,
        job_id: str,
        finish: bool,  # noqa: FBT001 - as above
        result_data: bytes | None,
        result_timeout_s: float | None,
        keep_result_forever: bool,  # noqa: FBT001 - as above
        incr_score: int | None,
        keep_in_progress: float | None,
    ) -> None:
        """Take a job that is done off the queue, or put it off. No result is kept, none aborted.

        arq's own touches the one key that all queues of a server have in common.
        """
        del result_data, result_timeout_s, keep_result_forever
        mark = in_progress_key_prefix + job_id
        async with self.pool.pipeline(transaction=True) as opened:
            pipe: Any = opened
            if keep_in_progress is None:
                pipe.delete(mark)
            else:
                pipe.pexpire(mark, round(keep_in_progress * 1000))
            if finish:
                pipe.delete(retry_key_prefix + job_id, job_key_prefix + job_id)
                pipe.zrem(self.queue_name, job_id)
            elif incr_score:
                pipe.zincrby(self.queue_name, incr_score, job_id)
            await pipe.execute()

    async def finish_failed_job(self, job_id: str, result_data: bytes | None) -> None:
        """Take a job that cannot be run off the queue."""
        await self.finish_job(job_id, True, result_data, None, False, None, None)  # noqa: FBT003 - as arq calls it

    @property
    def group(self) -> tuple[QueueWorker, ...]:
        """All queues of the process, the preferred first."""
        return (self, *self.others)

    async def _poll_iteration(self) -> None:
        end = asyncio.get_running_loop().time() + self.poll_delay_s
        while True:
            self.woken.clear()
            await self._poll_all()
            self.polls.now()
            try:
                async with asyncio.timeout_at(end):
                    await self.woken.wait()
            except TimeoutError:
                return  # arq then sleeps for what is left of its delay, which is nothing

    async def _poll_all(self) -> None:
        for worker in self.group:
            # Nothing else picks meanwhile: slots can only become free.
            free = self.slots - sum(each.job_counter for each in self.group)
            worker.max_jobs = max(0, min(worker.most, worker.job_counter + free))
            await worker.poll_once()

    async def poll_once(self) -> None:
        """Poll this queue alone. Errors: what ended a job that arq could not end."""
        for job_id, task in list(self.tasks.items()):
            if task.done():
                task.result()
                del self.tasks[job_id]
        if self.allow_pick_jobs and self.job_counter < self.max_jobs:
            # Not interrupted: a job marked as taken, but not begun, would wait long.
            self._picking = asyncio.create_task(self._pick())
            await asyncio.shield(self._picking)
        await self.heart_beat()

    async def _pick(self) -> None:
        """Take jobs in their order, until all slots are taken or the queue is at its end."""
        begin = 0
        while self.allow_pick_jobs and self.job_counter < self.max_jobs:
            now_ms, page = await self._read(begin)
            due = await self._ours([(name, score) for name, score in page if score <= now_ms])
            if len(due) > self.max_jobs - self.job_counter:
                due = await self._not_taken(due)
            while due and self.job_counter < self.max_jobs:
                free = self.max_jobs - self.job_counter
                await self._take(due[:free], now_ms)
                due = due[free:]
            if len(page) < _PAGE or page[-1][1] > now_ms:
                return
            begin += _PAGE

    async def _read(self, begin: int) -> tuple[int, list[tuple[bytes, float]]]:
        """Read the server's time and a page of the queue."""
        async with self.pool.pipeline(transaction=False) as opened:
            pipe: Any = opened
            pipe.time()
            pipe.zrange(self.queue_name, begin, begin + _PAGE - 1, withscores=True)
            clock, page = await pipe.execute()
        return ms_of(clock), page

    async def _ours(self, page: list[tuple[bytes, float]]) -> list[_Due]:
        """Drop what has no readable name; leave out what runs here or is another namespace's."""
        foreign = [name for name, _ in page if not _is_text(name)]
        if foreign:
            log.warning("jobs whose names are no text are dropped")
            await self.pool.zrem(self.queue_name, *foreign)
        named = [(name.decode(), score) for name, score in page if _is_text(name)]
        return [
            (name, score)
            for name, score in named
            if name not in self.tasks and not is_anothers(name, self._owner)
        ]

    async def _not_taken(self, due: list[_Due]) -> list[_Due]:
        """Leave out at once what others run: each attempt to take it would cost a slot's turn."""
        marks = await self.pool.mget([in_progress_key_prefix + name for name, _ in due])
        return [one for one, mark in zip(due, marks, strict=True) if mark is None]

    async def _take(self, due: list[_Due], now_ms: int) -> None:
        """Mark jobs as taken, those that nobody else has, and begin them: one round trip for all.

        A worker that dies in between leaves marks, which the sweeper finds.
        """
        life_ms = round(self.in_progress_timeout_s * 1000)
        async with self.pool.pipeline(transaction=True) as opened:
            pipe: Any = opened
            for name, _ in due:
                pipe.zscore(self.queue_name, name)
                pipe.set(in_progress_key_prefix + name, b"1", px=life_ms, nx=True)
            replies = await pipe.execute()
        # arq computes a job's delay by this process's clock.
        ahead_ms = round(time() * 1000) - now_ms
        gone: list[str] = []
        for (name, _), score, taken in zip(due, replies[::2], replies[1::2], strict=True):
            if taken and score is not None and score <= now_ms:
                self._begin(name, int(score) + ahead_ms)
            elif taken:
                # Since it was read it was done, or put off.
                gone.append(in_progress_key_prefix + name)
        if gone:
            await self.pool.delete(*gone)

    def _begin(self, job_id: str, score: int) -> None:
        self.tasks[job_id] = task = asyncio.create_task(self.run_job(job_id, score))
        task.add_done_callback(self._ended)
        self._count()

    def _ended(self, _: object) -> None:
        self._count()
        self.woken.set()

    def _count(self) -> None:
        self.job_counter: int = sum(not task.done() for task in self.tasks.values())

    async def run_job(self, job_id: str, score: int) -> None:
        """Run a job. One that cannot be run, whatever it is, is dropped: it must not end us."""
        try:
            await super().run_job(job_id, score)
        except (RedisError, OSError) as error:
            if not (isinstance(error, ResponseError) and await self._is_no_job(job_id)):
                raise
            await self._drop(job_id, error)
        except Exception as error:  # noqa: BLE001 - arq would end the worker
            await self._drop(job_id, error)

    async def listen(self) -> None:
        """Wake up when a job is put, through lost connections, until cancelled."""
        channels = [wake_channel(worker.queue_name) for worker in self.group]
        pool: Any = self.pool
        while True:
            try:
                async with pool.pubsub() as reported:
                    await reported.subscribe(*channels)
                    await self._hear(reported)
            except (RedisError, OSError) as error:
                log.info("nobody can wake this worker, it looks by itself: %s", error)
            await asyncio.sleep(_LISTEN_AGAIN_S)

    async def _hear(self, reported: Any) -> None:
        """Hear messages until the connection is lost, or is found to be dead."""
        pinged = False
        while True:
            try:
                message = await reported.get_message(timeout=_SILENT_S)
            except NoPermissionError:
                if not pinged:
                    raise
                # A user that may not ask for a sign of life gets this one.
                message = {"type": "pong"}
            if message is not None:
                pinged = False
                # Once subscribed too: jobs put before it are not announced again.
                if message["type"] != "pong":
                    self.woken.set()
            elif pinged:
                raise TimeoutError("no answer to a ping")
            else:
                await reported.ping()
                pinged = True

    async def settle(self) -> None:
        """Wait until no job is about to begin. What takes too long for that is given up."""
        picking = {
            worker._picking  # noqa: SLF001 - our own kind
            for worker in self.group
            if worker._picking is not None  # noqa: SLF001 - as above
        }
        if picking:
            _, late = await asyncio.wait(picking, timeout=_SETTLE_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def ensure_queued(self) -> None:
        """Repair what an error in arq's loop leaves: taken slots, and jobs marked as running."""
        await self.settle()
        for worker in self.group:
            for job_id, task in list(worker.tasks.items()):
                if task.done():
                    if task.cancelled() or task.exception() is not None:
                        await worker.pool.delete(in_progress_key_prefix + job_id)
                    del worker.tasks[job_id]
            worker._count()  # noqa: SLF001 - our own kind

    def stop_picking(self) -> None:
        """Take no more jobs."""
        for worker in self.group:
            worker.allow_pick_jobs = False

    def unfinished(self) -> set[asyncio.Task[Any]]:
        """Return the jobs of all queues that still run."""
        return {task for worker in self.group for task in worker.tasks.values() if not task.done()}

    async def disconnect(self) -> None:
        """Hand off running jobs, then disconnect."""
        await self.settle()
        ending = [task for worker in self.group for task in worker.tasks.values()]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for worker in self.group:
            worker.tasks.clear()
        if self.on_shutdown:
            await self.on_shutdown(self.ctx)
        # Not by arq's own close, which stops half-way when the server is away.
        pool: ArqRedis = self.pool
        with suppress(RedisError, OSError):
            async with asyncio.timeout(_LEAVE_S):
                await pool.delete(*(worker.health_check_key for worker in self.group))
        await pool.aclose(close_connection_pool=True)

    async def _is_no_job(self, job_id: str) -> bool:
        """Return whether a job's key is of another type. redis-py 6 loses what the server says."""
        kind: bytes = await self.pool.type(job_key_prefix + job_id)
        return kind not in (b"string", b"none")

    async def _drop(self, job_id: str, error: Exception) -> None:
        # A task that exists is on the watch list, and is queued again from there.
        log.warning("a job that cannot be run is dropped: %s", type(error).__name__)
        about = [
            prefix + job_id for prefix in (job_key_prefix, retry_key_prefix, in_progress_key_prefix)
        ]
        await self.pool.delete(*about)
        await self.pool.zrem(self.queue_name, job_id)


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
