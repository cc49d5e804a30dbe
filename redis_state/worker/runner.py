"""The worker: arq's loop, kept alive through restarts of the server, and stopped in good order."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from arq.connections import ArqRedis
from arq.constants import in_progress_key_prefix
from arq.worker import Worker
from redis.exceptions import RedisError

from redis_state.errors import BackendError
from redis_state.settings import Settings
from redis_state.store import RedisStateStore, process_name
from redis_state.worker.queue import (
    DEFAULT_QUEUE,
    RUN_TASK,
    deserialize,
    queue_settings,
    serialize,
)
from redis_state.worker.run import Handler, Terms, run_task
from redis_state.worker.steps import StepPolicy
from redis_state.worker.sweeper import sweeping

log: logging.Logger = logging.getLogger(__name__)

_STORE = "redis_state.store"
_SWEEPING = "redis_state.sweeping"
_RESTART_S = 0.5


@dataclass(frozen=True, slots=True)
class AgentWorker:
    """A worker process of the pool: the handlers it knows and how it runs them.

    ``task_timeout_s`` ends a run as FAILED; the time that a task is told to pause counts.
    ``lease_s`` is how long a task stays with a worker that says nothing; it is renewed each third
    of it. ``grace_s`` is how long tasks may go on after a SIGTERM before they are handed over.
    ``steps`` says how steps are tried again, and what becomes of a changed handler's tasks.
    """

    handlers: Mapping[str, Handler]
    settings: Settings | None = None
    queue: str = DEFAULT_QUEUE
    max_tasks: int = 10
    task_timeout_s: float = 300.0
    lease_s: float = 10.0
    poll_s: float = 0.05
    grace_s: float = 10.0
    name: str | None = None
    steps: StepPolicy | None = None

    def arq_settings(self) -> type:
        """Make the settings class that ``arq`` starts. arq itself exits when Redis restarts.

        On SIGTERM arq hands running tasks over at once: ``grace_s`` is for `run` and `serve`.
        """
        return type("WorkerSettings", (), self._options())

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, through server restarts. Returns after draining."""
        asyncio.run(self.serve())

    async def serve(self, *, handle_signals: bool = True) -> None:
        """Run until SIGTERM or SIGINT, or until cancelled, through server restarts.

        Without ``handle_signals``, for a host that has its own, only until cancelled; that hands
        running tasks over at once.
        """
        stop = asyncio.Event()
        if handle_signals:
            _on_signals(stop)
        worker = _Worker(**self._options(), handle_signals=False)
        polling = asyncio.create_task(self._poll(worker))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({polling, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if polling.done():
                polling.result()
            await self._finish_running(worker)
        finally:
            stopping.cancel()
            polling.cancel()
            await asyncio.wait({polling, stopping})
            await _close(worker)
            if handle_signals:
                _off_signals()

    async def _poll(self, worker: _Worker) -> None:
        while True:
            try:
                await worker.mend()
                await worker.async_run()
            except (RedisError, OSError) as error:
                # arq gives up when the server is away; its running tasks go on meanwhile.
                log.warning("the queue is away, trying again: %s", type(error).__name__)
                await asyncio.sleep(_RESTART_S)

    async def _finish_running(self, worker: _Worker) -> None:
        worker.allow_pick_jobs = False
        await worker.settle()
        running = {task for task in worker.tasks.values() if not task.done()}
        if running:
            await asyncio.wait(running, timeout=self.grace_s)

    def _options(self) -> dict[str, Any]:
        settings = self.settings or Settings()
        name = self.name or process_name()
        terms = Terms(self.handlers, name, self.lease_s, self.task_timeout_s, self.steps)

        async def startup(ctx: dict[Any, Any]) -> None:
            store = ctx.setdefault(_STORE, RedisStateStore(settings))
            if _SWEEPING not in ctx:
                ctx[_SWEEPING] = sweeping(store, queue=self.queue, lease_s=self.lease_s)

        async def run(ctx: dict[Any, Any], job: Any) -> None:
            try:
                session_id, task_id = job["session_id"], job["task_id"]
            except (TypeError, KeyError):
                log.warning("a job that names no task is dropped")
                return
            await run_task(ctx[_STORE], terms, session_id, task_id)

        run.__qualname__ = RUN_TASK
        return {
            "functions": [run],
            "redis_settings": queue_settings(settings),
            "queue_name": self.queue,
            "on_startup": startup,
            "on_shutdown": _close_store,
            "job_serializer": serialize,
            "job_deserializer": deserialize,
            "max_jobs": self.max_tasks,
            # Ours ends a run first, and knows what to write.
            "job_timeout": self.task_timeout_s + 30,
            "poll_delay": self.poll_s,
            "keep_result": 0,
            "max_tries": 1_000_000,
            "health_check_interval": 15,
            "log_results": False,
        }


class _Worker(Worker):
    """arq's worker, made to live on after it lost the server and to stop between two jobs."""

    _picking: asyncio.Task[None] | None = None

    async def start_jobs(self, job_ids: list[bytes]) -> None:
        """Pick jobs. Not interrupted: a job marked as taken, but not begun, would wait long."""
        if job_ids:
            self._picking = asyncio.create_task(super().start_jobs(job_ids))
            await asyncio.shield(self._picking)

    async def settle(self) -> None:
        """Wait until no job is about to begin."""
        if self._picking is not None:
            await asyncio.wait({self._picking})

    async def mend(self) -> None:
        """Put right what an error in arq's loop leaves: slots taken, and jobs marked as running."""
        await self.settle()
        for job_id, task in list(self.tasks.items()):
            if task.done():
                if task.cancelled() or task.exception() is not None:
                    await self.pool.delete(in_progress_key_prefix + job_id)
                del self.tasks[job_id]
        self.job_counter = len(self.tasks)
        self.sem = asyncio.BoundedSemaphore(self.max_jobs + 1)
        for _ in self.tasks:
            await self.sem.acquire()


async def _close(worker: _Worker) -> None:
    """Have what still runs handed over, then disconnect."""
    await worker.settle()
    for task in worker.tasks.values():
        task.cancel()
    await asyncio.gather(*worker.tasks.values(), return_exceptions=True)
    worker.tasks.clear()
    await _close_store(worker.ctx)
    # Not by arq's own close, which stops half-way when the server is away.
    pool: ArqRedis | None = worker.pool
    if pool is not None:  # pyright: ignore[reportUnnecessaryComparison] - arq casts it away
        with suppress(RedisError, OSError):
            await pool.delete(worker.health_check_key)
        await pool.aclose(close_connection_pool=True)


async def _close_store(ctx: dict[Any, Any]) -> None:
    sweeper: asyncio.Task[None] | None = ctx.pop(_SWEEPING, None)
    if sweeper is not None:
        sweeper.cancel()
        await asyncio.wait({sweeper})
    store: RedisStateStore | None = ctx.pop(_STORE, None)
    if store is not None:
        with suppress(BackendError):
            await store.aclose()


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        # Not in every thread, and not on every system.
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(name, stop.set)


def _off_signals() -> None:
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(name)
