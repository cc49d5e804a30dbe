"""The worker of a pool: what it is to be. See `serving` for what it does."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from redis_state import limits
from redis_state.archive import open_archive
from redis_state.errors import BackendError, ConfigError, NoConnection
from redis_state.settings import Settings, make_settings
from redis_state.store import RedisStateStore, process_name
from redis_state.worker.arq.cron import NEEDS_ARQ, Moments, copies
from redis_state.worker.handler.guards import Guard
from redis_state.worker.handler.versions import lanes_of, versions_of
from redis_state.worker.observe import tracing
from redis_state.worker.observe.registry import INTERVAL_S, WorkerIdentity
from redis_state.worker.observe.stats import Polls
from redis_state.worker.pool.heartbeat import Heartbeat
from redis_state.worker.pool.process import WorkerConfig, WorkerProcess, need_prometheus
from redis_state.worker.pool.serving import Serving, end_well
from redis_state.worker.queue.access import DEFAULT_QUEUE
from redis_state.worker.queue.claims import LONGEST_RUN_S
from redis_state.worker.queue.jobs.job import ClaimedJob, JobPayload
from redis_state.worker.queue.loop import QueueLoop
from redis_state.worker.queue.queue import Queue
from redis_state.worker.runs.config import Handler
from redis_state.worker.runs.run_task import run_task
from redis_state.worker.tasks.execution.policy import StepPolicy
from redis_state.worker.tasks.transitions import MAX_CRASHES

if TYPE_CHECKING:
    from redis_state.worker.arq.cron import CronJob

log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentWorker:
    """A worker process of the pool: its handlers, and how it runs them.

    - ``queue``, else ``tasks``, is served; or ``queues``, the preferred first, which
      share ``max_tasks`` slots. ``queue_limits`` is the most of one queue's tasks at a time.
    - ``task_timeout_s`` ends a run as FAILED. The time of a PAUSE event counts. Six days at most,
      and less than `active_task_ttl`.
    - ``lease_s`` is how long a task stays with a silent worker. The lease is renewed each third of
      it, by ``heartbeat``: the event loop, or a thread that a busy loop does not stop.
    - ``grace_s`` is how long tasks may continue after a SIGTERM before they are handed off.
    - ``interval_s`` is how often the worker updates its entry for `WorkerRegistry`.
    - ``steps`` is how steps are retried, and what happens to the tasks of a changed handler.
    - ``max_crashes``: more workers than this that die with one task in a row end it.
    - ``guards`` are called at each checkpoint of every task.
    - ``metrics_port`` serves Prometheus metrics. ``metrics_registry`` takes them too.
    - ``crons`` run at their times, each time on one of the namespace's workers that have a job of
      the name. All workers of a queue need them. `cleanup_cron` makes one.
    - ``schedules``: whether this worker submits the tasks of schedules. One of the pool must.

    Errors: ConfigError for impossible options.
    """

    handlers: Mapping[str, Handler]
    settings: Settings | None = None
    queue: str | None = None
    max_tasks: int = 10
    task_timeout_s: float = 300.0
    lease_s: float = 10.0
    poll_s: float = 0.05
    grace_s: float = 10.0
    name: str | None = None
    queues: Sequence[str] = ()
    queue_limits: Mapping[str, int] = field(default_factory=dict[str, int])
    heartbeat: Heartbeat = "loop"
    interval_s: float = INTERVAL_S
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    metrics_registry: Any = None
    steps: StepPolicy | None = None
    max_crashes: int = MAX_CRASHES
    crons: Sequence[CronJob] = ()
    guards: Sequence[Guard] = ()
    schedules: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        self._check_queues()
        if not all(self.handlers):
            raise ConfigError("handlers: each needs a name")
        copies(self.crons)
        with limits.options():
            limits.count("max_tasks", self.max_tasks)
            limits.count("max_crashes", self.max_crashes, least=0)
            for queue, most in self.queue_limits.items():
                limits.count(f"queue_limits[{queue!r}]", most)
            for option in ("lease_s", "poll_s", "interval_s"):
                limits.seconds(option, getattr(self, option))
            limits.seconds("task_timeout_s", self.task_timeout_s, most=LONGEST_RUN_S)
            limits.seconds("grace_s", self.grace_s, least=0)
        if self.heartbeat not in ("loop", "thread"):
            raise ConfigError(f"heartbeat is loop or thread, not {self.heartbeat!r}")
        if self.settings is not None:
            self._check_lifetime(self.settings)

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The queues that this worker serves, the preferred first."""
        return self._named() or (DEFAULT_QUEUE,)

    def with_queues(self, *queues: str) -> AgentWorker:
        """Make a worker alike that serves these queues, the preferred first."""
        limits = {name: most for name, most in self.queue_limits.items() if name in queues}
        return replace(self, queue=None, queues=queues, queue_limits=limits)

    def arq_settings(self) -> type:
        """Make the settings class that ``arq`` starts. arq itself exits when Redis restarts.

        arq picks jobs itself: by this process's clock, and among the first 10,000 of the queue.
        Running jobs count among them, and each costs one call. No client wakes it. It takes other
        namespaces' jobs too, so the queue must belong to one. On SIGTERM running tasks may continue
        for ``grace_s``, rounded up to whole seconds, and are then handed off.

        Errors: ConfigError without arq, for more than one queue or a queue limit, and for options
        of the queue's URL that arq cannot pass on. `run` and `serve` can.
        """
        try:
            from redis_state.worker.arq.runner import runner_options  # noqa: PLC0415 - needs arq
            from redis_state.worker.arq.settings import arq_server  # noqa: PLC0415 - as above
        except ImportError as error:
            raise ConfigError(NEEDS_ARQ.format("arq's own runner")) from error
        queue, *others = self.queue_names
        if others or self.queue_limits:
            raise ConfigError("arq's own runner serves one queue: use run() or redis-state worker")
        server = arq_server(self.settings or make_settings())
        config = self._worker_config()
        # Made again at the start. Here it only raises for wrong settings.
        key = Queue(RedisStateStore(config.settings), name=queue).keys().queue

        async def run(process: WorkerProcess, job: JobPayload) -> None:
            await run_task(process.store, process.run_config, job, queue=queue)

        async def take(process: WorkerProcess, job: CronJob, due_ms: int) -> bool:
            return await Moments(process.store).take(job, due_ms)

        options = runner_options(
            make=lambda: WorkerProcess(config),
            start=WorkerProcess.start,
            end=end_well,
            run=run,
            crons=copies(self.crons),
            take=take,
        )
        options |= {
            "redis_settings": server,
            "queue_name": key,
            "max_jobs": self.max_tasks,
            # Ours ends a run first, and knows what to write.
            "job_timeout": self.task_timeout_s + 30,
            "job_completion_wait": math.ceil(self.grace_s),
            "poll_delay": self.poll_s,
        }
        return type("WorkerSettings", (), options)

    def run(self, *, uvloop: bool = False) -> None:
        """Run until SIGTERM, SIGINT or SIGHUP, through server restarts. Return after draining.

        The process is the worker's: what it has made before, such as its modules, is left out of
        garbage collection until it returns. It waits for no thread of ``asyncio.to_thread``.

        Errors: ConfigError if ``uvloop`` is requested and not installed; those of `serve`.
        """
        frozen_before = _has_frozen_objects()
        # Garbage that is frozen stays.
        gc.collect()
        # Else each full collection would look at all modules again: a sixth of a short task's CPU.
        gc.freeze()
        try:
            with asyncio.Runner(loop_factory=_uvloop_factory() if uvloop else None) as runner:
                runner.get_loop().set_default_executor(_LeftThreads(thread_name_prefix="asyncio"))
                runner.run(self._serve(handle_signals=True))
        finally:
            # A host may have frozen objects of its own, to share them with its forks.
            if not frozen_before:
                gc.unfreeze()

    async def serve(self, *, handle_signals: bool = True) -> None:
        """Run until SIGTERM, SIGINT or SIGHUP, or until cancelled, through server restarts.

        Without ``handle_signals``, for a host that has its own, run until cancelled. Cancelling
        hands running tasks off at once.

        Errors: NoConnection if the server never accepted the worker and a retry is useless: for a
        wrong password, a certificate, a missing right. ConfigError for settings of no use. Both are
        logged, too. An unreachable server is waited for.
        """
        try:
            await self._serve(handle_signals=handle_signals)
        except (ConfigError, NoConnection) as error:
            # A host that has made a task of this may look at it much later, or never.
            log.error("this worker does not serve: %s", error)  # noqa: TRY400 - it is raised
            raise

    async def _serve(self, *, handle_signals: bool) -> None:
        config = self._worker_config()
        process = WorkerProcess(config, polls=Polls())
        serving = Serving(config, process, self._queue_loop(process))
        await serving.run(handle_signals=handle_signals)

    def _queue_loop(self, process: WorkerProcess) -> QueueLoop:
        async def run(job: ClaimedJob, payload: JobPayload, begin: Callable[[], None]) -> None:
            if tracing.is_active():
                payload = await _with_trace(process.queue, job, payload)
            await run_task(
                process.store,
                process.run_config,
                payload,
                queue=job.queue,
                permit=job.claimed if job.is_limited else None,
                on_begun=begin,
            )

        limits = self.queue_limits
        return QueueLoop(
            process.queue,
            [(name, limits.get(name, self.max_tasks)) for name in self.queue_names],
            slots=self.max_tasks,
            poll_s=self.poll_s,
            run=run,
            polls=process.polls,
            lanes=lanes_of(self.handlers),
        )

    def _check_queues(self) -> None:
        if isinstance(self.queues, str):
            raise ConfigError("queues: a sequence of names is needed; one alone is queue")
        names = self._named()
        if not all(names):
            raise ConfigError("queues: each needs a name")
        if len(set(names)) < len(names):
            raise ConfigError("queues: one is named twice")
        if self.queues and self.queue is not None:
            raise ConfigError("queue and queues cannot both be given")
        # The settings are not read for nothing.
        served = self.queue_names if self.queue_limits else ()
        strangers = sorted(set(self.queue_limits) - set(served))
        if strangers:
            raise ConfigError(f"queue_limits names no queue of this worker: {strangers[0]!r}")

    def _check_lifetime(self, settings: Settings) -> None:
        """Refuse runs that may be longer than their tasks are kept. Errors: ConfigError.

        The record and the journal live from the start of a run on: nothing that it does renews
        them.
        """
        longest_s = self.task_timeout_s + self.grace_s + self.lease_s
        kept_s = settings.active_task_ttl.total_seconds()
        if longest_s > kept_s:
            raise ConfigError(
                f"task_timeout_s, grace_s and lease_s are {longest_s:g} s, and active_task_ttl is "
                f"{kept_s:g} s: a run could lose its task's record and journal"
            )

    def _named(self) -> tuple[str, ...]:
        if self.queues:
            return tuple(self.queues)
        return () if self.queue is None else (self.queue,)

    def _worker_config(self) -> WorkerConfig:
        if self.metrics_port is not None or self.metrics_registry is not None:
            need_prometheus()
        settings = self.settings or make_settings()
        self._check_lifetime(settings)
        if settings.has_archive:
            # It raises for wrong settings, before anything runs.
            open_archive(settings)
        return WorkerConfig(
            settings=settings,
            handlers=self.handlers,
            about=WorkerIdentity(
                name=self.name or process_name(),
                queues=self.queue_names,
                handlers=sorted(self.handlers),
                versions=versions_of(self.handlers),
                max_tasks=self.max_tasks,
                heartbeat=self.heartbeat,
            ),
            lease_s=self.lease_s,
            limit_s=self.task_timeout_s,
            grace_s=self.grace_s,
            interval_s=self.interval_s,
            metrics_host=self.metrics_host,
            metrics_port=self.metrics_port,
            metrics_registry=self.metrics_registry,
            steps=self.steps,
            max_crashes=self.max_crashes,
            guards=tuple(self.guards),
            crons=self.crons,
            schedules=self.schedules,
        )


class _LeftThreads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`. A stop does not wait for them: nothing can stop one."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as its base has it
        del wait, cancel_futures
        super().shutdown(wait=False, cancel_futures=True)


async def _with_trace(queue: Queue, job: ClaimedJob, named: JobPayload) -> JobPayload:
    """Read the context of the span that queued a job. No run depends on it."""
    with suppress(BackendError):
        stated = await queue.payload(job)
        if stated is not None:
            return replace(named, trace=stated.trace)
    return named


def _has_frozen_objects() -> bool:
    """Return whether something is left out of garbage collection.

    The interpreter's first objects then are, of which this is one. Counting what is frozen would
    walk over all of it: 0.2 s for a worker that was forked from a process with many modules.
    """
    return not any(each is sys.modules for each in gc.get_objects())


def _uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        module: Any = import_module("uvloop")
    except ImportError:
        raise ConfigError("uvloop is an extra: pip install redis_state[uvloop]") from None
    factory: Callable[[], asyncio.AbstractEventLoop] = module.new_event_loop
    return factory
