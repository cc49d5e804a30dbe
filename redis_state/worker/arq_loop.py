"""arq's loop, made to live on after it lost the server, and to serve several queues.

The queues of a process are polled one after another in one task, the preferred first: so they
share one number of slots without a lock, and a slot that is free is offered in that order.

arq looks every ``poll_delay``. In between, a round is begun at once when a job is put or ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from arq.connections import ArqRedis
from arq.constants import in_progress_key_prefix, job_key_prefix, retry_key_prefix
from arq.worker import Worker
from redis.exceptions import RedisError, ResponseError

from redis_state.worker.queue import wake_channel

log: logging.Logger = logging.getLogger(__name__)

_LISTEN_AGAIN_S = 1.0


class QueueWorker(Worker):
    """arq's worker of one queue. The first of a process polls the others too."""

    others: Sequence[QueueWorker] = ()
    # The most of this queue's tasks at a time; all queues together have ``slots``.
    most: int
    slots: int
    woken: asyncio.Event
    _picking: asyncio.Task[None] | None = None

    def __init__(self, *, most: int, **options: Any) -> None:
        super().__init__(**options)
        self.slots = self.max_jobs
        self.most = most
        self.woken = asyncio.Event()

    @property
    def group(self) -> tuple[QueueWorker, ...]:
        """All queues of the process, the preferred first."""
        return (self, *self.others)

    async def _poll_iteration(self) -> None:
        end = asyncio.get_running_loop().time() + self.poll_delay_s
        while True:
            self.woken.clear()
            await self._poll_all()
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
        """Poll this queue alone."""
        await super()._poll_iteration()

    async def start_jobs(self, job_ids: list[bytes]) -> None:
        """Pick jobs. Not interrupted: a job marked as taken, but not begun, would wait long."""
        readable = [name for name in job_ids if _is_text(name)]
        if len(readable) < len(job_ids):
            log.warning("jobs whose names are no text are dropped")
            foreign = [name for name in job_ids if not _is_text(name)]
            await self.pool.zrem(self.queue_name, *foreign)
        if readable:
            self._picking = asyncio.create_task(super().start_jobs(readable))
            await asyncio.shield(self._picking)

    async def run_job(self, job_id: str, score: int) -> None:
        """Run a job. One that cannot be run, whatever it is, is dropped: it must not end us."""
        try:
            await super().run_job(job_id, score)
        except (RedisError, OSError) as error:
            if not (isinstance(error, ResponseError) and "WRONGTYPE" in str(error)):
                raise
            await self._drop(job_id, error)
        except Exception as error:  # noqa: BLE001 - arq would end the worker
            await self._drop(job_id, error)

    def _release_sem_dec_counter_on_complete(self) -> None:
        super()._release_sem_dec_counter_on_complete()
        self.woken.set()

    async def listen(self) -> None:
        """Be woken by whoever puts a job, through lost connections, until cancelled."""
        channels = [wake_channel(worker.queue_name) for worker in self.group]
        pool: Any = self.pool
        while True:
            try:
                async with pool.pubsub() as told:
                    await told.subscribe(*channels)
                    # Once subscribed too: what was put before is not told again.
                    async for _ in told.listen():
                        self.woken.set()
            except (RedisError, OSError) as error:
                log.info("nobody can wake this worker, it looks by itself: %s", error)
            await asyncio.sleep(_LISTEN_AGAIN_S)

    async def settle(self) -> None:
        """Wait until no job is about to begin."""
        for worker in self.group:
            if worker._picking is not None:  # noqa: SLF001 - our own kind
                await asyncio.wait({worker._picking})  # noqa: SLF001 - as above

    async def mend(self) -> None:
        """Put right what an error in arq's loop leaves: slots taken, and jobs marked as running."""
        await self.settle()
        for worker in self.group:
            for job_id, task in list(worker.tasks.items()):
                if task.done():
                    if task.cancelled() or task.exception() is not None:
                        await worker.pool.delete(in_progress_key_prefix + job_id)
                    del worker.tasks[job_id]
            worker.job_counter = len(worker.tasks)
            worker.sem = asyncio.BoundedSemaphore(self.slots + 1)
            for _ in worker.tasks:
                await worker.sem.acquire()

    def stop_picking(self) -> None:
        """Take no more jobs."""
        for worker in self.group:
            worker.allow_pick_jobs = False

    def unfinished(self) -> set[asyncio.Task[Any]]:
        """Name the jobs of all queues that still run."""
        return {task for worker in self.group for task in worker.tasks.values() if not task.done()}

    async def disconnect(self) -> None:
        """Have what still runs handed over, then leave the queue's server."""
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
            await pool.delete(*(worker.health_check_key for worker in self.group))
        await pool.aclose(close_connection_pool=True)

    async def _drop(self, job_id: str, error: Exception) -> None:
        # If its task is a true one it stands on the watch list, and is queued anew from there.
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
